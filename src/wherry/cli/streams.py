"""Standard input, output and error of a command, whatever its caller made of them."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from wherry.base.errors import Code, Failed

READER_GONE = 141
"""Exit code of a program whose reader has ended, as in the shell: 128 + SIGPIPE."""
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of writing a standard stream."""


def open_closed() -> None:
    """Opens the standard streams that the caller closed, so that no file of ours becomes one of them: writing to
    standard output still fails, as for any program; standard error is lost."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


class Unwritable(Failed):
    """A stream of the command cannot be written."""


def unwritable(stream: str, error: OSError) -> Unwritable:
    """The error of standard output or error that could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "df -h, then repeat the command" if full else "repeat the command with its output in a file: > FILE"
    return Unwritable(Code.FAILED, f"standard {stream} cannot be written", error.strerror or str(error), remedy)


def discard_output() -> None:
    """Drops the rest of the data for standard output: Python would try to write it once more at its end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
