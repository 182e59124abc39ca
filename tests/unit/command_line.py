"""The command line as a process of its own, at the instance of a test's service; also on a terminal."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rest_service import Here

import waiting
from wherry.base.wait import readable

Wherry = Callable[..., tuple[int, str, str]]
"""Runs a command with these words; returns exit code, standard output, standard error."""
_PROGRAM = """
import pathlib, sys
if tracer := sys.gettrace():  # coverage's lock stays locked when Ctrl-C comes while it is held
    tracer.lock_data = tracer.unlock_data = int
from wherry.base.paths import Instance
place = pathlib.Path(sys.argv.pop(1))
Instance.run = property(lambda _: place / "run")
Instance.state = property(lambda _: place / "state")
from wherry.cli.main import {main}
"""


def words_of(place: Here, *words: str, main: str = "main; main()") -> list[str]:
    """The command to execute; `main` completes the import from wherry.cli.main."""
    return [sys.executable, "-c", _PROGRAM.format(main=main), str(place.top), *words]


def start(place: Here, *words: str, **more: Any) -> subprocess.Popen[str]:
    """Starts a command, its output in pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words_of(place, *words), **{**pipes, **more})


class Terminal:
    """A command on a terminal, and its output there."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._decoded = codecs.getincrementaldecoder("utf-8")().decode  # a read may end within a character
        self.text = ""

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._master, text.encode())

    def wait_for(self, part: str) -> str:
        """Reads until `part` was printed since the last call, or the command has ended; returns the text."""
        read = ""
        while part not in read and readable(self._master, waiting.bound()):
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                break
            read += self._decoded(data)
        self.text += read
        assert part in read, read
        return read


@contextlib.contextmanager
def on_terminal(place: Here, *words: str, **environment: str) -> Iterator[Terminal]:
    """A command whose three streams are a terminal; it is killed at the end of the block."""
    with program_on_terminal(words_of(place, *words), **environment) as terminal:
        yield terminal


@contextlib.contextmanager
def program_on_terminal(command: list[str], **environment: str) -> Iterator[Terminal]:
    """Any program, as above."""
    master, slave = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables = {**kept, "TERM": "xterm", **environment}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
