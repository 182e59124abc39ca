"""Factors, levels, combinations of levels (treatments), and the values that one run yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Level:
    """One level of a factor. `left_out`: why it is not measured here; empty if it is."""

    name: str
    text: str
    left_out: str = ""


@dataclass(frozen=True)
class Factor:
    """A controlled variable of the experiment."""

    name: str
    text: str
    levels: tuple[Level, ...]

    def measured(self) -> list[str]:
        """Names of the levels that are measured here."""
        return [level.name for level in self.levels if not level.left_out]

    def label(self, name: str) -> str:
        """Text of a level, by its name."""
        return next(level.text for level in self.levels if level.name == name)


@dataclass(frozen=True)
class Combination:
    """A treatment: one level of each factor, in the order of the factors."""

    levels: tuple[tuple[str, str], ...]

    @staticmethod
    def of(**levels: str) -> Combination:
        """A combination as FACTOR=LEVEL arguments."""
        return Combination(tuple(levels.items()))

    def __getitem__(self, factor: str) -> str:
        return dict(self.levels)[factor]

    def __str__(self) -> str:
        return " ".join(f"{factor}={level}" for factor, level in self.levels)


class Value(NamedTuple):
    """One measured value. `x` is the value of an independent variable within the run, e.g. message size in bytes."""

    metric: str
    value: float
    unit: str
    x: float | None = None


RESULT_CHECKSUM = "result_crc"
"""Metric that holds a checksum of a program's result: compared for equality only."""


class RunFailed(Exception):
    """Raised by a run that does not count; the message is the reason."""
