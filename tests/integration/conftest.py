"""Fixtures of several files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from names import own_name
from wherry.fabric import named_netns


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


@pytest.fixture(autouse=True)
def own_session_directories(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Open MPI 4 has one directory for all launchers of a user, which one of them may remove while another, of a test
    beside this, makes its own in it."""
    monkeypatch.setenv("OMPI_MCA_orte_tmpdir_base", str(tmp_path_factory.getbasetemp()))
