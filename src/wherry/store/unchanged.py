"""Results of reads of a database, for as long as nobody writes to it.

The daemon's threads ask every second for nodes, clusters and jobs, two or more reads for each node. A read costs half a
millisecond of a processor that ranks want, and seldom has a new result. SQLite counts the commits that other
connections make, of this process and of others; a connection that does nothing else reads the number in microseconds.

    number as at the last read?  yes: the result is known, or is kept
                                 no: all results are forgotten

Invariants: a result is that of a read after the last commit before the call. With PostgreSQL, which has no such number,
each read is made.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Unchanged(Protocol):
    """`UnchangedReads.read`."""

    def __call__(self, key: Hashable, read: Callable[[], Result]) -> Result: ...


_MAX_RESULTS = 4096
"""More are forgotten all together."""


class UnchangedReads:
    """The results of one database, by key. Any thread may ask."""

    def __init__(self, file: Path | None) -> None:
        """`file` is that of SQLite, which need not exist yet; None: nothing is kept."""
        self._file = file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        """The number at which the results were read."""
        self._results: dict[Hashable, Any] = {}

    def read(self, key: Hashable, read: Callable[[], Result]) -> Result:
        """The result of `read`, perhaps of an earlier call of the same key; nobody may change it. Raises as `read`
        does."""
        with self._lock:
            version = self._present()
            if version is None or version != self._version or len(self._results) > _MAX_RESULTS:
                self._results.clear()
            self._version = version
            if key in self._results:
                found: Result = self._results[key]
                return found
        found = read()
        with self._lock:
            if version is not None and version == self._version:
                self._results[key] = found
        return found

    def close(self) -> None:
        """Closes the connection; the next call makes another."""
        with self._lock:
            connection, self._connection, self._version = self._connection, None, None
            if connection is not None:
                connection.close()

    def _present(self) -> int | None:
        """The number of commits; None when it cannot be read, for which the read itself has an error."""
        if self._file is None:
            return None
        try:
            if self._connection is None:
                uri = f"{self._file.absolute().as_uri()}?mode=rw"
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
                self._version = None  # numbers of another connection mean nothing to this one
            (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return None
        return int(number)
