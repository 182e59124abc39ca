"""How long work reports to its caller, and how its caller ends it: two callbacks, and the ones that do nothing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Receives a line about how far the work is."""
Cancelled = Callable[[], bool]
"""True once the work is to end as soon as it safely can."""


def quiet(_text: str) -> None:
    """Drops progress."""


def never() -> bool:
    """Never cancels."""
    return False
