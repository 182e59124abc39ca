"""The disk of a node: the room that it needs at its host, and when times of its files are not trusted."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from holder_process import holder

from wherry.base.paths import Instance
from wherry.node.container import disk as disks
from wherry.node.container.disk import Disk
from wherry.node.container.file_tree import TreeSender
from wherry.node.container.progress_bounds import StallTimeout

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
    monkeypatch.setattr(disks, "lacking", str)
    why = "" if fits else f"has room for {free - 3}.0 GiB of disk, and 10.0 GiB are wanted for /tmp"
    assert disks.obstacle(Instance("none"), 10 * GIBI) == why


def test_a_machine_without_loop_devices_has_no_disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disks, "_LOOP_CONTROL", tmp_path / "loop-control")
    why = f"has no loop devices for disks of nodes ({tmp_path}/loop-control is missing)"
    assert disks.obstacle(Instance("none"), 4096) == why
    assert disks.obstacle(Instance("none"), 0) == "", "a node without a disk needs none"


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


# The number of passes in a round of files, and the bytes that it reports as left.


MEBI = 1 << 20


class Passes(TreeSender):
    """A sender whose passes send so much, one after the other."""

    def __init__(self, *sent: int) -> None:
        self.left, self._again = list(sent), 0.0
        self.advance: Callable[[], object] = lambda: None

    def _pass(self, command: str, bound: StallTimeout) -> int:
        assert command == "round"
        self.advance()
        return self.left.pop(0)

    def close(self) -> None:
        """It has no program."""


@pytest.mark.parametrize(
    ("sent", "dirty", "passes"),
    [
        ((MEBI,), 0, 1),
        ((64 * MEBI, 100), 0, 2),
        ((64 * MEBI, 32 * MEBI, 16 * MEBI, MEBI), 0, 4),
        ((64 * MEBI, 32 * MEBI, 16 * MEBI, 8 * MEBI), 8 * MEBI, 4),
        ((64 * MEBI, 33 * MEBI), 33 * MEBI, 2),
        ((64 * MEBI, 20 * MEBI, 19 * MEBI), 19 * MEBI, 3),
    ],
)
def test_a_round_goes_on_while_each_pass_sends_half_of_the_one_before(
    sent: tuple[int, ...], dirty: int, passes: int
) -> None:
    sender = Passes(*sent, 77, 77, 77)
    assert sender.round(StallTimeout("files", 1.0, 1.0)) == dirty
    assert len(sender.left) == len(sent) - passes + 3


def test_files_that_hardly_change_are_not_read_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, clock = Passes(2 * MEBI, 100, 100, 2 * MEBI, 2 * MEBI), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def go_on(seconds: float) -> None:
        clock[0] += seconds

    sender.advance = lambda: go_on(0.3)
    found = []
    for pause in (0.0, 0.0, 0.2, 0.2, 0.3):
        go_on(pause)
        found.append((sender.round(StallTimeout("files", 1.0, 1.0)), len(sender.left)))
    assert found == [(0, 3), (0, 3), (0, 3), (0, 2), (2 * MEBI, 0)]
