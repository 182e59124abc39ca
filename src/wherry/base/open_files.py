"""The limit on open files (RLIMIT_NOFILE) of a process that serves others, and its limit at the start."""

from __future__ import annotations

import resource

_MAX_FILES = 65536
"""More than a daemon needs of the largest fabric. A hard limit may be 2^30, which programs that close every number
below their limit, as some do when they start, would take minutes for: they inherit this one."""
_started_with: int | None = None


def raise_limit() -> None:
    """Raises this process's soft limit, which most shells set to 1024, as far as it may and is of use."""
    global _started_with
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # neither is infinite: fs.nr_open bounds both
    if soft < min(hard, _MAX_FILES):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _MAX_FILES), hard))
        _started_with = soft


def limits() -> tuple[int, int]:
    """Soft and hard limit for programs of users: this process's limits at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if _started_with is None else _started_with, hard
