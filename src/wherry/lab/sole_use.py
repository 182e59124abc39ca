"""A study, a benchmark and the demo each have their instance to themselves."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import instance

_LOCKS = Path("/run")


@contextmanager
def sole_use() -> Iterator[None]:
    """Excludes a second measurement in the selected instance while the block runs. It would change this one's clusters,
    disturb its measurements, and take the instance down at its own end.

    The lock file stays: if it were unlinked, a process that opened it before and another that recreated it would lock
    different files, and both would run.

    Raises:
        Refused: WRONG_STATE if there is one.
    """
    name = instance().name
    with (_LOCKS / f"wherry-lab-{name}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another study, benchmark or demo runs in the instance {name}"
            raise Refused(Code.WRONG_STATE, what, "two would measure each other", "wait for it") from None
        yield
