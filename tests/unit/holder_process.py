"""A process that has something open or mapped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HOLDS = "import os, sys; {body}; print('held', flush=True); sys.stdin.read()"


@contextmanager
def holder(body: str) -> Iterator[int]:
    """A process that holds something."""
    argv = [sys.executable, "-c", _HOLDS.format(body=body)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # pytest's is a file that is written
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate("")
