"""Runs a benchmark: every treatment once in each turn, in an order drawn for the turn, in a temporary instance.

Invariants: the samples of each run, also of a failed one, are written to the file when it ends, and the report however
the benchmark ends; runs that count are not made again, so the same command continues an interrupted benchmark, and one
with more repetitions extends it; no cluster of the instance is left after a run that failed, nor after another unless
the benchmark keeps its clusters; the instance is removed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import as_root
from wherry.client import Client, identity
from wherry.lab.attempts import FailuresInARow, is_expected, problem_of
from wherry.lab.bench.catalog import again
from wherry.lab.bench.definition import Benchmark, Levels, Row
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import temporary_instance, working_directory
from wherry.lab.environment import environment, load
from wherry.lab.interleave import interleaved
from wherry.lab.report.page import Report, Table
from wherry.lab.report.statistics import INTERVALS

SEED = 20_061
_TREATMENT = "treatment"
"""Field of a sample: the number of its treatment in the benchmark's list."""
ProgressCallback = Callable[[int, int, str], None]
"""Called after each run with: runs done, runs in all, outcome."""
Planned = tuple[int, int, Levels]
"""A run: its turn, the number of its treatment, and that."""


def run(benchmark: Benchmark, repetitions: int, out: Path, keep: bool, on_progress: ProgressCallback) -> Report:
    """Makes the runs that are missing in `out`, and returns the report, which is beside it as .html. Failed when no run
    counts, and when it is interrupted."""
    name = benchmark.name
    if repetitions < 1:
        raise Refused(Code.USAGE, f"--reps {repetitions}: at least one run of each", "", f"wherry bench run {name}")
    if os.geteuid() != 0:
        raise Refused(Code.PERMISSION, "a benchmark needs root", "it makes clusters", as_root(["bench", "run", name]))
    samples = Samples.begin(out, {"benchmark": name, "settings": vars(benchmark), "environment": environment()})
    missing = _missing(benchmark, samples, repetitions)
    try:
        if missing:
            _make(benchmark, samples, missing, keep, on_progress)
    except KeyboardInterrupt:
        left = len(_missing(benchmark, samples, repetitions))
        what, remedy = f"interrupted: {left} runs are missing", "the same command again: it continues here"
        raise Failed(Code.CANCELLED, what, f"see {out}", remedy) from None
    finally:
        identity.hand_over(out)
        if any(samples.good()):
            report(benchmark, samples).write(page := page_of(out))
            identity.hand_over(page)
    if not any(samples.good()):
        raise Failed(Code.FAILED, f"no run of the benchmark {name} counts", "", f"see {out}")
    return report(benchmark, samples)


def page_of(samples: Path) -> Path:
    """The report's file."""
    return samples.with_suffix(".html")


def write_again(path: Path) -> Report:
    """Writes the report of a file of samples again."""
    samples = Samples.read(path)
    found = report(again(samples.header), samples)
    found.write(page_of(path))
    return found


def _missing(benchmark: Benchmark, samples: Samples, repetitions: int) -> list[Planned]:
    """Runs without a sample that counts, in their order."""
    done = {(row.get("turn"), row.get(_TREATMENT)) for row in samples.good()}
    return [
        (turn, number, levels)
        for turn in range(repetitions)
        for number, levels in interleaved(enumerate(benchmark.levels()), f"{SEED}/{benchmark.name}/{turn}")
        if (turn, number) not in done
    ]


def _make(
    benchmark: Benchmark, samples: Samples, missing: list[Planned], keep: bool, on_progress: ProgressCallback
) -> None:
    failures = FailuresInARow()
    with temporary_instance("bench", keep=keep), working_directory() as directory, Client() as client:
        for number, (turn, treatment, levels) in enumerate(missing, 1):
            if number == 1 or benchmark.fresh_fabric:
                benchmark.prepare(client)
            rows = list(_rows(benchmark, client, levels, directory))
            where = {"turn": turn, _TREATMENT: treatment, "load": load(), **levels}
            samples.add_run([{**where, **row} for row in rows])
            for row in rows:
                text = row.get("problem") or benchmark.describe_sample(row)
                on_progress(number, len(missing), f"{_levels_text(levels)}: {text}")
            if benchmark.fresh_fabric:
                client.wait(client.fabric_down().id)
            failures.note("" if any(row.get("ok", True) for row in rows) else rows[-1]["problem"])


def _rows(benchmark: Benchmark, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
    keep = False
    try:
        yield from benchmark.measure(client, levels, directory)
        keep = benchmark.keeps_clusters
    except Exception as error:
        told = {} if is_expected(error) else {"traceback": traceback.format_exc()}
        yield {"ok": False, "problem": problem_of(error), **told}
    finally:
        if not keep:
            _remove_clusters(client)


def _remove_clusters(client: Client) -> None:
    client.auto_balance(False)
    for operation in client.operations(running=True):  # a node may still be moving when the job ends
        with suppress(WherryError):
            client.wait(operation.id)
    for cluster in client.clusters():
        client.wait(client.down(cluster["name"], end_jobs=True).id)


def _levels_text(levels: Levels) -> str:
    return ", ".join(f"{factor} {level}" for factor, level in levels.items())


def report(benchmark: Benchmark, samples: Samples) -> Report:
    """The report, computed from the samples alone."""
    head = ("", *benchmark.columns, "ratio", "goal", "verdict")
    rows = [comparison.row() for comparison in benchmark.comparisons(samples)]
    used = [index for index in range(len(head)) if index == 0 or any(row[index] != "-" for row in rows)]
    compared = Table(benchmark.compares, [head[i] for i in used], [[row[i] for i in used] for row in rows])
    sessions = [f"The runs were made in {samples.sessions} sessions."] if samples.sessions > 1 else []
    return Report(
        title=f"Benchmark {benchmark.name}",
        summary=f"{benchmark.compares}. Medians with {INTERVALS}. A goal is met when the whole interval keeps it.",
        tables=[compared, *benchmark.tables(samples)],
        remarks=[*benchmark.remarks, f"Samples that failed and do not count: {samples.failed()}.", *sessions],
        environment={**samples.header["environment"], "load after": samples.last("load") or "?"},
    )
