"""wherry-pager send: system calls of processes that it tracks continue, and their timeouts are kept."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import test_pager_send
from test_pager_send import Sender, pids_of, start_in

import waiting
from wherry.fabric.cgroup import Cgroup

pytestmark = test_pager_send.pytestmark
programs, node = test_pager_send.programs, test_pager_send.node
PROBE = """
import ctypes, errno, json, os, select, signal, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
lasts = float(sys.argv[2])
second, word, kept = Time(int(lasts), int(lasts % 1 * 1e9)), ctypes.c_int(0), ctypes.create_string_buffer(64)
milliseconds = int(lasts * 1000)
reader, writer = os.pipe()
class Poll(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("got", ctypes.c_short)]
poll, epoll = Poll(reader, 1, 0), select.epoll()
epoll.register(reader, 1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signals = ctypes.create_string_buffer(struct.pack("QQ", 1 << signal.SIGUSR1 - 1, 0) + bytes(112))
by = ctypes.byref
calls = {
    "nanosleep": lambda: libc.nanosleep(by(second), None),
    "clock_nanosleep": lambda: libc.clock_nanosleep(1, 0, by(second), None),
    "poll": lambda: libc.poll(by(poll), 1, milliseconds),
    "ppoll": lambda: libc.ppoll(by(poll), 1, by(second), signals),
    "select": lambda: libc.select(0, None, None, None, by(Time(int(lasts), int(lasts % 1 * 1e6)))),
    "epoll_wait": lambda: libc.epoll_wait(epoll.fileno(), kept, 1, milliseconds),
    "epoll_pwait": lambda: libc.epoll_pwait(epoll.fileno(), kept, 1, milliseconds, signals),
    "futex": lambda: libc.syscall(202, by(word), 128, 0, by(second), None, 0),
    "sigtimedwait": lambda: libc.sigtimedwait(signals, None, by(second)),
    "read": lambda: libc.read(reader, kept, 1),
    "vfork": lambda: os.waitstatus_to_exitcode(libc.system(f"sleep {lasts}".encode())),
}
print("ready", flush=True)
os.read(int(sys.argv[3]), 1)
if sys.argv[1] == "read":
    threading.Timer(lasts, os.write, [writer, b"x"]).start()
began = time.monotonic()
ctypes.set_errno(0)
result = calls[sys.argv[1]]()
error = ctypes.get_errno()
print(json.dumps([result, error if result < 0 else 0, time.monotonic() - began]), flush=True)
time.sleep(600)
"""
EXPECTED = {"futex": [-1, errno.ETIMEDOUT], "sigtimedwait": [-1, errno.EAGAIN], "read": [1, 0]}
CALLS = "nanosleep clock_nanosleep poll ppoll select epoll_wait epoll_pwait futex sigtimedwait read vfork".split()


@contextmanager
def calling(node: Cgroup, seconds: float) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes that are within a call each, all at once."""
    begin, hold = os.pipe()
    words = {call: [sys.executable, "-c", PROBE, call, str(seconds), str(begin)] for call in CALLS}
    started = {call: start_in(node, words[call], stdout=subprocess.PIPE, pass_fds=[begin]) for call in CALLS}
    try:
        os.close(begin)
        for process in started.values():
            assert process.stdout and process.stdout.readline() == "ready\n"
        os.close(hold)
        for call, process in started.items():
            waiting.until(lambda pid=process.pid: is_within_call(pid, begin), call)  # type: ignore[misc]
        yield started
    finally:
        node.kill()
        for process in started.values():
            process.communicate()


def is_within_call(pid: int, begin: int) -> bool:
    """In another call than the read that waits for the beginning."""
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    return words[0] != "running" and words[:2] != ["0", hex(begin)]


def is_said(process: subprocess.Popen[str]) -> bool:
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_interrupted_system_calls_go_on(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    """On a busy machine they may end before the sender is there: then once more, with longer ones."""
    for seconds in (1.0, 5.0, 25.0):
        with calling(node, seconds) as started:
            sender = Sender(programs[0], node, tmp_path)
            assert int(sender.line()[1]) >= len(CALLS)
            for pid in pids_of(node):
                with suppress(FileNotFoundError):  # the shell of a call of the C library, at its end
                    assert not [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "userfaultfd" in os.readlink(fd)]
                    assert "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text()
            in_time = not any(map(is_said, started.values()))
            sender.ask("round")
            said = {call: process.stdout.readline() for call, process in started.items() if process.stdout}
            sender.end()
        found = {call: json.loads(line) for call, line in said.items()}
        results = {call: result[:2] for call, result in found.items()}
        assert results == {call: EXPECTED.get(call, [0, 0]) for call in CALLS}
        assert all(took > 0.9 * seconds for _, _, took in found.values()), found
        if in_time:
            return
    pytest.fail("the calls had all ended before the sender was there")
