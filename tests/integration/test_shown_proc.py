"""The lxcfs of an instance: started for its placements, found again, replaced when it died, gone with the last one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from wherry.fabric.recorded_process import RecordedProcess
from wherry.node.container import shown_proc
from wherry.node.container.shown_proc import FILES, ShownProc

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's"),
    pytest.mark.skipif(bool(shown_proc.obstacle()), reason=shown_proc.obstacle()),
]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[ShownProc]:
    made = ShownProc(tmp_path / "lxcfs")
    yield made
    made.remove()
    assert not made.directory.exists()


def pid(shown: ShownProc) -> int:
    found = RecordedProcess(shown.directory / "pid").pid()
    assert found is not None
    return found


def test_it_runs_while_a_placement_has_it(shown: ShownProc) -> None:
    shown.join("n-0@a1")
    first = pid(shown)
    assert shown.mounts() == {path: f"{shown.mount}{path}" for path in FILES} and shown.obstacle() == ""
    assert Path(f"{shown.mount}/proc/meminfo").read_text().startswith("MemTotal:")
    ShownProc(shown.directory).join("n-0@b1")  # as a later daemon does
    assert pid(shown) == first
    shown.leave("n-0@a1")
    assert pid(shown) == first
    shown.leave("n-0@b1")
    shown.leave("n-0@b1")
    assert not shown.directory.exists() and not os.path.exists(f"/proc/{first}/exe")
    assert shown.mounts() == {path: path for path in FILES}


def test_one_that_died_is_replaced_for_the_next_placement(shown: ShownProc) -> None:
    shown.join("n-0@a1")
    first = pid(shown)
    os.kill(first, signal.SIGKILL)
    waiting.until(lambda: shown.mounts() == {path: path for path in FILES}, "its end")
    shown.join("n-1@a1")
    assert pid(shown) != first and Path(f"{shown.mount}/proc/meminfo").read_text().startswith("MemTotal:")


def test_where_it_does_not_start_nodes_see_the_machines_files_and_the_reason_is_known(
    shown: ShownProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lxcfs.sh").write_text("#!/bin/sh\necho no fuse here >&2\nexit 1\n")
    (tmp_path / "lxcfs.sh").chmod(0o755)
    with monkeypatch.context() as other:
        other.setattr(shown_proc, "PROGRAM", str(tmp_path / "lxcfs.sh"))
        shown.join("n-0@a1")
    assert shown.obstacle() == "no fuse here" and shown.mounts() == {path: path for path in FILES}
    shown.join("n-0@a1")
    assert shown.obstacle() == "" and pid(shown)
