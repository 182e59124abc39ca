"""A study's results as report.html, report.pdf and summary.csv.

Invariant: made from the directory alone, so a report can be made again, anywhere, and says the same.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path

from wherry.lab.report import Report, Table, svg
from wherry.lab.stats import median
from wherry.lab.study import pdf, runner
from wherry.lab.study.recipe import Study
from wherry.lab.study.results import Results, counts_table

_PROBLEMS_MOST = 20
_FIRST_MOST = 16
"""Rows of a table that stands before the figures; longer ones are behind them."""
_BUSY = 1.5
"""Load for each CPU from which a report says that the machine was busy; a study of two ranks makes 1 itself."""
_STATISTICS = ("median", "low", "high", "method", "q1", "q3", "mean", "sd")


def write(results: Results) -> list[Path]:
    """Writes the report's files and returns their paths."""
    page = results.study.page(results)
    report = Report(
        title=results.study.title,
        summary=_summary(results),
        tables=[table for table in page.tables if len(table.rows) <= _FIRST_MOST],
        details=[*(table for table in page.tables if len(table.rows) > _FIRST_MOST), *_bookkeeping(results)],
        remarks=[*results.study.shows, *results.study.cannot, *page.remarks, *_always(results)],
        environment=_environment(results),
    )
    files = [results.directory / name for name in ("report.html", "report.pdf", "summary.csv")]
    pdf.write(report, page.figures, files[1])
    report.figures = [(caption, svg(drawing.alone())) for caption, drawing in page.figures]
    report.write(files[0])
    _summary_csv(results, files[2])
    return files


def _summary(results: Results) -> str:
    study, asked = results.study, results.about["repetitions"]
    left = runner.missing(study, results)
    cut = f" It was cut short: {left} of {asked * len(study.cells())} runs are missing." if left else ""
    quick = " Made with --quick: shorter runs and fewer of them." if study.quick else ""
    return (
        f"{study.question} {asked} runs of each combination, in turns whose order was drawn with seed {study.seed}."
        f"{quick}{cut} Numbers are medians with 95 % intervals (bootstrap) and the count of runs; with fewer than five "
        "runs the interval is their range."
    )


def _bookkeeping(results: Results) -> Iterator[Table]:
    yield Table("Runs", ("combination", "counted", "failed", "seconds of a run"), counts_table(results))
    if failed := results.failed():
        rows = [(str(run.number), str(run.cell), run.problem) for run in failed[:_PROBLEMS_MOST]]
        if len(failed) > _PROBLEMS_MOST:
            rows.append(("", f"and {len(failed) - _PROBLEMS_MOST} more", "see samples.csv"))
        yield Table("Runs that failed and do not count", ("run", "combination", "why"), rows)
    left_out = [
        (factor.text, level.text, level.left_out)
        for factor in results.study.factors()
        for level in factor.levels
        if level.left_out
    ]
    if left_out:
        yield Table("Left out", ("factor", "level", "why"), left_out)


def _always(results: Results) -> list[str]:
    remarks = [
        f"Runs that failed and do not count: {len(results.failed())}. No run that counts was dropped; every sample is "
        "a dot in the figures.",
        "Ratios compare runs of one sitting on one machine, made in turns; absolute times are this machine's.",
    ]
    cpus = float(results.about["sessions"][-1]["before"]["cpus"]) if results.about["sessions"] else 1.0
    busy = [run for run in results.counted() if run.load > cpus * _BUSY]
    if busy:
        remarks.append(
            f"The machine was busy: at the end of {len(busy)} of {len(results.counted())} runs its load of the last "
            f"minute was above {cpus * _BUSY:g} on {cpus:g} CPUs (in samples.csv for each run). Two ranks that wait "
            "for each other then measure the scheduler too: read the minima, or run the study again on a quiet machine."
        )
    if not results.counted():
        remarks.append("Nothing could be measured: no run counts.")
    return remarks


def _environment(results: Results) -> dict[str, str]:
    rows: dict[str, str] = {}
    for number, session in enumerate(results.about["sessions"], 1):
        before = session["before"]
        changed = {key: text for key, text in before.items() if key != "load" and rows.get(key) != text}
        rows |= {f"{key}{'' if number == 1 else f' (session {number})'}": text for key, text in changed.items()}
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(session["started"]))
        rows[f"session {number}"] = f"{begun}, load before {before['load']}, after {session['after'].get('load', '?')}"
    rows["fabric"] = results.about.get("fabric", "none: no cluster was made, or the study was cut short")
    if commands := sorted({file.read_text().strip() for file in results.directory.glob("runs/*/command")}):
        rows["commands"] = "; ".join(commands[:8])
    return rows


def _summary_csv(results: Results, path: Path) -> None:
    """One row for each cell, metric and x that has samples."""
    study: Study = results.study
    factors = [factor.name for factor in study.factors()]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*factors, "metric", "x", "unit", "n", *_STATISTICS])
        for cell in study.cells():
            seen = {(v.metric, v.x): v.unit for run in results.counted(cell) for v in run.values}
            for (metric, x), unit in seen.items():
                data = results.values(cell, metric, x)
                found = median(data)
                numbers = (found.value, found.low, found.high, found.method, *_spread(data))
                at = "" if x is None else f"{x:.10g}"
                writer.writerow([*(cell[name] for name in factors), metric, at, unit, len(data), *map(_text, numbers)])


def _spread(data: list[float]) -> tuple[float, float, float, float | str]:
    import numpy as np

    q1, q3 = np.percentile(data, [25, 75])
    return float(q1), float(q3), float(np.mean(data)), float(np.std(data, ddof=1)) if len(data) > 1 else ""


def _text(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
