"""The command line without its start: each command is a fork of a process that has imported it.

A start costs half a second of a CPU, four times as much as most commands, and the system tests give more than a
thousand commands. Apart from the imports a forked command is the real one: a process of its own with its own arguments,
environment, directory, streams and exit. `World.start`, the tutorial, and commands in namespaces execute the program.

Invariant: the server has one thread and runs no command itself, so a fork of it is as good as a new interpreter.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

PROGRAM = Path(sys.executable).parent / "wherry"
_MODULES = ("cluster", "fabric", "files", "host", "job", "link", "move", "node", "op", "output", "status")
"""Of wherry.cli, what most commands import. Studies and benchmarks are not among them: numpy starts threads."""
_LARGEST = 1 << 18
"""Bytes of a request, most of which is the environment."""


def run(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """One command, as `subprocess.run` would; TimeoutExpired after so many seconds, when it has been killed."""
    request = json.dumps([list(words), str(directory), dict(environment)]).encode()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(_server()[0], [request], [out.fileno(), err.fileno(), theirs.fileno()])
            code = _followed(ours, words, seconds)
        texts = [_content(file) for file in (out, err)]
    return subprocess.CompletedProcess([str(PROGRAM), *words], code, *texts)


def _followed(command: socket.socket, words: Sequence[str], seconds: float) -> int:
    """The exit code of a command that has ended: it sends its process id, then its exit code, then closes its end."""
    said, deadline = b"", time.monotonic() + seconds
    while select.select([command], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (more := command.recv(64)):
            _, *code = map(int, said.split())
            return code[0] if code else -signal.SIGKILL
        said += more
    for pid in said.split()[:1]:
        os.kill(int(pid), signal.SIGKILL)
    raise subprocess.TimeoutExpired([str(PROGRAM), *words], seconds)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The control socket of the server, and the server, which ends when this process does. Its environment names no
    instance."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=kept,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours, server


def _serve(control: socket.socket) -> None:
    """Forks for each request, until the other end is closed."""
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # commands that have ended are reaped by the kernel
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _LARGEST, 3)
        if not request:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _command(*json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _command(words: list[str], directory: str, environment: dict[str, str], out: int, err: int, status: int) -> None:
    """Becomes the command, and ends with its exit code."""
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.set_inheritable(status, False)
    os.write(status, f"{os.getpid()} ".encode())
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(PROGRAM), *words]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        os.write(status, str(code).encode())


if __name__ == "__main__":
    from wherry.base.components import installed, load
    from wherry.cli.main import main

    sys.path.pop(0)  # this directory, which a command does not see
    for name in _MODULES:
        import_module(f"wherry.cli.{name}")
    for component in installed():
        for command in component.commands:
            load(command.place)
    _serve(socket.socket(fileno=int(sys.argv[1])))
