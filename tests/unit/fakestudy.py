"""A fake study whose runs are defined by the test and use no testbed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from wherry.lab.report.page import Table
from wherry.lab.study import render, runner
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, Value
from wherry.lab.study.results import Results

Act = Callable[[Combination], list[Value]]


def constant_values(combination: Combination) -> list[Value]:
    return [Value("seconds", 2.0 if combination["size"] == "large" else 1.0, "s"), Value("at", 3.0, "s", 8.0)]


class FakeStudy(Study):
    """A study with two factors; `measure_run` is set by the test."""

    name = "fake"
    title = "A fake"
    question = "Does the lab work?"
    repetitions = 4
    warmups = 0
    measure_run: Act = staticmethod(constant_values)

    def factors(self) -> Sequence[Factor]:
        sizes = Factor("size", "how large", (Level("small", "small"), Level("large", "large")))
        return [sizes, Factor("kind", "of what", (Level("a", "an A"), Level("vm", "a VM", "there are no VMs")))]

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(size=size, kind="a") for size in ("small", "large")]

    def measure(self, testbed: Any, combination: Combination, directory: Path) -> list[Value]:
        (directory / "command").write_text(f"run {combination}")
        return self.measure_run(combination)

    def page(self, results: Results) -> Page:
        rows = [
            (str(combination), str(len(results.values(combination, "seconds")))) for combination in self.combinations()
        ]
        return Page([Table("Fakes", ("cell", "runs"), rows)], [], ["a remark"])


class NoTestbed:
    """A testbed that runs nothing."""

    def recheck_clusters(self) -> None:
        pass


def make(directory: Path, measure_run: Act = constant_values, repetitions: int = 4, quick: bool = False) -> Results:
    study = FakeStudy(quick)
    study.measure_run = measure_run  # type: ignore[method-assign]
    return Results.create(directory, study, repetitions)


def run(results: Results) -> list[str]:
    messages: list[str] = []
    with results.session():
        runner.run(results, NoTestbed(), lambda done, total, text, seconds_left: messages.append(text))  # type: ignore[arg-type]
    return messages


def rows(results: Results) -> list[dict[str, str]]:
    with results.samples_file.open() as file:
        return list(csv.DictReader(file))


def page_text(results: Results, drawn: bool = False) -> str:
    """The report, as a page; its figures are made, but not `drawn`, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr(render, "svg", lambda figure: "<svg></svg>")
        return render.report(results).html()
