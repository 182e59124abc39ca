"""A process chooses its own name, 15 bytes: code that reads /proc as root takes it neither for text nor for a line."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import waiting
from wherry.fabric.cgroup import read_layout
from wherry.job.holder_files import start_time
from wherry.node.container import file_locks, limits, processes
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
        assert f" {pid} " in processes.doings([pid]) and "\x0b" not in processes.doings([pid])


def test_what_processes_do_is_told_of_the_busiest() -> None:
    with named(b"rank (1) x") as pid:
        os.kill(pid, signal.SIGSTOP)
        waiting.until(lambda: f"rank (1) x {pid} T 0." in processes.doings([pid]), "that it stands")
        busiest, more = processes.doings([pid, os.getpid(), 1], 1).split(" and ")
        assert f" {os.getpid()} " in busiest or " 1 " in busiest
        assert more == "2 more"
    assert processes.doings([pid]) == ""


def test_names_of_mounts_are_no_lines_either() -> None:
    lines = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape").split("\n")
    odd = "99 1 0:99 / /home/me/a\x0bb\udcff rw,nosuid - fuse.me me rw"
    assert read_layout("\n".join([odd, *lines])) == read_layout("\n".join(lines))
    assert file_locks._mounts([os.getpid()])


_TRACER = "import ctypes, sys; print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True); input()"


@pytest.mark.skipif(os.geteuid() != 0, reason="PID namespaces are made by root")
def test_a_first_process_that_waits_for_the_others_to_die_is_dying() -> None:
    """A process that a tracer has not reaped yet stands for a process with much memory to free."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "sh", "-c", "sleep 100; :"]) as launcher:
        first = only_child(launcher.pid)
        second, status = only_child(first), Path(f"/proc/{first}/status")
        with subprocess.Popen(
            [sys.executable, "-c", _TRACER, str(second)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as tracer:
            assert tracer.stdin and tracer.stdout and tracer.stdout.readline() == b"0\n"
            assert not processes.is_dying(first)
            os.kill(first, signal.SIGKILL)
            waiting.until(lambda: processes.is_dying(first), "that it is dying")
            waiting.until(lambda: b"\nSigPnd:\t0000000000000000\n" in status.read_bytes(), "its taking of the signal")
            assert status.exists() and processes.is_dying(first)
            tracer.stdin.close()
        waiting.until(lambda: not status.exists(), "its end")


def only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(waiting.until(children.read_text, "its child"))


# The limits of a node's processes leave room for a restore.


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((1024, 1048576), (1024, 1047552)),
        ((20000, 20000), (18976, 18976)),
        ((1024, 1024), None),
    ],
)
def test_files_that_a_node_may_open(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: ours}.get)
    expected = [{"type": "RLIMIT_NOFILE", "soft": theirs[0], "hard": theirs[1]}] if theirs else []
    assert limits.open_files() == expected
