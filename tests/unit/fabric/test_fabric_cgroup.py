"""How the processes of a cgroup are killed: by v2 as a whole, by v1 one by one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from wherry.fabric.cgroup import Cgroup, Layout


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that were sent SIGKILL."""
    found, held = list[int](), dict[int, int]()

    def hold(pid: int) -> int:
        file = os.open("/dev/null", os.O_RDONLY)
        held[file] = pid
        return file

    def kill(file: int, number: int) -> None:
        assert number == signal.SIGKILL
        os.fstat(file)
        found.append(held[file])

    monkeypatch.setattr(os, "pidfd_open", hold)
    monkeypatch.setattr(signal, "pidfd_send_signal", kill)
    return found


def hierarchy(root: Path, *pids: int, kill: bool = False) -> Path:
    """One with the cgroup `node` and a child of it, each with some of these processes."""
    child = root / "node" / "below"
    child.mkdir(parents=True)
    (root / "node" / "cgroup.procs").write_text(f"{pids[0]}\n")
    (child / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids[1:]))
    if kill:
        (root / "node" / "cgroup.kill").write_text("")
    return root


def v2(root: Path, *controllers: str) -> Layout:
    return Layout({}, root, frozenset(controllers))


def test_of_v2_no_process_is_killed_by_its_number(tmp_path: Path, killed: list[int]) -> None:
    """It is listed before cgroup.kill, behind which the number may be another process's."""
    group = Cgroup("node", v2(hierarchy(tmp_path, 7, 8, kill=True), "freezer", "memory"))
    assert not group.kill_all()
    assert (tmp_path / "node" / "cgroup.kill").read_text() == "1" and killed == []


def test_of_v1_each_process_is_killed(tmp_path: Path, killed: list[int]) -> None:
    group = Cgroup("node", Layout({"freezer": hierarchy(tmp_path, 7, 8)}))
    assert not group.kill_all() and killed == [7, 8]
    assert (tmp_path / "node" / "freezer.state").read_text() == "THAWED"


def test_a_number_that_is_listed_no_more_is_another_process_by_now(
    tmp_path: Path, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    procs, hold = hierarchy(tmp_path, 7, 8) / "node" / "below" / "cgroup.procs", os.pidfd_open

    def late(pid: int) -> int:
        if pid == 8:
            procs.write_text("9\n")
        return hold(pid)

    monkeypatch.setattr(os, "pidfd_open", late)
    group = Cgroup("node", Layout({"freezer": tmp_path}))
    assert not group.kill_all() and killed == [7]
    assert not group.kill_all() and killed == [7, 7, 9]


def test_of_both_what_v1_lists_is_killed_by_its_number(tmp_path: Path, killed: list[int]) -> None:
    """A process may be in one hierarchy only."""
    memory = hierarchy(tmp_path / "memory", 8, 9)
    both = Layout({"memory": memory}, hierarchy(tmp_path / "unified", 7, 8, kill=True), frozenset({"freezer"}))
    assert not Cgroup("node", both).kill_all()
    assert killed == [8, 9] and (tmp_path / "unified" / "node" / "cgroup.kill").read_text() == "1"


def test_of_v2_before_linux_5_14_each_process_is_killed(tmp_path: Path, killed: list[int]) -> None:
    """It has no cgroup.kill."""
    root = hierarchy(tmp_path, 7, 8)
    (root / "node" / "cgroup.kill").mkdir()  # so that it cannot be written, as where it is not
    assert not Cgroup("node", v2(root, "freezer")).kill_all() and killed == [7, 8]
