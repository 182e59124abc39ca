"""A thread of the daemon that acts every few seconds.

Invariant: it ends only by `stop`; what goes wrong in one turn is logged, and the next turn comes.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from wherry.base.errors import WherryError


class PeriodicTask(ABC):
    """One such thread, called `name`, with `every` seconds between two turns."""

    def __init__(self, name: str, every: float) -> None:
        self.every = every
        self._log = logging.getLogger(f"wherry.{name}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_once(self) -> None:
        """What is done each time."""

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; operations that it began go on."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.run_once()
            except WherryError as error:  # what it looked at was just removed, or is being worked on
                self._log.info("%s", error)
            except Exception:  # a thread that ends silently watches nothing
                self._log.exception("a turn failed")
