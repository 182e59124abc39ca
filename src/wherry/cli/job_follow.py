"""Follows a job to its end: passes standard input to it, prints its output, and has its exit code."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.cli.job_output import emit_streams, empty_streams, write_chunk
from wherry.cli.output import Output, say
from wherry.client import Client

if TYPE_CHECKING:
    from wherry.model.records import Job

_INTERRUPTED = 130
_INPUT = 64 * 2**10
"""Bytes of standard input that are sent at once."""
_GATHER = 0.25
"""Seconds between two looks for output: reading each line at once would take the ranks' processors."""


def follow(
    client: Client, job: Job, output: Output, read: Callable[[], bytes] | None = None, gather: float = _GATHER
) -> int:
    """The exit code of a job that was started just now. What `read` returns is its input, until b"", the end; Ctrl-C
    ends the job."""
    kept, seen = empty_streams(), 0
    try:
        if client.interrupted:  # while the job was started, and too late for that to be cancelled
            raise KeyboardInterrupt
        if read:
            threading.Thread(target=send_input, args=(job.id, read), daemon=True).start()
        for chunk in client.output(job.id, gather=gather):
            seen += 1
            write_chunk(chunk, kept, output)
        job = client.job(job.id)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal is gone
            say(f"ending job {job.id}")
        client.cancel_job(job.id)
        with suppress(OSError):
            for chunk in list(client.output(job.id, follow=False))[seen:]:
                write_chunk(chunk, kept, output)
        return _INTERRUPTED
    except Refused as error:
        if error.code is not Code.TAKEN_DOWN:
            raise
        raise Failed(error.code, f"job {job.id} was ended", error.why or error.what, "wherry up FILE") from None
    if output == "json":
        emit_streams(job, kept)
    return exit_code(job)


def has_input() -> bool:
    """True when standard input is a file or a pipe. A terminal is not read: it would stop a background job."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def send_input(id: str, read: Callable[[], bytes]) -> None:
    """Sends what `read` returns to the job until either ends."""
    try:
        with Client() as client:
            client.feed(id, read)
    except WherryError as error:
        if error.code not in (Code.WRONG_STATE, Code.NOT_FOUND):  # the job has ended
            say(f"job {id} gets no more input: {error}")


def read_input() -> bytes:
    """A piece of standard input. An error ends the input: without an end the job would wait for it forever."""
    try:
        return os.read(0, _INPUT)
    except OSError as error:
        say(f"standard input cannot be read on: {error.strerror}")
        return b""


def say_to_terminal(text: str) -> None:
    """Prints progress of the start to a terminal only: a redirected standard error is the program's alone."""
    if sys.stderr.isatty():
        say(text)


def exit_code(job: Job) -> int:
    """That of a job that has ended; says why it failed."""
    if job.exit_code is None:
        why = job.reason or f"it is {job.state}"
        raise Failed(Code.JOB_FAILED, f"job {job.id} did not end by itself", why, f"wherry job show {job.id}")
    if job.exit_code == Code.TAKEN_DOWN.exit_code and str(job.state) == "cancelled":
        raise Failed(Code.TAKEN_DOWN, f"job {job.id} was ended", job.reason, "wherry up FILE")
    if str(job.state) == "failed":
        say(f"error {Code.JOB_FAILED}: job {job.id} failed\n  why: {job.reason}\n  next: {job.next}")
    elif job.exit_code and job.reason:
        say(job.reason)
    return job.exit_code
