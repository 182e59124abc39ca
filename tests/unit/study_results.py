"""Results of studies with given values, and the tables of their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wherry.lab.report.page import Table
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.results import Results, Run


def made(study: Study, directory: Path, values: Mapping[Combination, Mapping[str, Sequence[float]]]) -> Results[Any]:
    """Results with these values, one of each metric for each run."""
    results = Results.create(directory, study, 1)
    for combination, metrics in values.items():
        for turn in range(max(map(len, metrics.values()))):
            run = Run(results.next_number(), turn, False, True, combination, 0.0, 1.0)
            run.values = [Value(name, data[turn], "s") for name, data in metrics.items()]
            results.add(run)
    return results


def table(study: Study, results: Results[Any], title: str) -> Table:
    """The first table of the report whose title begins so."""
    return next(one for one in study.page(results).tables if one.title.startswith(title))
