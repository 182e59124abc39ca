"""The only clock of tests: waiting for things that must happen, and a bound for things that must not hang.

No test measures a time. A bound here is for things that would never come, or hours later, if the product were wrong;
it grows with the machine's slowness and load, and is never below a minute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")
_PAUSE = 0.005  # seconds between two looks
_COUNTED, _QUICK = 200_000, 0.02  # a loop, and the seconds of processor and waiting that it takes on a quick, idle core


def bound(seconds: float = 60.0) -> float:
    """The seconds after which a test takes it that something will not come: at least a minute, and more where this
    machine is slow (measured once) or busy (PSI of the last ten seconds): at most sixteen times as long. Longer, too,
    where a run has processes stand (scripts/test-stopped)."""
    return max(60.0, seconds) * _slowness() * (1 + 3 * _starved()) * int(os.environ.get("TESTS_WAIT_LONGER", "1"))


def until(look: Callable[[], Value], what: str | Callable[[], str] = "", seconds: float = 60.0) -> Value:
    """Looks until it finds something true, and returns that; fails after bound(seconds) with the awaited thing: a text,
    or a function that is then called."""
    end = time.monotonic() + bound(seconds)
    while not (found := look()):
        assert time.monotonic() < end, f"it did not come: {what() if callable(what) else what or look}"
        time.sleep(_PAUSE)
    return found


@contextmanager
def no_hang(seconds: float = 60.0) -> Iterator[None]:
    """The block must end within bound(seconds). For things that take far longer when wrong; not a measurement."""
    began = time.monotonic()
    yield
    took, longest = time.monotonic() - began, bound(seconds)
    assert took < longest, f"it took {took:.0f} s, where {longest:.0f} s are enough"


@cache
def _slowness() -> float:
    """How many times longer than on a quick, idle core a loop takes here, now: between 1 and 4."""
    began = time.perf_counter()
    for _ in range(_COUNTED):
        pass
    return min(4.0, max(1.0, (time.perf_counter() - began) / _QUICK))


def _starved() -> float:
    """The share of the last ten seconds in which some task waited for a processor; 0 where the kernel has no PSI."""
    try:
        return float(Path("/proc/pressure/cpu").read_text().partition("avg10=")[2].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return 0.0
