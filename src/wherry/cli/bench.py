"""`wherry bench`: measurements of Wherry itself, beside baselines and goals.

Nothing of the lab is imported before a command runs: its libraries are an extra, and help stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.output import Output, emit, table

app = App(name="bench", help="Benchmarks of Wherry itself, beside baselines and goals.")


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the benchmarks."""
    from wherry.lab.bench.catalog import BENCHMARKS

    rows = [(kind.name, *kind.duration, kind.compares) for kind in BENCHMARKS]
    data = {"benchmarks": [dict(zip(("name", "lasts", "lasts_quick", "compares"), row, strict=True)) for row in rows]}
    emit(output, "bench-list", data, lambda: table(("BENCHMARK", "LASTS", "QUICK", "COMPARES"), rows, "none"))


@app.command
def run(
    name: str,
    /,
    *,
    quick: Annotated[bool, Parameter(help="Fewer and smaller runs: minutes.")] = False,
    reps: int | None = None,
    out: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    keep: bool = False,
) -> None:
    """Run a benchmark, or continue it after an interruption; with a larger --reps, extend it. Ctrl-C keeps the runs.

    Runs are interleaved; medians have intervals, and each ratio is beside its goal.

    Parameters
    ----------
    name
        The benchmark.
    reps
        How often each combination is run, in all.
    out
        File for the samples, one JSON line each; the report is beside it as .html. Default: ./bench-NAME.jsonl.
    settings
        Another setting of the benchmark, as FIELD=VALUE; may be repeated.
    keep
        Leave the instance as it is at the end.
    """
    from wherry.lab.bench import runner
    from wherry.lab.bench.catalog import find
    from wherry.lab.report.console import Progress, print_table

    benchmark, samples = find(name, quick=quick, settings=settings), out or Path(f"bench-{name}.jsonl")
    default = benchmark.quick_repetitions if quick else benchmark.repetitions
    with signals_as_interrupt(), Progress("making the cluster") as progress:
        found = runner.run(benchmark, default if reps is None else reps, samples.resolve(), keep, progress)
    for report_table in found.tables:
        print_table(report_table)
    print(f"\nreport: {runner.page_of(samples)}\nsamples: {samples}")


@app.command
def report(samples: Path, /) -> None:
    """Write the report of a benchmark again, from its samples.

    Parameters
    ----------
    samples
        The file of the samples.
    """
    from wherry.lab.bench import runner
    from wherry.lab.report.console import print_table

    for report_table in runner.write_again(samples).tables:
        print_table(report_table)
    print(f"\nreport: {runner.page_of(samples)}")
