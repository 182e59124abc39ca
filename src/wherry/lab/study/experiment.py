"""An experiment: a design, how one run is made, and what the report shows.

Order, repetition and keeping of the runs belong to the runner and to `Results`, which know the design only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wherry.lab.report.figures import Drawing
from wherry.lab.report.page import Table
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed


@dataclass
class Page:
    """What a study's report shows: tables, figures with their captions, and sentences below them."""

    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, Drawing]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Study(Design):
    """A design that can be run and reported."""

    title: str
    question: str
    shows: Sequence[str] = ()
    limitations: Sequence[str] = ()
    validity_checks: Sequence[str] = ()
    """What a run must have shown to count."""
    duration: tuple[str, str] = ("", "")
    """How long it takes on two cores: the whole, and with --quick."""

    @abstractmethod
    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        """One run, its files in `directory`. SampleFailed when it does not count."""

    @abstractmethod
    def page(self, results: Results) -> Page:
        """Tables and figures of what has been measured so far, which may be nothing."""
