"""Wakes requests that wait for news: a long poll looks again when something has changed, and not before.

Three kinds of news: a row (an operation's progress or end, an event), told by `Wakeups.wake` from any thread; a file of
a job, which another process writes, told by inotify; room in the pipe of a job's input, told by epoll. So a daemon with
many waiting clients does nothing while nothing happens, on a machine where something else is being measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncinotify import Inotify, Mask

_WRITTEN = Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO


class Wakeups:
    """The requests that wait, each with an event of its event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._files = _Files()

    def wake(self) -> None:
        """Makes every waiting request look again. Safe from any thread."""
        with self._lock:
            waiting = list(self._waiting)
        for loop, changed in waiting:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                loop.call_soon_threadsafe(changed.set)

    @contextmanager
    def waiting(self, directory: Path | None = None) -> Iterator[asyncio.Event]:
        """An event that is set when something changes: any row, or a file in `directory`."""
        mine = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.add(mine)
        try:
            with self._files.watched(directory, mine[1]) if directory else contextlib.nullcontext():
                yield mine[1]
        finally:
            with self._lock:
                self._waiting.discard(mine)


class _Files:
    """One inotify instance for all requests, as a user may have only 128. Used from one event loop."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._reader: asyncio.Task[None] | None = None
        self._events: dict[Path, set[asyncio.Event]] = {}

    @contextmanager
    def watched(self, directory: Path, changed: asyncio.Event) -> Iterator[None]:
        """Sets the event when a file in the directory is written or made. Does nothing when there is no directory."""
        watch = None
        with contextlib.suppress(OSError):
            if self._inotify is None:
                self._inotify = Inotify()
                self._reader = asyncio.create_task(self._read(self._inotify))
            watch = self._inotify.add_watch(directory, _WRITTEN)
        events = self._events.setdefault(directory, set())
        events.add(changed)
        try:
            yield
        finally:
            events.discard(changed)
            if not events:
                self._events.pop(directory, None)
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
    """Sets the event once when the pipe takes more; never when nobody reads it."""
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
