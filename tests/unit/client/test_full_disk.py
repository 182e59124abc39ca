"""A daemon that cannot start, as the disk of its state is full, reports that although its log cannot."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from names import own_name
from wherry.base.errors import LostContact
from wherry.base.paths import Instance
from wherry.client import daemon_process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and starts the daemon")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "wherry", str(state)], check=True)
    monkeypatch.setenv("WHERRY_STATE", str(state))
    place = Instance(own_name("tful"))
    monkeypatch.setenv("WHERRY_INSTANCE", place.name)
    try:
        yield place
        daemon_process.stop(place)
        daemon_process.sweep()
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_it_says_which_disk_is_full(place: Instance) -> None:
    with open(place.state.parent / "fill", "wb", buffering=0) as fill, pytest.raises(OSError, match="No space"):
        while True:
            fill.write(bytes(4096))
    with pytest.raises(LostContact) as refused:
        daemon_process.start(place)
    assert "did not start" in refused.value.what and f"{place.state} is full" in refused.value.why
    (place.state.parent / "fill").unlink()
    daemon_process.start(place)
