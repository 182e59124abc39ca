"""A process chooses its own name, 15 bytes: whoever reads /proc as root takes it neither for text nor for a line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wherry.fabric.cgroup import read_layout
from wherry.job.holder_files import start_time
from wherry.node.container import file_locks, processes
from wherry.node.container.fd_identity import inner_pid
from wherry.node.container.progress_bounds import work_of
from wherry.service import purge

NOT_UTF8 = b"pr\xc3\xb6gramm-mit-\xc3"
"""Cut off by the kernel within a letter, as a long name may be."""
TWO_LINES = b"\x0bNSpid: 9 1"
"""str.splitlines takes \\x0b, which the kernel does not escape, for the end of a line."""
_PROGRAM = "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1])); print(flush=True); input()"


@contextmanager
def named(name: bytes) -> Iterator[int]:
    """The PID of a process with this name."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, name.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/comm").read_bytes() == name[:15] + b"\n"
        yield process.pid
        process.kill()


@pytest.fixture
def group_of(monkeypatch: pytest.MonkeyPatch):
    """Makes a placement whose cgroup has these processes."""

    class Group:
        def __init__(self, pids: list[int]) -> None:
            self._pids = pids

        def pids(self) -> list[int]:
            return self._pids

    class Place:
        def __init__(self, *pids: int) -> None:
            self.cgroup = list(pids)

    monkeypatch.setattr(processes, "Cgroup", Group)
    return Place


@pytest.mark.parametrize("name", [NOT_UTF8, TWO_LINES])
def test_any_name_is_only_a_name(name: bytes, group_of) -> None:
    with named(name) as pid:
        assert processes.first_process(group_of(pid)) is None
        assert processes.tracer_of(pid) == 0
        assert inner_pid(pid) == pid
        assert work_of(lambda: [pid])()
        assert start_time(pid)
        assert not file_locks._has_ended(pid)
        assert file_locks._process_name(pid).startswith(f"process {pid} (")
        assert purge._command(pid)


def test_names_of_mounts_are_no_lines_either() -> None:
    lines = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape").split("\n")
    odd = "99 1 0:99 / /home/me/a\x0bb\udcff rw,nosuid - fuse.me me rw"
    assert read_layout("\n".join([odd, *lines])) == read_layout("\n".join(lines))
    assert file_locks._mounts([os.getpid()])
