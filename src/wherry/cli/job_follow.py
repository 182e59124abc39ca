"""Follows a job to its end: passes standard input to it, prints its output, and has its exit code."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from wherry.base import interrupts
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.wait import readable
from wherry.cli.job_output import ReaderGone, emit_streams, empty_streams, write_chunk
from wherry.cli.output import Output, say
from wherry.cli.streams import READER_GONE, Unwritable
from wherry.client import Client
from wherry.client.client import Taken

if TYPE_CHECKING:
    from wherry.model.records import Job

_INTERRUPTED = 130
_PASSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Signals to the command that its ranks get, as with the launchers of MPIs."""
Signals = SimpleQueue[str]
"""Names without SIG."""
_INPUT = 64 * 2**10
"""Bytes of standard input that are sent at once."""
_GATHER = 0.25
"""Seconds between two looks for output: reading each line at once would take the ranks' processors."""
_POLL_INTERVAL = 0.2
"""Seconds between two looks whether the command is in the foreground of its terminal again."""
GRACE = 5.0
"""Seconds that ranks have to end when the command gets SIGTERM."""


def follow(
    client: Client,
    job: Job,
    output: Output,
    read: Callable[[], bytes] | None = None,
    gather: float = _GATHER,
    grace: float = GRACE,
    came: Signals | None = None,
) -> int:
    """The exit code of a job that was started just now. The result of `read` is its input, until b"", the end. Its
    ranks get the signals that `came`, and all later ones.

    Ctrl-C ends the job as its launcher does; SIGTERM and SIGHUP reach the ranks as SIGTERM, who have so many seconds of
    `grace`. The job ends, too, when nobody reads the output any more, or when it cannot be written.
    """
    kept, taken = empty_streams(), Taken()
    try:
        if client.interrupted:  # while the job was started, and too late for that to be cancelled
            raise KeyboardInterrupt
        if read:
            threading.Thread(target=send_input, args=(job.id, read), daemon=True).start()
        if came is not None:
            threading.Thread(target=_pass_signals, args=(job.id, came), daemon=True).start()
        for chunk in client.output(job.id, gather=gather, taken=taken):
            write_chunk(chunk, kept, output, taken)
        job = client.job(job.id)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal is gone
            say(f"ending job {job.id}")
        client.cancel_job(job.id, grace=grace if interrupts.was_terminated() else None)
        with suppress(OSError, Failed, ReaderGone):
            for chunk in client.output(job.id, follow=False, taken=taken):
                write_chunk(chunk, kept, output, taken)
        return _INTERRUPTED
    except ReaderGone:
        client.cancel_job(job.id)
        return READER_GONE
    except Unwritable:
        with suppress(WherryError):  # the first error has more details
            client.cancel_job(job.id)
        raise
    except Refused as error:
        if error.code is not Code.TAKEN_DOWN:
            raise
        raise Failed(error.code, f"job {job.id} was ended", error.why or error.what, "wherry up FILE") from None
    if output == "json":
        emit_streams(job, kept)
    return exit_code(job)


@contextmanager
def job_signals() -> Iterator[Signals]:
    """In the block signals that launchers pass on to ranks do not end the command: their names are in the queue."""
    came: Signals = SimpleQueue()
    with interrupts.received(_PASSED, lambda number: came.put(signal.Signals(number).name.removeprefix("SIG"))):
        yield came


def _pass_signals(id: str, came: Signals) -> None:
    while True:
        name = came.get()
        with _told(f"SIG{name} did not reach job {id}"), Client() as client:
            client.signal_job(id, name)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Says that it failed, unless the job has ended."""
    try:
        yield
    except WherryError as error:
        if error.code not in (Code.WRONG_STATE, Code.NOT_FOUND):
            say(f"{what}: {error}")


def has_input() -> bool:
    """True when something may come from standard input: it is not closed, and neither /dev/null nor a directory."""
    try:
        about = os.fstat(0)
    except OSError:  # closed
        return False
    return not stat.S_ISDIR(about.st_mode) and about.st_rdev != os.stat(os.devnull).st_rdev


def send_input(id: str, read: Callable[[], bytes]) -> None:
    """Sends the results of `read` to the job until either ends."""
    with _told(f"job {id} gets no more input"), Client() as client:
        client.feed(id, read)


def read_input() -> bytes:
    """A piece of standard input. An error ends the input: without an end the job would wait for it forever. A terminal
    is read only while the command is in its foreground: it would stop a background job."""
    try:
        while os.isatty(0) and not (readable(0, _POLL_INTERVAL) and os.tcgetpgrp(0) == os.getpgrp()):
            if os.tcgetpgrp(0) != os.getpgrp():
                time.sleep(_POLL_INTERVAL)
        return os.read(0, _INPUT)
    except OSError as error:
        say(f"standard input cannot be read on: {error.strerror}")
        return b""


def say_to_terminal(text: str) -> None:
    """Prints progress of the start to a terminal only: elsewhere standard error is the program's, but for warnings."""
    if sys.stderr.isatty() or text.startswith("warning: "):
        say(text)


def exit_code(job: Job) -> int:
    """The exit code of a job that has ended; prints why it failed."""
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
