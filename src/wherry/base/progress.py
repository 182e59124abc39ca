"""Callbacks of long operations, for progress and cancellation, and their defaults, which do nothing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with a line about the progress."""
Cancelled = Callable[[], bool]
"""Returns True once the operation should end as soon as it safely can."""


def quiet(_text: str) -> None:
    """Drops progress."""


def never() -> bool:
    """Never cancels."""
    return False


Check = Callable[[], None]
"""Called repeatedly while something is waited for; raises once the operation is cancelled."""


def never_raises() -> None:
    """Never cancels."""
