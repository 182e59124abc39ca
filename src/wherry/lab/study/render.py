"""Writes a study's results as report.html, report.pdf and summary.csv. Invariant: reports depend on the study's
directory alone, so they are reproducible on any machine.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator, Sequence
from itertools import compress
from operator import not_
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import as_root
from wherry.lab.environment import HOSTS_LOAD
from wherry.lab.report import pdf
from wherry.lab.report.page import Report, Table, svg
from wherry.lab.report.statistics import INTERVALS, median
from wherry.lab.study import runner
from wherry.lab.study.analysis import P_VALUE_MARK, multiple_testing_remarks
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination
from wherry.lab.study.requirements import emulated_combinations
from wherry.lab.study.results import Results, counts_table, own_hosts_text

_MAX_PROBLEMS = 20
_MAX_ROWS_BEFORE_FIGURES = 16
"""Tables with more rows are placed after the figures, unless they are `main`."""
_BUSY_LOAD = 1.5
"""Load per CPU above which the report remarks that ranks competed for CPUs. Two ranks alone make 1 on two CPUs."""
_IDLE_LOAD = 0.5
"""Load per CPU before a session above which the report remarks that something else was running."""
PAGE = "report.html"
_STATISTICS = ("median", "low", "high", "method", "q1", "q3", "mean", "sd")


def write(results: Results[Study]) -> list[Path]:
    """Writes the report's files and returns their paths. Raises Failed or Refused if they cannot be written."""
    html = report(results).html()
    files = [results.directory / name for name in (PAGE, "report.pdf", "summary.csv")]
    try:
        files[0].write_text(html)
        _summary_csv(results, files[2])
        pdf.write(html, files[1])
    except PermissionError as error:
        what, again = "the report is another user's", as_root(["study", "report", str(results.directory)])
        raise Refused(Code.PERMISSION, what, str(error), again) from None
    except OSError as error:
        again = f"make room, then: wherry study report {results.directory}"
        raise Failed(Code.FAILED, "the report cannot be written; the samples are kept", str(error), again) from None
    return files


def report(results: Results[Study]) -> Report:
    """The study's page with the standard remarks on how it was measured."""
    page = results.study.page(results)
    before_figures = [table.main or len(table.rows) <= _MAX_ROWS_BEFORE_FIGURES for table in page.tables]
    return Report(
        title=results.study.title,
        summary=_summary(results),
        tables=list(compress(page.tables, before_figures)),
        figures=[(caption, svg(drawing.as_figure())) for caption, drawing in page.figures],
        details=[*compress(page.tables, map(not_, before_figures)), *_detail_tables(results)],
        remarks=[
            *results.study.shows,
            *results.study.limits(),
            *page.remarks,
            *_standard_remarks(results, page.tables),
        ],
        environment=_environment_rows(results),
    )


def _summary(results: Results[Study]) -> str:
    study, repetitions = results.study, results.manifest["repetitions"]
    missing = runner.count_missing(results)
    runs = sum(study.repetitions_of(combination, repetitions) for combination in study.combinations())
    truncated = f" It was cut short: {missing} of {runs} runs are missing." if missing else ""
    quick = " Made with --quick: shorter runs and fewer of them." if study.quick else ""
    quick += " Made with the paper's sizes (--paper)." if study.paper else ""
    quick += f" Made on {own_hosts_text(results)}." if study.own_hosts else ""
    if changed := study.changed_settings():
        quick += f" Set: {', '.join(f'{name} = {now} (usually {usual})' for name, (now, usual) in changed.items())}."
    return (
        f"{study.question} {repetitions} runs of each combination, in turns whose order was drawn with seed "
        f"{study.seed}{_warmup_text(results)}.{quick}{truncated} Numbers are medians with the count of runs and "
        f"{INTERVALS}."
    )


def _warmup_text(results: Results[Study]) -> str:
    warm = sum(run.warmup for run in results.runs)
    return f", after {warm} runs to warm up, which do not count" if warm else ", without runs to warm up"


def _detail_tables(results: Results[Study]) -> Iterator[Table]:
    yield Table("Runs", ("combination", "counted", "failed", "seconds of a run"), counts_table(results))
    if failed := results.failed():
        rows = [(str(run.number), str(run.combination), run.problem) for run in failed[:_MAX_PROBLEMS]]
        if len(failed) > _MAX_PROBLEMS:
            rows.append(("", f"and {len(failed) - _MAX_PROBLEMS} more", "see samples.csv"))
        yield Table("Runs that failed and do not count", ("run", "combination", "why"), rows)
    left_out = [
        (factor.text, level.text, level.left_out)
        for factor in results.study.factors()
        for level in factor.levels
        if level.left_out
    ]
    if left_out:
        yield Table("Left out", ("factor", "level", "why"), left_out)
    if settings := _settings(results):
        whose = "" if "values" in results.manifest else ", by this version: the record has the given ones alone"
        yield Table(f"Settings{whose}", ("setting", "what it is", "value", "usually"), settings)
    if commands := _commands(results):
        yield Table("Commands", ("combination", "command of a run"), commands)


def _settings(results: Results[Study]) -> list[tuple[str, str, str, str]]:
    """The value of every setting: those of the record, which may have some that this version does not know."""
    study, recorded = results.study, results.manifest.get("values", {})
    rows = [
        (one.name, one.text, one.shown(study.value(one)), one.shown(one.default(study.quick, False)))
        for one in study.settings
    ]
    known = {one.name for one in study.settings}
    return rows + [
        (name, "of another version", str(value), "") for name, value in recorded.items() if name not in known
    ]


