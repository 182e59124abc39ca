"""Fixtures of several files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from session_directories import own_session_directories

from names import own_name
from wherry.fabric import named_netns

__all__ = ["netns", "own_session_directories"]


@pytest.fixture
def netns() -> Iterator[str]:
    """The path of a namespace whose loopback interface is up."""
    name = own_name("tnet")
    named_netns.create(name)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield f"/run/netns/{name}"
    finally:
        named_netns.remove(name)
