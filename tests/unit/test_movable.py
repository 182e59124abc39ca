"""What is refused before a container is moved, while its processes go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wherry.node.container import movable

PROGRAM = """
import ctypes, os
queue, ends = ctypes.CDLL(None).inotify_init(), os.pipe2(os.O_DIRECT)
print(queue, flush=True)
input()
os.close(queue)
print("closed", flush=True)
input()
"""
"""Holds a queue of inotify and a pipe in packet mode; closes the queue when told to."""


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
