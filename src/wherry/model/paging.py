"""Pages of lists: each begins behind the key of the row before, so rows that come and go shift nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST = 1000
"""Rows of a page, unless another number is asked for."""
Key = tuple[str | int | float, ...]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Wanted:
    """A page: at most `limit` rows behind the key `behind`. With `newest` the last rows of the list, or those before
    that key, also in the list's order."""

    limit: int = MOST
    behind: Key = ()
    newest: bool = False


@dataclass(frozen=True)
class Page(Generic[Found]):
    """Rows, and the key behind which the next page begins; None after the last one."""

    rows: list[Found]
    next: Key | None = None


def numbered(rows: list[Found], wanted: Wanted, number: Callable[[Found], int]) -> Page[Found]:
    """A page of rows that were asked for with one more than its limit, in the list's order."""
    if len(rows) <= wanted.limit:
        return Page(rows)
    shown = rows[1:] if wanted.newest else rows[:-1]
    return Page(shown, (number(shown[0 if wanted.newest else -1]),))


def sliced(rows: Sequence[Found], wanted: Wanted, key: Callable[[Found], Key]) -> Page[Found]:
    """A page of a list that was read whole, in the order of its keys: for lists that an admin's acts bound."""
    rest = [one for one in rows if not wanted.behind or key(one) > wanted.behind]
    shown = rest[: wanted.limit]
    return Page(shown, key(shown[-1]) if len(rest) > len(shown) else None)
