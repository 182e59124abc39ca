"""A benchmark definition: factors and levels, repetitions, comparisons with a baseline, and goals for the ratios.

A definition is a dataclass whose fields are its settings (`wherry bench run NAME --set FIELD=VALUE`). A definition
starts nothing: order, repetition, storage of samples, clean-up and report are the same for all benchmarks and belong to
`runner`.
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
"""One treatment: factor -> level, stored in each of its samples."""
Row = dict[str, Any]
"""One sample: its numbers, or `ok: False` with a `problem` when it does not count."""


@dataclass(frozen=True)
class Goal:
    """Bounds of a ratio, or of a median without a baseline: `at_most`, `at_least` or both."""

    at_most: float | None = None
    at_least: float | None = None

    def verdict(self, estimate: Estimate) -> str:
        """`met` if the whole interval is within the bounds, `missed` if none of it is, else `not certain`."""
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
    """One row of a benchmark's table: samples, samples of the baseline if it has one, goal of the ratio of medians."""

    label: str
    samples: Sequence[float]
    baseline: Sequence[float] = ()
    goal: Goal | None = None
    missed_because: str = field(default="", kw_only=True)
    """A reason why the goal is missed regardless of the numbers."""

    def row(self) -> tuple[str, ...]:
        """The texts of the row's cells."""
        ours, theirs = (median(data).text() if data else "not measured" for data in (self.samples, self.baseline))
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
        """The quantity that the goal bounds: the ratio of medians, or the median if there is no baseline."""
        if not self.samples:
            return None
        return ratio(self.samples, self.baseline) if self.baseline else median(self.samples)


@dataclass(frozen=True)
class Benchmark(ABC):
    """Base class of definitions. Subclasses declare their settings as fields."""

    name: ClassVar[str]
    compares: ClassVar[str]
    """One line: the measured quantity and its baseline."""
    duration: ClassVar[tuple[str, str]]
    """Duration on two cores: full, and with --quick."""
    columns: ClassVar[tuple[str, str]] = ("wherry", "baseline")
    """Column names of samples and baseline."""
    repetitions: ClassVar[int] = 5
    quick_repetitions: ClassVar[int] = 2
    quick_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that --quick changes."""
    fresh_fabric: ClassVar[bool] = False
    """Whether each run gets a new fabric, so that the daemon has no measurements of earlier runs."""
    keeps_clusters: ClassVar[bool] = False
    """Whether clusters stay for later runs, unless a run fails; else they are removed after each run."""
    remarks: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def levels(self) -> Sequence[Levels]:
        """The treatments, each measured once in a turn."""

    def prepare(self, client: Client) -> None:
        """Makes the fabric, once or before each run (`fresh_fabric`). Default: none; the first cluster makes the
        embedded one."""
        return

    @abstractmethod
    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        """Makes one run and yields its samples. The runner removes its clusters afterwards, unless `keeps_clusters`;
        jobs may write to `directory`."""

    @abstractmethod
    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        """The rows of the table."""

    def tables(self, samples: Samples) -> Sequence[Table]:
        """Additional tables of the report."""
        return ()

    def describe_sample(self, row: Row) -> str:
        """A sample as text for the progress line."""
        return ", ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
