"""Runs a benchmark: every treatment once in each turn, in an order drawn for the turn, in a temporary instance.

Invariants: each sample, also a failed one, is written to the file when its run ends; no cluster of the instance is left
after a run that failed, nor after another unless the benchmark keeps its clusters; however the benchmark ends, the
samples are kept and the instance is removed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import as_root
from wherry.client import Client
from wherry.lab.bench.definition import Benchmark, Levels, Row
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import temporary_instance, working_directory
from wherry.lab.environment import environment, load
from wherry.lab.interleave import interleaved
from wherry.lab.report.page import Report, Table
from wherry.lab.report.statistics import INTERVALS

SEED = 20_061
_MAX_CONSECUTIVE_FAILURES = 5
"""The benchmark stops after this many: the machine is then likely at fault."""
ProgressCallback = Callable[[int, int, str], None]
"""Called after each run with: runs done, runs in all, outcome."""


def run(benchmark: Benchmark, repetitions: int, out: Path, keep: bool, on_progress: ProgressCallback) -> Samples:
    """Makes all runs and returns their samples, which are stored in `out`. Raises Failed when none counts."""
    name = benchmark.name
    if repetitions < 1:
        raise Refused(Code.USAGE, f"--reps {repetitions}: at least one run of each", "", f"wherry bench run {name}")
    if os.geteuid() != 0:
        raise Refused(Code.PERMISSION, "a benchmark needs root", "it makes clusters", as_root(["bench", "run", name]))
    planned = [
        (turn, levels)
        for turn in range(repetitions)
        for levels in interleaved(benchmark.levels(), f"{SEED}/{name}/{turn}")
    ]
    samples = Samples(out, {"benchmark": name, "settings": vars(benchmark), "environment": environment()})
    with temporary_instance("bench", keep=keep), working_directory() as directory, Client() as client:
        consecutive_failures = 0
        for number, (turn, levels) in enumerate(planned, 1):
            if number == 1 or benchmark.fresh_fabric:
                benchmark.prepare(client)
            rows = list(_rows(benchmark, client, levels, directory))
            for row in rows:
                samples.add(turn=turn, load=load(), **levels, **row)
                on_progress(
                    number,
                    len(planned),
                    f"{_levels_text(levels)}: {row.get('problem') or benchmark.describe_sample(row)}",
                )
            if benchmark.fresh_fabric:
                client.wait(client.fabric_down().id)
            consecutive_failures = 0 if any(row.get("ok", True) for row in rows) else consecutive_failures + 1
            if consecutive_failures >= _MAX_CONSECUTIVE_FAILURES:
                raise Failed(
                    Code.FAILED, f"{consecutive_failures} runs in a row failed", str(rows[-1]["problem"]), f"see {out}"
                )
    if not any(samples.good()):
        raise Failed(Code.FAILED, f"no run of the benchmark {name} counts", "", f"see {out}")
    return samples


def _rows(benchmark: Benchmark, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
    keep = False
    try:
        yield from benchmark.measure(client, levels, directory)
        keep = benchmark.keeps_clusters
    except WherryError as error:
        if error.code == Code.CANCELLED:  # Ctrl-C during a wait for an operation
            raise KeyboardInterrupt from error
        yield {"ok": False, "problem": str(error)}
    except subprocess.TimeoutExpired as error:
        yield {"ok": False, "problem": f"did not end within {error.timeout:.0f} s"}
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
    return Report(
        title=f"Benchmark {benchmark.name}",
        summary=f"{benchmark.compares}. Medians with {INTERVALS}. A goal is met when the whole interval keeps it.",
        tables=[compared, *benchmark.tables(samples)],
        remarks=[*benchmark.remarks, f"Samples that failed and do not count: {samples.failed()}."],
        environment={**samples.header["environment"], "load after": load()},
    )
