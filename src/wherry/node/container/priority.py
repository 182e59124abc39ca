"""The CPU priority of a thread that runs a move."""

from __future__ import annotations

import os
import threading

NICE = -15
"""Inherited by all that the thread starts, so that other load prolongs the downtime less."""


class RaisedPriority:
    """Raises the calling thread's priority until `reset`. A caller that finds it raised leaves it to the first."""

    def __init__(self) -> None:
        self._original: tuple[int, int] | None = None
        """Thread id and original nice value."""

    def raise_it(self) -> None:
        """Raises the priority of this thread."""
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        if before > NICE:
            self._original = (thread, before)
            os.setpriority(os.PRIO_PROCESS, thread, NICE)

    def reset(self) -> None:
        """Restores the priority that `raise_it` found. Idempotent."""
        if self._original is not None:
            os.setpriority(os.PRIO_PROCESS, *self._original)
            self._original = None
