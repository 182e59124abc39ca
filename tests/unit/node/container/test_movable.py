"""Refusals before a container is moved, while its processes continue."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import waiting
from wherry.base.errors import Failed
from wherry.node.container import amx, messages, movable
from wherry.node.container.processes import passing_state

PROGRAM = """
import ctypes, os
queue, ends = ctypes.CDLL(None).inotify_init(), os.pipe2(os.O_DIRECT)
print(queue, flush=True)
input()
os.close(queue)
print("closed", flush=True)
input()
"""
"""Holds a queue of inotify and a pipe in packet mode; closes the queue at a line of input."""


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as program:
        assert program.stdin and program.stdout
        queue, really, closed = int(program.stdout.readline()), movable.borrowed, list[int]()

        @contextmanager
        def late(pid: int, descriptor: int) -> Iterator[int]:
            if descriptor == queue and not closed:
                assert program.stdin and program.stdout
                program.stdin.write("\n")
                assert program.stdout.readline() == "closed\n"
                closed.append(queue)
            with really(pid, descriptor) as file:
                yield file

        monkeypatch.setattr(movable, "borrowed", late)
        try:
            assert "packet mode" in movable.move_obstacle([program.pid]) and closed
        finally:
            program.kill()


LEADERLESS = """
import ctypes, os, sys, threading
def wait():
    sys.stdin.readline()
    os._exit(0)
threading.Thread(target=wait).start()
print(flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


def test_a_process_whose_main_thread_has_ended_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", LEADERLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin and program.stdout
        program.stdout.readline()
        waiting.until(lambda: passing_state(program.pid), "the end of its main thread")
        monkeypatch.setattr(movable, "_EXITS", 0.1)
        assert "its main thread has ended" in movable.move_obstacle([program.pid])

        def look(_: float) -> None:
            program.kill()
            program.wait()

        monkeypatch.setattr(movable, "time", SimpleNamespace(sleep=look, monotonic=lambda: 0.0))
        assert not movable.move_obstacle([program.pid])


@pytest.mark.parametrize("everything", [False, True])
def test_a_socket_in_a_message_at_itself_is_refused(everything: bool) -> None:
    """Also when another socket is between."""
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [there.fileno()])
        found = movable.message_obstacle(os.getpid(), there.fileno(), [], [], everything)
        assert found.startswith("has sent a Unix socket, in a message at itself, in a message"), found
        assert [place for place, _ in messages.everything_at(os.getpid(), there.fileno())] == [(0,)]
        there.recv(1)
    other, first = socket.socketpair(), socket.socketpair()
    with other[0], other[1], first[0], first[1]:
        socket.send_fds(first[0], [b"x"], [other[1].fileno()])
        assert not movable.message_obstacle(os.getpid(), first[1].fileno(), [], [], everything)
        socket.send_fds(other[0], [b"x"], [first[1].fileno()])
        assert "at itself" in movable.message_obstacle(os.getpid(), first[1].fileno(), [], [], everything)


def test_sockets_in_messages_at_many_others_are_looked_at_once() -> None:
    """By all ways there would be 20 to the power of 6 looks."""
    pairs = [socket.socketpair() for _ in range(7)]
    for (_, inner), (outer, _) in itertools.pairwise(pairs):
        socket.send_fds(outer, [b"x"], [inner.fileno()] * 20)
    last = pairs[-1][1].fileno()
    assert movable.message_obstacle(os.getpid(), last, [], [], everything=True) == ""
    assert len(list(messages.everything_at(os.getpid(), last))) == 6 * 20
    for end in itertools.chain(*pairs):
        end.close()


def test_sockets_too_deep_in_messages_are_refused() -> None:
    pairs = [socket.socketpair() for _ in range(messages.MAX_DEPTH + 3)]
    try:
        for (_, inner), (outer, _) in itertools.pairwise(pairs):
            socket.send_fds(outer, [b"x"], [inner.fileno()])
    except OSError as error:  # ETOOMANYREFS of kernels before 6.10
        pytest.skip(f"this kernel refuses so deep a nest: {error}")
    else:
        found = movable.message_obstacle(os.getpid(), pairs[-1][1].fileno(), [], [])
        assert "in messages at more than 8 others" in found
    finally:
        for end in itertools.chain(*pairs):
            end.close()


DEVICES = ("/dev/fuse", "/dev/net/tun", "/dev/kmsg", "/dev/loop-control")
HOLDER = """
import os, sys
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
print("ready", flush=True)
input()
"""


def test_a_device_that_not_every_node_has_is_refused() -> None:
    for path in DEVICES:
        if os.access(path, os.R_OK):
            break
    else:
        pytest.skip("no such device can be opened")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, "/dev/null", "/dev/urandom", "/dev/zero", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout and program.stdout.readline() == "ready\n"
        try:
            (obstacle,) = movable.move_obstacles([program.pid])
            assert f"holds the device {path} (descriptor " in obstacle
        finally:
            program.kill()


FOR_32_BITS = """
.globl _start
_start:
    movl $29, %eax  # pause
    int $0x80
    jmp _start
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler")
def test_a_program_for_32_bits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pause.s").write_text(FOR_32_BITS)
    built = tmp_path / "pause"
    subprocess.run(["gcc", "-m32", "-nostdlib", "-static", "-o", built, tmp_path / "pause.s"], check=True)
    try:
        program = subprocess.Popen([built])
    except OSError:
        pytest.skip("this kernel runs no programs for 32 bits")
    with program:
        try:
            assert movable.move_obstacle([program.pid]).endswith("is a program for 32 bits, which CRIU cannot move")
        finally:
            program.kill()


# Permissions to use AMX are asked for only where the machine has it.


TILES, OTHERS = 1 << 18, 0x2E7


def answering(monkeypatch: pytest.MonkeyPatch, mask: int, answer: str | Exception) -> list[list[str]]:
    """The words with which the program was started that has this answer, on a machine with these features."""
    started = list[list[str]]()

    def run(words: list[str], **_: object) -> SimpleNamespace:
        started.append(words)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(amx, "supported", lambda: mask)
    monkeypatch.setattr(amx, "native_program", lambda name: f"/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_nobody_is_asked_where_there_is_no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    started = answering(monkeypatch, OTHERS, "permitted 1")
    assert not list(amx.users([1, 2])) and not started


def test_those_that_have_the_permission_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    started = answering(monkeypatch, TILES | OTHERS, "permitted 2\nunknown 3 none of its threads stops\n")
    assert not list(amx.users([])) and not started
    (two, may), (three, unknown) = amx.users([1, 2, 3])
    assert started == [["/wherry-pager", "permitted", "18", "1", "2", "3"]]
    assert (two, three) == (2, 3) and unknown.endswith("does not carry: none of its threads stops")
    assert "may use AMX" in may and "ONEDNN_MAX_CPU_ISA=" in may


def test_a_program_that_fails_leaves_nothing_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, TILES, subprocess.TimeoutExpired("wherry-pager", 60.0))
    with pytest.raises(Failed, match="could not be asked whether they use AMX"):
        movable.require_no_amx([1])
