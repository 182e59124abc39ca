"""Commands that a study runs on this machine: their record, their output, their end.

Invariant: nothing of a command's process group is left when its run ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_OUTPUT = 64 << 20
"""Limit for a program's output in bytes; the rest is dropped."""


def record_command(directory: Path, argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Appends the command to the run's file `command`, quoted for a shell."""
    added = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    with (directory / "command").open("a") as file:
        file.write(" ".join([*added, shlex.join(argv)]) + "\n")


def end_session(child: subprocess.Popen[bytes]) -> None:
    """Terminates the launcher and its process group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def output_text(path: Path) -> str:
    """The output of a program in this file, up to the limit."""
    with path.open("rb") as file:
        return file.read(MAX_OUTPUT).decode(errors="replace")
