"""A sample of a node's writes while it runs, for the forecast of its move (native/pager/sample.c).

Invariant: a node's writes are tracked by one program at a time, a sample's or a move's, as each would take the
protection of the other for its own. `tracking` is the lock: it is on the node's cgroup, which the node has for as long
as it runs, and ends with its last holder, the program of a killed daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.tracking import Tracking

SAMPLE_TIMEOUT, _AWAITED = 30.0, 60.0
"""Seconds after which a sample is given up, which is of a second or so; and for which a move waits for one to end."""
_POLL_INTERVAL = 0.01
log = logging.getLogger("wherry.node")

Written = tuple[tuple[float, int], ...]
"""By the seconds since a look, the bytes that were written."""


def take(group: Cgroup, seconds: float, how: Tracking | None = None) -> tuple[int, Written] | None:
    """Bytes of pageable memory, and its dirty pages within `seconds`. None when it cannot be seen, or is tracked
    already. `how` writes are found, None for the best way; those without write protection read some pages again and
    again, of 64 MiB at most."""
    try:
        lock = tracking(group)
    except Failed:
        return None
    if lock is None:
        return None
    try:
        return _taken(group, seconds, lock, how)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
        log.info("the writes of %s were not sampled: %s", group.name, said or error)
        return None
    finally:
        os.close(lock)


def _taken(group: Cgroup, seconds: float, lock: int, how: Tracking | None) -> tuple[int, Written]:
    named = ("--tracking", how) if how else ()
    words = ("sample", *named, "--tasks", group.freezer_procs_file(), "--seconds", f"{seconds:g}")
    done = subprocess.run(
        [str(native_program("wherry-pager")), *words],
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        timeout=SAMPLE_TIMEOUT,
        check=True,
    )
    present, *looks = [line.split()[1:] for line in done.stdout.splitlines()]
    return int(present[0]), lasting([(float(time) / 1e3, int(written)) for time, written in looks])


def lasting(looks: Sequence[tuple[float, int]]) -> Written:
    """The looks without the pages of a process that ended meanwhile: a later move does not meet them."""
    found, least = list[tuple[float, int]](), looks[-1][1] if looks else 0
    for seconds, written in reversed(looks):
        least = min(least, written)
        found.insert(0, (seconds, least))
    return tuple(found)


def tracking(group: Cgroup) -> int | None:
    """A descriptor that holds the lock of the node's tracking until it is closed; None when another one does. Failed
    when the node has ended."""
    try:
        lock = os.open(group.freezer_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Failed(Code.MOVE_FAILED, "the node has ended", error.strerror or str(error), "wherry status") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


@contextlib.contextmanager
def tracked(group: Cgroup) -> Iterator[None]:
    """Holds the lock of a node that a move tracks, after waiting for a sample to end. Failed when it does not."""
    deadline = time.monotonic() + _AWAITED
    while (lock := tracking(group)) is None:
        if time.monotonic() > deadline:
            raise Failed(Code.MOVE_FAILED, "another program tracks the node's writes", "", "repeat the command")
        time.sleep(_POLL_INTERVAL)
    try:
        yield
    finally:
        os.close(lock)
