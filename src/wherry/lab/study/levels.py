"""Factors, their levels, combinations of levels, and the numbers that one run of a combination yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Level:
    """One value of a factor. `left_out` says why it is not measured here; empty: it is."""

    name: str
    text: str
    left_out: str = ""


@dataclass(frozen=True)
class Factor:
    """What is varied on purpose."""

    name: str
    text: str
    levels: tuple[Level, ...]

    def measured(self) -> list[str]:
        """Names of the levels that are measured."""
        return [level.name for level in self.levels if not level.left_out]

    def label(self, name: str) -> str:
        """Text of a level."""
        return next(level.text for level in self.levels if level.name == name)


@dataclass(frozen=True)
class Combination:
    """One combination of levels, in the order of the factors."""

    levels: tuple[tuple[str, str], ...]

    @staticmethod
    def of(**levels: str) -> Combination:
        """A cell by its factors."""
        return Combination(tuple(levels.items()))

    def __getitem__(self, factor: str) -> str:
        return dict(self.levels)[factor]

    def __str__(self) -> str:
        return " ".join(f"{factor}={level}" for factor, level in self.levels)


class Value(NamedTuple):
    """One measured number. `x` is what it was measured at, e.g. bytes of a message."""

    metric: str
    value: float
    unit: str
    x: float | None = None


RESULT_CHECKSUM = "result_crc"
"""The metric that names a program's result, whose size says nothing."""


class RunFailed(Exception):
    """A run that does not count, and why."""
