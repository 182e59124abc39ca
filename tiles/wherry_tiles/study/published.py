"""The values that the paper on the manycore publishes, each beside ours, or why it is not counted here."""

from __future__ import annotations

from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis
from wherry.lab.study.levels import Combination
from wherry.lab.study.papers import reference_values
from wherry.lab.study.papers.reference_values import PaperComparison
from wherry.lab.study.results import Results
from wherry_tiles.study.levels import SLAVES, Axes, combination_of

_PAPER = "the Nanvix paper: Kalray MPPA-256, 400 MHz, 2 MB and 16 cores for each cluster"
_COUNTED = {
    "branches": ("branches", "0.92 (-7.8 %)"),
    "data_misses": ("misses of the data cache", "0.94 (-5.8 %)"),
    "instruction_misses": ("misses of the instruction cache", "0.94 (-6.45 %)"),
}
"""Counter: its events, and the paper's value, by Figure 3b."""
_NOT_COUNTED = "not counted here: this machine gives no access to its processor's counters"


def table(results: Results, axes: Axes) -> Table:
    """All rows. The paper's downtime ends with the process's first signal from its destination: `observed`."""
    return reference_values.table([*_downtimes(results, axes), *_together(results, axes), *_creation(results, axes)])


def _move(threads: str, pages: str) -> Combination:
    return combination_of("move", "faithful", threads, pages)


def _ratio(results: Results, metric: str, one: Combination, other: Combination) -> Estimate | None:
    return analysis.ratio_or_none(results.values(one, metric), results.values(other, metric))


def _milliseconds(results: Results, combination: Combination) -> str | None:
    data = results.values(combination, "observed")
    return f"{median([1e3 * value for value in data]).text()} ms (observed)" if data else None


def _downtimes(results: Results, axes: Axes) -> list[PaperComparison]:
    few, most, least, largest = axes.few, axes.threads[-1], axes.pages[0], axes.pages[-1]
    smallest, biggest = _move(few, least), _move(most, largest)
    rows = [
        PaperComparison(
            f"downtime, least threads and pages ({few}, {least})",
            "19 ms",
            _PAPER,
            _milliseconds(results, smallest),
            "X",
        ),
        PaperComparison(
            f"downtime, most threads and pages ({most}, {largest})",
            "113 ms",
            _PAPER,
            _milliseconds(results, biggest),
            "X",
        ),
    ]
    if len(axes.pages) > 1:
        rows.append(
            PaperComparison(
                f"the least growth: {axes.pages[1]} pages : {least}, threads {few}",
                "1.05 (growth of 5.26 %)",
                _PAPER,
                _ratio(results, "observed", _move(few, axes.pages[1]), smallest),
                "the direction: more pages take longer",
            )
        )
    rows.append(
        PaperComparison(
            f"the largest growth: threads {most}, pages {largest} : threads {few}, pages {least}",
            "5.3 (growth of 431 %)",
            _PAPER,
            _ratio(results, "observed", biggest, smallest),
            "the direction: linear in bytes, until there are more threads than cores",
        )
    )
    return [*rows, *_jump(results, axes)]


def _jump(results: Results, axes: Axes) -> list[PaperComparison]:
    """One thread more than the cores for threads, at the most pages, and over all of them."""
    over, under = str(SLAVES), str(SLAVES - 1)
    ratios = {pages: _ratio(results, "all", _move(over, pages), _move(under, pages)) for pages in axes.pages}
    found = [ratio.value for ratio in ratios.values() if ratio]
    text = f"{SLAVES + 1} threads, the first included : {SLAVES}"
    cause = "the cause: one thread more than the 15 cores for threads; it waits for a core of another thread"
    return [
        PaperComparison(text, "3.3 (+230 %)", _PAPER, ratios[axes.pages[-1]], cause),
        PaperComparison(
            f"the same over {len(axes.pages)} numbers of pages, least to largest",
            "2.98 to 3.46 (198 to 246 %)",
            _PAPER,
            f"{min(found):.3g} to {max(found):.3g}" if found else None,
            "X: how long it waits is our tick of 10 ms",
        ),
    ]


def _together(results: Results, axes: Axes) -> list[PaperComparison]:
    """The paper moves processes with the most threads and pages."""
    one, most, threads = axes.pairs[0], axes.pairs[-1], axes.pair_threads[-1]
    ratio = _ratio(
        results, "first_mean", axes.parallel("faithful", most, threads), axes.parallel("faithful", one, threads)
    )
    text = f"{most} moves at once : {one}, threads {threads}, pages {axes.pages[-1]}"
    return [PaperComparison(text, "1.0", _PAPER, ratio, "nothing with fewer than 16 CPUs")]


def _creation(results: Results, axes: Axes) -> list[PaperComparison]:
    """Separated from the kernel's data, beside the build in which they are among it."""
    separated, mixed = axes.creation("separated"), axes.creation("mixed")
    rows = [
        reference_values.ratio(
            f"{noun} threads, separated : among the kernel's data",
            published,
            _PAPER,
            results.values(separated, metric),
            results.values(mixed, metric),
            "the direction: does it pay to keep them apart",
        )
        for metric, noun, published in (("create", "creating", "slightly below 1"), ("join", "joining", "about 1"))
    ]
    for event, (noun, published) in _COUNTED.items():
        ratio = _ratio(results, event, separated, mixed)
        ran = bool(results.values(separated, "create"))
        rows.append(
            PaperComparison(
                f"{noun}, creating and joining, separated : among the kernel's data",
                published,
                _PAPER,
                ratio or (_NOT_COUNTED if ran else None),
                "the direction",
            )
        )
    return rows
