"""The disk of a node: what it needs of its host, and when times of its files are not believed."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from wherry.base.paths import Instance
from wherry.node.container import disk as disks
from wherry.node.container.disk import Disk

GIBI = 1 << 30


class Space(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """One whose files are in a directory."""
    made = Disk(tmp_path / "disks" / "one", tmp_path, 10 * GIBI)
    made.files.mkdir()
    return made


@pytest.mark.parametrize(("free", "fits"), [(9, False), (12, False), (14, True)])
def test_disks_leave_some_of_their_hosts_free(monkeypatch: pytest.MonkeyPatch, free: int, fits: bool) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Space(100 * GIBI, (100 - free) * GIBI, free * GIBI))
    room = disks.room(Instance("none"))
    why = "" if fits else f"host b1 has room for {free - 3}.0 GiB of disk, and 10.0 GiB are wanted for /tmp"
    assert disks.obstacle("host b1", 10 * GIBI, room) == why


def test_times_are_believed_unless_a_device_may_write_into_a_mapped_file(disk: Disk, tmp_path: Path) -> None:
    path = disk.files / "mapped"
    path.write_bytes(bytes(1 << 16))
    me = [os.getpid()]
    with path.open("r+b") as file:
        direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        try:
            assert not disk.may_change_unseen(me)
            with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE):
                assert not disk.may_change_unseen(me)
            with mmap.mmap(file.fileno(), 0):
                assert disk.may_change_unseen(me)
        finally:
            os.close(direct)
        with mmap.mmap(file.fileno(), 0):
            assert not disk.may_change_unseen(me)


def test_a_removed_file_is_carried_up_to_a_size(disk: Disk) -> None:
    path, me = disk.files / "scratch", [os.getpid()]
    with path.open("w+b") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        assert disk.removed_obstacle(me, 1 << 19) == ""
        path.unlink()
        assert "scratch open, which was removed and takes 1.0 MiB" in disk.removed_obstacle(me, 1 << 19)
        assert disk.removed_obstacle(me, 1 << 20) == ""
