"""Waiting for processes to be frozen, or to be gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from glob import iglob
from pathlib import Path

_LONGER = 6
"""Factor by which is waited longer for processes that wait for a processor."""


def poll(done: Callable[[], bool], timeout: float, starved: Callable[[], bool] = lambda: False) -> bool:
    """Looks until `done`; False when the time is up, which it is later while it is `starved`. Backs off from 0.2 ms by
    half to 20 ms. The last look began when the time was up: this process may have got no processor."""
    began, pause = time.monotonic(), 0.0002
    while True:
        waited = time.monotonic() - began
        if done():
            return True
        if waited > timeout and (waited > _LONGER * timeout or not starved()):
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def any_waits_for_a_processor(pids: Iterable[int]) -> bool:
    """Whether a thread of these processes is ready to run (proc(5)), so that it will be frozen as soon as it runs."""
    for pid in pids:
        for stat in iglob(f"/proc/{pid}/task/*/stat"):
            try:
                if Path(stat).read_text(errors="replace").rpartition(")")[2].split()[0] == "R":
                    return True
            except (OSError, IndexError):  # it has ended
                continue
    return False
