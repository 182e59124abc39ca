"""What a study is made of: factors and their levels, the runs of each, what one run yields, what the page shows.

Invariant: a recipe holds no results; the same recipe and seed give the same order of runs on every machine.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wherry.lab.report import Table

if TYPE_CHECKING:
    from wherry.lab.study.bench import Bench
    from wherry.lab.study.figures import Drawing
    from wherry.lab.study.results import Results


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
class Cell:
    """One combination of levels, in the order of the factors."""

    levels: tuple[tuple[str, str], ...]

    @staticmethod
    def of(**levels: str) -> Cell:
        """A cell by its factors."""
        return Cell(tuple(levels.items()))

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


RESULT = "result_crc"
"""The metric that names a program's result, whose size says nothing."""


class SampleFailed(Exception):
    """A run that does not count, and why."""


@dataclass
class Page:
    """What a study's report shows: tables, figures with their captions, and sentences below them."""

    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, Drawing]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Study(ABC):
    """A recipe. Subclasses say what is run and shown; order, repetition and keeping are the runner's."""

    name: str
    title: str
    question: str
    shows: Sequence[str] = ()
    cannot: Sequence[str] = ()
    verified: Sequence[str] = ()
    """What a run must have shown to count."""
    lasts: tuple[str, str] = ("", "")
    """How long it takes on two cores: the whole, and with --quick."""
    repetitions: int = 10
    quick_repetitions: int = 3
    warmups: int = 1
    """Runs of each combination that a session begins with and that do not count; none with --quick."""
    seed: int = 20_061

    def __init__(self, quick: bool, lacks: Mapping[str, str] | None = None) -> None:
        """`lacks` says what the machine that measures cannot do (see `lacks.lacking`): name -> reason."""
        self.quick = quick
        self.lacks = dict(lacks or {})

    @abstractmethod
    def factors(self) -> Sequence[Factor]:
        """What is varied; levels that are left out are named with the reason."""

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """The combinations that are run."""

    @abstractmethod
    def measure(self, bench: Bench, cell: Cell, directory: Path) -> list[Value]:
        """One run, its files in `directory`. SampleFailed when it does not count."""

    def unmoved(self, cell: Cell) -> Cell | None:
        """For a combination with a move, the one without; None where their results are not compared.

        A run whose `RESULT` is none of those that count there does not count.
        """
        return None

    @abstractmethod
    def page(self, results: Results) -> Page:
        """Tables and figures of what has been measured so far, which may be nothing."""

    def default_repetitions(self) -> int:
        """How often each cell is run when nobody says otherwise."""
        return self.quick_repetitions if self.quick else self.repetitions

    def default_warmups(self) -> int:
        """How often a session runs each of its combinations before those that count."""
        return 0 if self.quick else self.warmups

    def turn(self, number: int) -> list[Cell]:
        """The cells in the order of turn `number`: each once, drawn from the seed and the number alone."""
        draw = random.Random(f"{self.seed}/{self.name}/{number}")  # noqa: S311 - an order, not a secret
        cells = list(self.cells())
        return draw.sample(cells, len(cells))

    def texts(self) -> Mapping[str, Mapping[str, str]]:
        """Factor -> level -> text."""
        return {factor.name: {level.name: level.text for level in factor.levels} for factor in self.factors()}
