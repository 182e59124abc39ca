"""Wakes long polls when something has changed: a waiting request sleeps until then.

Three sources: a row (an operation's progress or end, an event), by `Wakeups.wake` from any thread; a file of a job,
which another process writes, by inotify; room in the pipe of a job's input, by epoll. So waiting clients cost no CPU
time on a machine where other programs are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncinotify import Inotify, Mask, Watch

_WRITTEN = Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO


class Wakeups:
    """The waiting requests, each with an event of its event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._files = _Files()

    def wake(self) -> None:
        """Wakes every waiting request. Safe from any thread."""
        with self._lock:
            waiting = list(self._waiting)
        for loop, changed in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

    @contextmanager
    def waiting(self, directory: Path | None = None) -> Iterator[asyncio.Event]:
        """An event that is set when something changes: any row, or a file in `directory`."""
        changed = asyncio.Event()
        entry = asyncio.get_running_loop(), changed
        with self._lock:
            self._waiting.add(entry)
        try:
            with self._files.watched(directory, changed) if directory else contextlib.nullcontext():
                yield changed
        finally:
            with self._lock:
                self._waiting.discard(entry)


class _Files:
    """One inotify instance for all requests, as a user may have only 128, with one watch for each directory that a
    request waits for. Used from one event loop."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._reader: asyncio.Task[None] | None = None
        self._events: dict[Path, set[asyncio.Event]] = {}
        self._watches: dict[Path, Watch] = {}
        """The watches of these directories, except directories that no request has found yet."""

    @contextmanager
    def watched(self, directory: Path, changed: asyncio.Event) -> Iterator[None]:
        """Sets the event when a file in the directory is written or created. Does nothing without such a directory."""
        with contextlib.suppress(OSError):
            if self._inotify is None:
                self._inotify = Inotify()
                self._reader = asyncio.create_task(self._read(self._inotify))
            self._watches[directory] = self._inotify.add_watch(directory, _WRITTEN)
        events = self._events.setdefault(directory, set())
        events.add(changed)
        try:
            yield
        finally:
            events.discard(changed)
            if not events:
                self._events.pop(directory, None)
                watch = self._watches.pop(directory, None)
                if watch is not None and self._inotify is not None:
                    with contextlib.suppress(OSError, ValueError, KeyError):  # the directory is gone, and its watch
                        self._inotify.rm_watch(watch)

    async def _read(self, inotify: Inotify) -> None:
        async for event in inotify:
            directory = event.watch.path if event.watch else None
            for changed in self._events.get(Path(directory), ()) if directory else ():
                changed.set()


@contextmanager
def room_in(fifo: Path, changed: asyncio.Event) -> Iterator[None]:
    """Sets the event once when the pipe is writable; never when it has no reader."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield
        return
    loop = asyncio.get_running_loop()

    def writable() -> None:
        loop.remove_writer(fd)
        changed.set()

    loop.add_writer(fd, writable)
    try:
        yield
    finally:
        loop.remove_writer(fd)
        os.close(fd)
