"""Nodes on which leftovers of a job that has ended could not be killed, as they did not answer: tried again until they
answer, or are gone.

The names are in the file `unswept` of the job's directory, so the next daemon continues with them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from wherry.base.atomic_write import write_atomically

log = logging.getLogger("wherry.jobs")
_FILE = "unswept"


class LateSweeps:
    """Of all jobs below `directory`. `sweep` kills the leftovers of a job on some nodes, and returns where that failed,
    with the reason; `done` is called for a job that has none left."""

    def __init__(
        self, directory: Path, sweep: Callable[[str, Collection[str]], Collection[str]], done: Callable[[str], object]
    ) -> None:
        self._directory, self._sweep, self._done = directory, sweep, done
        self._under_way = set[str]()
        self._lock = threading.Lock()

    def note(self, id: str, nodes: Collection[str]) -> None:
        """These nodes of the job are to be tried again."""
        write_atomically(self._directory / id / _FILE, "\n".join(nodes).encode())

    def awaited(self, id: str) -> bool:
        """Whether the job has such nodes."""
        return (self._directory / id / _FILE).exists()

    def once(self) -> None:
        """Begins to try each job's nodes that are not being tried. Returns at once."""
        for file in self._directory.glob(f"*/{_FILE}"):
            with self._lock:
                if file.parent.name in self._under_way:
                    continue
                self._under_way.add(file.parent.name)
            try:
                threading.Thread(target=self._try, args=(file,), name=f"sweep-{file.parent.name}", daemon=True).start()
            except RuntimeError:  # the kernel refuses a thread: the next look tries again
                self._under_way.discard(file.parent.name)

    def _try(self, file: Path) -> None:
        id = file.parent.name
        try:
            if left := self._sweep(id, file.read_text().split("\n")):
                self.note(id, left)
            else:
                file.unlink()
                self._done(id)
        except FileNotFoundError:
            pass  # the job was removed meanwhile
        except Exception:
            log.exception("leftovers of job %s", id)
        finally:
            self._under_way.discard(id)
