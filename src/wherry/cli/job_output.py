"""The output of a job, as commands show it."""

from __future__ import annotations

import os
import select
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from wherry.base.interrupts import interrupts_held
from wherry.cli.output import emit
from wherry.cli.streams import unwritable
from wherry.client.client import Taken

if TYPE_CHECKING:
    from wherry.client.client import Chunk
    from wherry.model.records import Job

_PIECE = select.PIPE_BUF
"""Bytes that a pipe takes at once when it takes any, so that no interrupt comes while some of them are written."""
_FILE_PIECE = 1 << 20


class ReaderGone(Exception):
    """The reader of a stream of the command has ended."""


def empty_streams() -> dict[str, bytearray]:
    return {"stdout": bytearray(), "stderr": bytearray()}


def emit_streams(job: Job, kept: dict[str, bytearray]) -> None:
    streams = {stream: bytes(data).decode(errors="replace") for stream, data in kept.items()}
    emit("json", "run", {"job": job, **streams}, lambda: None)


def write_chunk(chunk: Chunk, kept: dict[str, bytearray], output: str, taken: Taken) -> None:
    """Writes the rest of a chunk, or keeps it for JSON. Whenever an interrupt comes, `taken` has the number of bytes
    written. ReaderGone when nobody reads the stream any more, Unwritable when it takes nothing."""
    stream, _, data = chunk
    if output == "json":
        with interrupts_held():
            kept[stream] += data
            taken.chunks += 1
        return
    target = sys.stdout if stream == "stdout" else sys.stderr
    try:
        _write(target, data, taken)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise unwritable("output" if stream == "stdout" else "error", error) from None
    with interrupts_held():
        taken.chunks, taken.bytes = taken.chunks + 1, 0


def _write(target: TextIO, data: bytes, taken: Taken) -> None:
    target.flush()
    fd = target.fileno()
    piece = _FILE_PIECE if stat.S_ISREG(os.fstat(fd).st_mode) else _PIECE
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while taken.bytes < len(data):
        poll.poll()  # an interrupt may come here, however long the reader takes
        with interrupts_held(), suppress(BlockingIOError):
            taken.bytes += os.write(fd, data[taken.bytes : taken.bytes + piece])
