"""Runs acts in threads of their own, concurrently with the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")
WARMING_INTERVAL = 0.004
"""Seconds after which warm objects of the kernel are used again, so that they stay warm."""


class BackgroundTask(Generic[T]):
    """Runs `act` in a thread; `result` waits for it, and returns its result or re-raises its exception."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run, name="stream")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._act())
        except BaseException as error:  # re-raised by result()
            self._error = error

    def wait(self) -> None:
        """Returns when the act has ended, by an exception or without one."""
        self._thread.join()

    def result(self) -> T:
        """Returns when the act is done."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


@contextmanager
def run_concurrently(act: Callable[[], object]) -> Iterator[None]:
    """Runs `act` in a thread during the context, which ends when both have. An exception of the body comes first."""
    task = BackgroundTask(act)
    try:
        yield
    except BaseException:
        task.wait()
        raise
    task.result()


class CacheWarmer:
    """Keeps objects of the kernel warm: calls `act`, which uses them, at once, then again and again in a thread, until
    `stop`. Errors of `act` end the repetition."""

    def __init__(self, act: Callable[[], object], pause: float) -> None:
        self._act, self._pause = act, pause
        self._stopped = threading.Event()
        act()
        self._task = BackgroundTask(self._run)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            self._act()

    def stop(self) -> None:
        """Returns when `act` is not called any more. Idempotent."""
        self._stopped.set()
        self._task.wait()
