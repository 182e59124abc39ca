"""Answers that are kept while the process lives, as `functools.cache` keeps them, except undecided ones.

A probe that runs a program may get no answer in time on a busy machine. Kept, that would switch off, for the daemon's
life, what the machine can do; so the probe is run again.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("wherry.probes")


class Undecided(Exception):
    """Raised by a function that could not find out: `answer` is given this once, and `why` is logged."""

    def __init__(self, answer: object, why: str) -> None:
        super().__init__(why)
        self.answer = answer


class Remembered(Generic[P, T]):
    """A function whose answers are kept, by its arguments. An undecided answer is given for `again` seconds, and then
    asked for anew. Safe from several threads, which may ask at the same time."""

    def __init__(self, function: Callable[P, T], again: float = 0.0) -> None:
        functools.update_wrapper(self, function)
        self._function, self._again = function, again
        self._lock = threading.Lock()
        self._known: dict[Hashable, T] = {}
        self._undecided: dict[Hashable, tuple[float, T]] = {}
        """The end of its validity, and the answer."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        key = args, tuple(sorted(kwargs.items()))
        with self._lock:
            if key in self._known:
                return self._known[key]
            until, answer = self._undecided.get(key, (0.0, None))
            if time.monotonic() < until:
                return cast(T, answer)
        try:
            found = self._function(*args, **kwargs)
        except Undecided as undecided:
            log.warning("it is not known yet, and asked again: %s", undecided)
            guess = cast(T, undecided.answer)
            with self._lock:
                self._undecided[key] = time.monotonic() + self._again, guess
            return guess
        with self._lock:
            self._known[key] = found
        return found

    def cache_clear(self) -> None:
        """Forgets all answers."""
        with self._lock:
            self._known.clear()
            self._undecided.clear()


def remembered(again: float = 0.0) -> Callable[[Callable[P, T]], Remembered[P, T]]:
    """Decorates a function that raises Undecided when it could not find out."""

    def decorate(function: Callable[P, T]) -> Remembered[P, T]:
        return Remembered(function, again)

    return decorate