def _commands(results: Results[Study]) -> list[tuple[str, str]]:
    """Command of one run for each combination, preferably of a run that counts."""
    commands_found: dict[Combination, str] = {}
    for run in sorted(results.runs, key=lambda run: not run.counts):
        kept = results.directory_of(run) / "command"
        if run.combination not in commands_found and kept.exists():
            # Replaces the run's directory, which depends on where the study was stored.
            commands_found[run.combination] = re.sub(
                rf"[^\s='\"]*/{kept.parent.name}\b", "RUN", kept.read_text().strip()
            )
    same: dict[str, list[str]] = {}
    for combination in results.study.combinations():
        if combination in commands_found:
            same.setdefault("; ".join(commands_found[combination].splitlines()), []).append(str(combination))
    return [("; ".join(cells), command) for command, cells in same.items()]


def _standard_remarks(results: Results[Study], tables: Sequence[Table]) -> list[str]:
    remarks = [
        f"Runs that failed and do not count: {len(results.failed())}. No run that counts was dropped; a figure of "
        "samples has each of them as a dot, a figure of ratios has the ratio of the medians and its interval.",
        *multiple_testing_remarks(
            sum(P_VALUE_MARK in combination for table in tables for row in table.rows for combination in row)
        ),
        _sessions(results),
        *_changes(results),
        *_machines(results),
        *_load(results),
    ]
    if not results.counted():
        remarks.append("Nothing could be measured: no run counts.")
    return remarks


def _sessions(results: Results[Study]) -> str:
    many, own = results.sessions_with_runs(), results.study.own_hosts
    if many < 2 and own:
        return "Ratios compare runs of one session on the same hosts, made in turns; absolute times are these hosts'."
    if many < 2:
        return "Ratios compare runs of one session on one machine, made in turns; absolute times are this machine's."
    return (
        f"The runs were made in {many} sessions, in turns in each: differences between them are in the ratios of "
        "combinations whose runs are not spread alike over them. Absolute times are this machine's."
    )


def _changes(results: Results[Study]) -> list[str]:
    changed = {key: texts for key, texts in results.machine_facts().items() if len(texts) > 1}
    if not changed:
        return []
    text = ". ".join(f"{key}: {'; then '.join(texts)}" for key, texts in changed.items())
    return [f"The environment was not the same in all sessions. {text}."]


def _machines(results: Results[Study]) -> list[str]:
    if not any(results.counted(combination) for combination in emulated_combinations(results.study)):
        return []
    return [
        f"The processors of virtual machines were emulated ({results.study.unavailable['kvm']}): their numbers show "
        "that it works and the direction of a cost, not the cost of a machine, or of its network card, with KVM."
    ]


def _load(results: Results[Study]) -> list[str]:
    """Remarks on background load."""
    if results.study.own_hosts:
        return [
            "The load in samples.csv is that of the machine at which the study was started, where launchers run; that "
            "of the hosts was read at the beginning of each session."
        ]
    remarks = []
    sessions, counted = results.manifest["sessions"], results.counted()
    cpus = float(sessions[-1]["before"]["cpus"]) if sessions else 1.0
    before = [float(session["before"]["load"].split()[0]) for session in sessions]
    if before and max(before) > cpus * _IDLE_LOAD:
        remarks.append(
            f"Before a session began the load of the last minute was {max(before):g} on {cpus:g} CPUs, without "
            "anything of this study: something else ran on the machine, or had just ended."
        )
    busy = [run for run in counted if run.load > cpus * _BUSY_LOAD]
    if busy:
        remarks.append(
            f"CPUs were short: at the end of {len(busy)} of {len(counted)} runs the load of the last minute was above "
            f"{cpus * _BUSY_LOAD:g} on {cpus:g} CPUs (in samples.csv for each run). The study's own ranks are in it, "
            "those of the run before, too, so the owner of the load is unknown; but ranks that wait for each other "
            "then measure the scheduler as well. Read the minima, or take a machine with more CPUs, where nothing else "
            "runs."
        )
    return remarks


def _environment_rows(results: Results[Study]) -> dict[str, str]:
    rows = {key: "; then ".join(texts) for key, texts in results.machine_facts().items()}
    for number, session in enumerate(results.manifest["sessions"], 1):
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(session["started"]))
        hosts = f"; load of hosts before {session['before'][HOSTS_LOAD]}" if HOSTS_LOAD in session["before"] else ""
        loads = f"load before {session['before']['load']}, after {session['after'].get('load', '?')}"
        took = f"for {session['ended'] - session['started']:.0f} s, " if "ended" in session else ""
        rows[f"session {number}"] = f"{begun}, {took}{loads}{hosts}"
    rows.setdefault("fabric", "none: no cluster was made")
    return rows


def _summary_csv(results: Results[Study], path: Path) -> None:
    """One row for each combination, metric and x with samples."""
    study: Study = results.study
    factors = [factor.name for factor in study.factors()]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*factors, "metric", "x", "unit", "n", *_STATISTICS])
        for combination in study.combinations():
            seen = {(v.metric, v.x): v.unit for run in results.counted(combination) for v in run.values}
            for (metric, x), unit in seen.items():
                data = results.values(combination, metric, x)
                commands_found = median(data)
                numbers = (
                    commands_found.value,
                    commands_found.low,
                    commands_found.high,
                    commands_found.method,
                    *_dispersion(data),
                )
                at = "" if x is None else f"{x:.10g}"
                writer.writerow(
                    [*(combination[name] for name in factors), metric, at, unit, len(data), *map(_text, numbers)]
                )


def _dispersion(data: list[float]) -> tuple[float, float, float, float | str]:
    import numpy as np

    q1, q3 = np.percentile(data, [25, 75])
    return float(q1), float(q3), float(np.mean(data)), float(np.std(data, ddof=1)) if len(data) > 1 else ""


def _text(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
