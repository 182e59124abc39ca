"""The order of runs that are compared: each item once in a turn, so that what else the machine does falls on all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def interleaved(items: Iterable[T], seed: str) -> list[T]:
    """The items of one turn in an order drawn from `seed` alone: the same on every machine, at every resumption."""
    these = list(items)
    return random.Random(seed).sample(these, len(these))  # noqa: S311 - an order, not a secret
