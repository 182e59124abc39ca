"""A call in a thread of its own, for changes that a thread makes for itself alone: namespaces, user, directory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(act: Callable[[], T], name: str) -> T:
    """The result of `act()` in a thread that ends with it, or its error."""
    results, errors = list[T](), list[BaseException]()

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:  # re-raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
