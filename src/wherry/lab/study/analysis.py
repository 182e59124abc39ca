"""Analysis that several studies share: curves and tables by message size, ratios of combinations with their test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wherry.lab.report.figures import Curves, size_text
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, difference, mann_whitney, ratio
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.results import Results

LATENCY = "latency_median"
"""Metric that is compared: the median over a run's repetitions, which is robust against background load."""


def mpi_factor(quick: bool, unavailable: Mapping[str, str]) -> Factor:
    """The factor MPI: both that are installed; only Open MPI with --quick."""
    why = "not with --quick" if quick else unavailable.get("mpiexec.mpich", "")
    openmpi = Level("openmpi", "Open MPI", unavailable.get("mpirun.openmpi", ""))
    return Factor("mpi", "the MPI", (openmpi, Level("mpich", "MPICH", why)))


def curves_by_size(
    results: Results, combinations: dict[str, Combination], metric: str = LATENCY, max_size: float = float("inf")
) -> Curves:
    """Label -> message size -> samples, one for each run."""
    return {
        label: {x: results.values(combination, metric, x) for x in results.xs(combination, metric) if x <= max_size}
        for label, combination in combinations.items()
    }


def latency_table(title: str, curves: Curves, scale: float = 1e6, unit: str = "us") -> Table:
    """Medians with intervals: one row for each size, one column for each curve."""
    from wherry.lab.report.statistics import median

    sizes = sorted({x for points in curves.values() for x in points})
    rows = []
    for x in sizes:
        cells = [points.get(x) for points in curves.values()]
        rows.append((size_text(x), *(median([y * scale for y in d]).text() if d else "-" for d in cells)))
    return Table(f"{title} ({unit})", ("size", *curves), rows)


def bandwidth(size: float, seconds: float) -> float:
    """Bandwidth in Mbit/s (10^6) of a message of `size` bytes that takes `seconds`."""
    return 8e-6 * size / seconds


def ratio_or_none(samples: Sequence[float], baseline: Sequence[float]) -> Estimate | None:
    """Ratio of medians; None if either side has no samples, or the baseline one of 0."""
    return ratio(samples, baseline) if samples and baseline and all(baseline) else None


def ratio_of_runs(samples: Sequence[float], baseline: Sequence[float]) -> Estimate | None:
    """As `ratio_or_none`, but None as well for a single run of either side: of whole jobs that is an anecdote."""
    return ratio(samples, baseline) if min(len(samples), len(baseline)) > 1 else None


def difference_or_none(samples: Sequence[float], baseline: Sequence[float]) -> Estimate | None:
    """Difference of medians; None if either side has no samples."""
    return difference(samples, baseline) if samples and baseline else None


P_VALUE_MARK = ", p = "
"""Substring of texts that report a test (see `significance_text`)."""


def significance_text(samples: Sequence[float], baseline: Sequence[float]) -> str:
    """Result of a two-sided Mann-Whitney test at 5 %, as text."""
    p = mann_whitney(samples, baseline)
    if p is None:
        return "too few runs for a test"
    return f"{'differs' if p < 0.05 else 'no difference shown'}{P_VALUE_MARK}{p:.2g}"


def multiple_testing_remarks(tests: int) -> list[str]:
    """Remark on multiple testing: the tests are not corrected for each other."""
    if tests < 2:
        return []
    return [
        f"{tests} differences were tested, each by itself at 5 %: by chance alone {0.05 * tests:.2g} of so many are "
        "called different, on average. A single verdict among them is weak evidence."
    ]
