"""A thread of the daemon that runs a function every few seconds.

Invariant: the thread ends only when it is stopped; an exception of one run is logged, and the next run comes.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from wherry.base.errors import WherryError


class PeriodicTask(ABC):
    """The thread `name`, which calls `run_once` every `every` seconds."""

    def __init__(self, name: str, every: float) -> None:
        self.every = every
        self._log = logging.getLogger(f"wherry.{name}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> None:
        """The periodic work."""

    def close(self) -> None:  # noqa: B027 (most tasks hold nothing)
        """Releases the things that `run_once` holds; called by the thread itself when it ends."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; operations that it began continue."""
        stop_all([self], 10.0)

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.run_once()
            except WherryError as error:  # its object was removed, or is claimed by an operation
                self._log.info("%s", error)
            except Exception:  # the thread must not end
                self._log.exception("a run failed")
        self.close()


def stop_all(tasks: Sequence[PeriodicTask], seconds: float) -> None:
    """Ends the threads of all tasks, and waits up to `seconds` for all of them together."""
    for task in tasks:
        task._stop.set()
    deadline = time.monotonic() + seconds
    for task in tasks:
        task._thread.join(max(0.0, deadline - time.monotonic()))
