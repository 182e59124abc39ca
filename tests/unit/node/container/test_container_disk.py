"""The disk of a node: the room that it needs at its host, and when times of its files are not trusted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from holder_process import holder

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
    """A disk whose files are in a directory."""
    made = Disk(tmp_path / "disks" / "one", tmp_path, 10 * GIBI)
    made.files.mkdir()
    return made


@pytest.mark.parametrize(("free", "fits"), [(9, False), (12, False), (14, True)])
def test_disks_leave_some_of_their_hosts_free(monkeypatch: pytest.MonkeyPatch, free: int, fits: bool) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Space(100 * GIBI, (100 - free) * GIBI, free * GIBI))
    room = disks.room(Instance("none"))
    why = "" if fits else f"host b1 has room for {free - 3}.0 GiB of disk, and 10.0 GiB are wanted for /tmp"
    assert disks.obstacle("host b1", 10 * GIBI, room) == why


@pytest.mark.parametrize(
    ("flags", "access", "changes"),
    [("os.O_DIRECT", "MAP_SHARED", True), ("os.O_DIRECT", "MAP_PRIVATE", False), ("0", "MAP_SHARED", False)],
)
def test_times_are_believed_unless_a_device_may_write_into_a_mapped_file(
    disk: Disk, flags: str, access: str, changes: bool
) -> None:
    path = disk.files / "mapped"
    path.write_bytes(bytes(1 << 16))
    text = (
        f"import mmap, os; file = os.open({str(path)!r}, os.O_RDWR); mapped = mmap.mmap(file, 0, mmap.{access});"
        f"other = os.open({str(path)!r}, os.O_RDWR | {flags})"
    )
    with holder(text) as pid:
        assert disk.may_change_unseen([pid]) == changes


def test_a_removed_file_is_carried_up_to_a_size(disk: Disk) -> None:
    path = disk.files / "scratch"
    path.write_bytes(os.urandom(1 << 20))
    with holder(f"file = open({str(path)!r})") as pid:
        assert disk.removed_obstacle([pid], 1 << 19) == ""
        path.unlink()
        assert "scratch open, which was removed and takes 1.0 MiB" in disk.removed_obstacle([pid], 1 << 19)
        assert disk.removed_obstacle([pid], 1 << 20) == ""
