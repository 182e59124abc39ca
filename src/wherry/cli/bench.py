"""`wherry bench`: measurements of Wherry itself, beside baselines and goals.

Nothing of the lab is imported before a command runs: its libraries are an extra, and help stays quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.output import Output, emit, table

app = App(
    name="bench", help="Benchmarks of Wherry itself, beside baselines and goals. Without a word: the one of a move."
)


@app.default
def engine(
    *, out: Path = Path("bench-report"), reps: int = 5, sizes: str = "8MiB,64MiB,256MiB,1GiB", keep: bool = False
) -> None:
    """Measure the cost of a container's move for its program, by memory size, beside runc and podman by hand.

    Parameters
    ----------
    out
        Directory for report.html and samples.jsonl.
    reps
        Samples of each size and kind.
    sizes
        Memory of the program, several values separated by commas.
    keep
        Leave the instance as it is at the end.
    """
    settings = [f"sizes={sizes}", "files=", "links=", "contents=", "job="]
    _run("engine", settings, False, reps, out / "samples.jsonl", out / "report.html", keep)


def vmbench(
    out: Path = Path("vmbench-report"), *, pairs: int = 10, memory: int = 32, seconds: int = 40, keep: bool = False
) -> None:
    """A virtual machine's move under an MPI job, beside virsh migrate --live: `wherry bench run vm-move`.

    Parameters
    ----------
    out
        Directory for report.html and samples.jsonl.
    pairs
        Samples of each kind.
    memory
        MiB that each rank writes to, over and over.
    seconds
        How long each job runs; it must outlast the move.
    keep
        Leave the instance as it is at the end.
    """
    settings = [f"memory={memory}", f"seconds={seconds}"]
    _run("vm-move", settings, False, pairs, out / "samples.jsonl", out / "report.html", keep)


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
    """Run a benchmark: interleaved runs, medians with intervals, each ratio beside its goal.

    Parameters
    ----------
    name
        The benchmark.
    reps
        How often each combination is run.
    out
        File for the samples, one JSON line each; the report is beside it as .html. Default: ./bench-NAME.jsonl.
    settings
        Another setting of the benchmark, as FIELD=VALUE; may be repeated.
    keep
        Leave the instance as it is at the end.
    """
    samples = out or Path(f"bench-{name}.jsonl")
    _run(name, settings, quick, reps, samples, samples.with_suffix(".html"), keep)


def _run(name: str, settings: Sequence[str], quick: bool, reps: int | None, out: Path, page: Path, keep: bool) -> None:
    from wherry.lab.bench import runner
    from wherry.lab.bench.catalog import find
    from wherry.lab.report.console import Progress, print_table

    benchmark = find(name, quick=quick, settings=settings)
    default = benchmark.quick_repetitions if quick else benchmark.repetitions
    with signals_as_interrupt(), Progress("making the cluster") as progress:
        samples = runner.run(benchmark, default if reps is None else reps, out.resolve(), keep, progress)
    report = runner.report(benchmark, samples)
    report.write(page)
    for report_table in report.tables:
        print_table(report_table)
    print(f"\nreport: {page}\nsamples: {out}")
