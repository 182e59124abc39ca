"""Waits until a file descriptor is readable, or a process has ended.

Invariant: poll(2), never select(2): select takes descriptors below 1024 only, and a daemon has one for each port.
"""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    """A pipe, socket or file."""

    def fileno(self) -> int: ...


def readable(file: int | HasFileno, seconds: float | None) -> bool:
    """True when the descriptor has data or is at its end, or when the process of a pidfd has ended, within `seconds`
    (None: without limit)."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
