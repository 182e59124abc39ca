"""A study: a design, the making of one run, and the contents of its report. Order, repetition and storage of runs
belong to the runner and to `Results`, which know the design only.
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
from wherry.lab.study.own_hosts_testbed import OwnHostsTestbed
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed


@dataclass
class Page:
    """Contents of a study's report: tables, figures with captions, remarks."""

    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, Drawing]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Study(Design):
    """A design that can be run and reported. `shows`: results that its numbers support; `limitations`: their limits."""

    title: str
    question: str
    shows: Sequence[str] = ()
    limitations: Sequence[str] = ()
    validity_checks: Sequence[str] = ()
    """Conditions that a run must meet to count."""
    duration: tuple[str, str] = ("", "")
    """Duration on two cores: full, and with --quick."""
    paper_duration: str = "longer than in full, by how much depends on the machine"
    """The same with --paper."""

    def limits(self) -> Sequence[str]:
        """Its limitations on the hosts on which it is run."""
        return self.limitations

    def testbed(self, out: Path) -> Testbed:
        """The testbed that makes its clusters; jobs may write to `out`."""
        if self.own_hosts:
            return OwnHostsTestbed(out, self.own_hosts.first(self.used_hosts()))
        return Testbed(out)

    @abstractmethod
    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        """Makes one run, with its files in `directory`. Raises RunFailed when it does not count."""

    @abstractmethod
    def page(self, results: Results) -> Page:
        """Tables and figures of the results so far, which may be empty."""
