"""The same for several nodes, some in parallel: an error of one does not keep the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wherry.base.progress import Progress, quiet

T = TypeVar("T")
_PARALLEL = 4
"""Nodes that are started or stopped in parallel; more gain nothing on a machine of a few cores."""


def attempt(what: str, act: Callable[[], object]) -> list[str]:
    """Calls `act`; returns its error as a text, so that the caller continues with other nodes."""
    try:
        act()
    except Exception as error:  # a driver may raise anything
        return [f"{what}: {error}"]
    return []


def for_each(
    act: Callable[[T], object], items: Sequence[T], name: Callable[[T], str], progress: Progress = quiet
) -> list[str]:
    """Calls `act` for each item, some in parallel; returns the errors in order."""
    if not items:
        return []
    done: list[int] = []

    def one(item: T) -> list[str]:
        errors = attempt(name(item), lambda: act(item))
        done.append(1)
        progress(f"{len(done)} of {len(items)}: {errors[0] if errors else name(item)}")
        return errors

    with ThreadPoolExecutor(min(_PARALLEL, len(items)), thread_name_prefix="nodes") as pool:
        return [error for errors in pool.map(one, items) for error in errors]
