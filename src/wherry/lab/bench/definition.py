"""A benchmark: what it compares, at which levels, how often, and the goals that its ratios must keep.

A definition is a dataclass whose fields are its settings (`wherry bench run NAME --set FIELD=VALUE`). It starts nothing
by itself: order, repetition, keeping of samples, taking down and the report are `runner`'s, the same for all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wherry.client import Client
from wherry.lab.bench.samples import Samples
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median, ratio

Levels = Mapping[str, Any]
"""One combination that is measured: factor -> level, as it stands in each of its samples."""
Row = dict[str, Any]
"""One sample: its numbers, and `ok: False` with a `problem` when it does not count."""


@dataclass(frozen=True)
class Goal:
    """What a ratio, or a number without a baseline, must keep: `at_most` or `at_least` some value."""

    at_most: float | None = None
    at_least: float | None = None

    def verdict(self, estimate: Estimate) -> str:
        """`met` when the whole interval keeps the goal, `missed` when none of it does, else `not certain`."""
        least = -math.inf if self.at_least is None else self.at_least
        most = math.inf if self.at_most is None else self.at_most
        if least <= estimate.low and estimate.high <= most:
            return "met"
        return "missed" if estimate.high < least or estimate.low > most else "not certain"

    def __str__(self) -> str:
        parts = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {value:g}" for word, value in parts if value is not None)


@dataclass(frozen=True)
class Comparison:
    """One row of a benchmark's table: samples, those of the baseline if there is one, and the goal of their ratio."""

    label: str
    samples: Sequence[float]
    baseline: Sequence[float] = ()
    goal: Goal | None = None
    missed_because: str = field(default="", kw_only=True)
    """Why the goal is missed whatever the numbers say."""

    def row(self) -> tuple[str, ...]:
        """Texts of the row."""
        ours, theirs = (
            median(estimate).text() if estimate else "not measured" for estimate in (self.samples, self.baseline)
        )
        estimate = self.estimate()
        verdict = "" if self.goal is None or estimate is None else self.goal.verdict(estimate)
        if self.missed_because and verdict:
            verdict = f"missed: {self.missed_because}"
        against = estimate.text() if estimate and self.baseline else "-"
        return (
            self.label,
            ours,
            theirs if self.baseline else "-",
            against,
            str(self.goal or "-"),
            verdict or "-",
        )

    def estimate(self) -> Estimate | None:
        """What the goal is about: the ratio of medians, or the median where there is no baseline."""
        if not self.samples:
            return None
        return ratio(self.samples, self.baseline) if self.baseline else median(self.samples)


@dataclass(frozen=True)
class Benchmark(ABC):
    """A definition. Subclasses add their settings as fields."""

    name: ClassVar[str]
    compares: ClassVar[str]
    """One line: what is measured, beside what."""
    duration: ClassVar[tuple[str, str]]
    """How long it takes on two cores: the whole, and with --quick."""
    columns: ClassVar[tuple[str, str]] = ("wherry", "baseline")
    """What samples and baseline are called."""
    repetitions: ClassVar[int] = 5
    quick_repetitions: ClassVar[int] = 2
    quick_settings: ClassVar[Mapping[str, Any]] = {}
    """Fields that --quick changes."""
    fresh_fabric: ClassVar[bool] = False
    """Whether each run has a fabric of its own, so that nothing is left of what the daemon knew."""
    remarks: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def levels(self) -> Sequence[Levels]:
        """The combinations, each measured once in a turn."""

    def prepare(self, client: Client) -> None:
        """Makes the fabric, once or for each run (`fresh_fabric`); the embedded one is made by the first cluster."""
        return

    @abstractmethod
    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        """The samples of one run. Clusters that it makes are removed behind it; its jobs may write to `directory`."""

    @abstractmethod
    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        """The rows of the table."""

    def tables(self, samples: Samples) -> Sequence[Table]:
        """Further tables."""
        return ()

    def describe_sample(self, row: Row) -> str:
        """A sample in a line of progress."""
        return ", ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
