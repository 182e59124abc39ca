"""Reads the files that `wherry-launch` writes in a job's directory, and writes the program's input.

The formats: native/launch/job_files.h and job_input.h. Invariants: only the holder writes the files that are read here,
and readers take whole frames only, so they may read at any time; input carries its offset, so writing it twice is
harmless.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.wait import readable

Chunk = tuple[str, float, bytes]
"""Stream (`stdout` or `stderr`), CLOCK_REALTIME seconds, bytes."""

HEADER = struct.Struct(">BQI")
STREAMS = {1: "stdout", 2: "stderr"}
FRAME_LIMIT = 1 << 20  # bytes; the holder writes at most 64 KiB at once

_INPUT = struct.Struct(">QH")
_INPUT_BYTES = select.PIPE_BUF - _INPUT.size
"""Maximum of input bytes in a frame: writes up to PIPE_BUF are atomic."""

_NOISE = re.compile(rb"\[[^\]\n]+\] plm:[rs]sh: Warning: setpgid\(\d+,\d+\) failed in parent with errno=[^\n]*\(13\)\n")
"""A harmless warning that Open MPI prints when its agent started before mpirun had set the process group."""


_GRACE = 30.0
"""Seconds; the holder itself kills the launcher 5 s after the first signal, and writes how it ended."""


@dataclass(frozen=True)
class Exit:
    """The launcher's exit code (128 + signal), time of its end, bytes of output that could not be stored, and whether a
    signal was passed to it before it ended."""

    code: int
    ended: float
    lost: int
    stopped: bool = False


@dataclass(frozen=True)
class Holder:
    """The process that holds a job. Its start time (ticks since boot) distinguishes it from a later one with its
    PID."""

    pid: int
    start: int

    def open(self) -> int | None:
        """A pidfd, to be closed by the caller; None when the holder has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        if start_time(self.pid) != self.start:
            os.close(fd)
            return None
        return fd

    def alive(self) -> bool:
        """True while the holder runs."""
        fd = self.open()
        if fd is not None:
            os.close(fd)
        return fd is not None


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when the process does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def read_holder(directory: Path) -> Holder | None:
    """The holder; None when it has not written its file yet, or that is damaged."""
    try:
        pid, start = (directory / "pid").read_text().split()
        return Holder(int(pid), int(start))
    except (FileNotFoundError, ValueError):
        return None


def end_holder(directory: Path, *gently: signal.Signals) -> None:
    """Ends the job's holder and with it the launcher: first by `gently`, each with a grace period, then SIGKILL."""
    holder = read_holder(directory)
    fd = holder.open() if holder else None
    if fd is None:
        return
    try:
        for number in (*gently, signal.SIGKILL):
            signal.pidfd_send_signal(fd, number)
            if readable(fd, _GRACE):
                break
    except ProcessLookupError:
        pass  # it ended by itself
    finally:
        os.close(fd)


def await_end(directory: Path, seconds: float) -> None:
    """Returns when the job's holder has ended, or after so many seconds."""
    holder = read_holder(directory)
    fd = holder.open() if holder else None
    if fd is None:
        return
    try:
        readable(fd, max(0.0, seconds))
    finally:
        os.close(fd)


def read_exit(directory: Path) -> Exit | None:
    """How the job ended; None while it runs, or when its holder was killed, or the file is damaged."""
    try:
        facts = dict(line.split(" ", 1) for line in (directory / "exit").read_text().splitlines())
        code = int(facts["exit"]) if "exit" in facts else 128 + int(facts["signal"])
        return Exit(code, int(facts["ended"]) / 1e9, int(facts.get("lost", 0)), "stopped" in facts)
    except (FileNotFoundError, KeyError, ValueError):
        return None


def read_output(directory: Path, offset: int, limit: int) -> tuple[list[Chunk], int]:
    """Whole frames from `offset` on, until `limit` bytes are reached, and the offset of the next.

    Refused when no frame begins at `offset`; nothing when it is beyond the end.
    """
    chunks: list[Chunk] = []
    try:
        file = open(directory / "output", "rb")
    except FileNotFoundError:
        return [], offset
    with file:
        if offset > os.fstat(file.fileno()).st_size:
            return [], offset
        file.seek(offset)
        start = offset
        while offset - start < limit:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                break
            stream, when, length = HEADER.unpack(header)
            if stream not in STREAMS or length > FRAME_LIMIT:
                why = "an offset is 0 or the next offset of an earlier answer"
                raise Refused(Code.USAGE, f"no output begins at offset {offset}", why, "begin at offset 0")
            payload = file.read(length)
            if len(payload) < length:
                break
            if shown := _NOISE.sub(b"", payload):
                chunks.append((STREAMS[stream], when / 1e9, shown))
            offset += HEADER.size + length
    return chunks, offset


def read_tail(directory: Path, limit: int = 256 << 10) -> list[Chunk]:
    """The last whole frames of the output, of about `limit` bytes."""
    try:
        with open(directory / "output", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except FileNotFoundError:
        return []
    start = next((at for at in range(len(data)) if _frames_fit(data, at)), len(data))
    chunks: list[Chunk] = []
    while start < len(data):
        stream, when, length = HEADER.unpack_from(data, start)
        start += HEADER.size
        chunks.append((STREAMS[stream], when / 1e9, data[start : start + length]))
        start += length
    return chunks


def _frames_fit(data: bytes, at: int) -> bool:
    """True when frames follow each other from `at` to the end of the data."""
    while at < len(data):
        if len(data) - at < HEADER.size:
            return False
        stream, _, length = HEADER.unpack_from(data, at)
        if stream not in STREAMS or length > FRAME_LIMIT:
            return False
        at += HEADER.size + length
    return at == len(data)


def input_frames(offset: int, data: bytes, end: bool) -> Iterator[bytes]:
    """Frames of `data`, which begins at `offset` of the job's input, and with `end` of the end of input after it. Each
    is to be written at once."""
    for at in range(0, len(data), _INPUT_BYTES):
        part = data[at : at + _INPUT_BYTES]
        yield _INPUT.pack(offset + at, len(part)) + part
    if end:
        yield _INPUT.pack(offset + len(data), 0)


def write_input(directory: Path, offset: int, data: bytes, end: bool) -> tuple[int, bool] | None:
    """Writes `data`, which begins at `offset` of the job's input, and with `end` the end of input after it.

    Returns the offset up to which it was accepted, and whether the end was; the rest is accepted after the program has
    read. None when the job has no input or has ended.
    """
    try:
        fifo = os.open(directory / "input", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return None
        raise
    try:
        for frame in input_frames(offset, data, end):
            os.write(fifo, frame)
            offset += len(frame) - _INPUT.size
    except BlockingIOError:
        return offset, False
    except BrokenPipeError:
        return None
    finally:
        os.close(fifo)
    return offset, end
