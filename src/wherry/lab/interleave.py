"""Randomised block order: each item once in a turn (block), so that background load affects all items alike."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def interleaved(items: Iterable[T], seed: str) -> list[T]:
    """A permutation of `items` that depends on `seed` alone, so that it is the same on every machine and after a
    resume."""
    these = list(items)
    return random.Random(seed).sample(these, len(these))  # noqa: S311 - an order, not a secret
