"""`wherry study`: the lab's repeatable experiments.

Nothing of the lab is imported before a command runs, so that help stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.output import Output, emit, table

app = App(name="study", help="Studies: repeatable experiments that end in a report.")

Quick = Annotated[bool, Parameter(help="Shorter runs and fewer of them: minutes, not an hour.")]


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the studies."""
    from wherry.lab.study.catalog import STUDIES

    rows = [(study.name, *study.duration, study.question) for study in STUDIES]
    keys = ("name", "lasts", "lasts_quick", "question")
    data = {"studies": [dict(zip(keys, row, strict=True)) for row in rows]}
    emit(output, "study-list", data, lambda: table(("STUDY", "LASTS", "QUICK", "QUESTION"), rows, "no studies"))


@app.command
def show(name: str, /, *, quick: Quick = False, output: Output = "text") -> None:
    """Show a study: what it varies, how often, what is verified, what it can and cannot show.

    Parameters
    ----------
    name
        The study.
    """
    from wherry.client import daemon_process
    from wherry.lab.study.catalog import find
    from wherry.lab.study.execution import describe
    from wherry.lab.study.requirements import unavailable_features

    data = describe(find(name)(quick, unavailable_features(daemon_process.examine())))
    emit(output, "study", data, lambda: _print_study(data))


@app.command
def run(
    name: str,
    /,
    *,
    quick: Quick = False,
    out: Path | None = None,
    reps: int | None = None,
    keep: bool = False,
    output: Output = "text",
) -> int:
    """Run a study, or go on with one that was cut short; with a larger --reps, extend it. Ctrl-C keeps what there is.

    Parameters
    ----------
    name
        The study.
    out
        Its directory; default: ./study-NAME, or ./study-NAME-quick.
    reps
        How often each combination is run, in all.
    keep
        Leave its clusters up.
    """
    from wherry.lab.report.console import Progress
    from wherry.lab.study import execution, runner

    with signals_as_interrupt(), Progress("making the cluster") as progress:
        results, files = execution.run(name, quick=quick, out=out, repetitions=reps, keep=keep, on_progress=progress)
    missing = runner.count_missing(results)
    data = {
        "study": name,
        "counted": len(results.counted()),
        "failed": len(results.failed()),
        "missing": missing,
        "files": [str(path) for path in (*files, results.samples_file)],
    }
    emit(output, "study-run", data, lambda: _print_end(data))
    return 6 if missing else 0


@app.command
def report(directory: Path, /, *, output: Output = "text") -> None:
    """Write the report of a study again, from its samples.

    Parameters
    ----------
    directory
        The study's directory.
    """
    from wherry.lab.study import execution, render

    files = [str(path) for path in render.write(execution.load(directory))]
    emit(output, "study-report", {"files": files}, lambda: print("\n".join(files)))


@app.command
def compare(old: Path, new: Path, /, *, output: Output = "text") -> None:
    """Compare two runs of a study, also of two machines: every number as new over old.

    Parameters
    ----------
    old
        Directory of the one.
    new
        Directory of the other.
    """
    from wherry.lab.study import compare as comparing
    from wherry.lab.study.execution import load

    old_results, new_results = load(old), load(new)
    differences, caveats = comparing.differences(old_results, new_results), comparing.caveats(old_results, new_results)
    rows = [
        (
            difference.cell,
            difference.metric,
            "" if difference.x is None else f"{difference.x:g}",
            f"{difference.ratio:.3g} [{difference.low:.3g}, {difference.high:.3g}]",
            f"{difference.old_runs}, {difference.new_runs}",
            "too few runs" if difference.p is None else f"{difference.p:.2g}",
        )
        for difference in differences
    ]
    head = ("COMBINATION", "NUMBER", "AT", "NEW : OLD", "RUNS", "P")
    data = {"differences": [difference.as_json() for difference in differences], "caveats": caveats}

    def text() -> None:
        table(head, rows, "nothing that both measured")
        print("\n".join(caveats))

    emit(output, "study-compare", data, text)


def _print_study(data: dict[str, Any]) -> None:
    print(f"{data['name']}: {data['title']}\n{data['question']}\n")
    for factor in data["factors"]:
        print(f"{factor['name']}: {factor['text']}")
        for level in factor["levels"]:
            reason = f" (left out: {level['left_out']})" if level["left_out"] else ""
            print(f"  {level['name']}: {level['text']}{reason}")
    warm = f"after {data['warmups']} to warm up in each session" if data["warmups"] else "none to warm up"
    print(f"\n{data['repetitions']} runs of each of {len(data['combinations'])} combinations, {warm}.")
    print(f"Their order is drawn with seed {data['seed']}. It lasts {data['lasts']} on two cores.")
    parts = (("A run counts when", "verified"), ("Tables", "tables"), ("Figures", "figures"))
    for title, key in (*parts, ("Shows", "shows"), ("Cannot show", "cannot_show")):
        print(f"{title}:")
        for line in data[key]:
            print(f"  {line}")


def _print_end(data: dict[str, Any]) -> None:
    print(f"{data['counted']} runs count, {data['failed']} failed, {data['missing']} are missing.")
    print("\n".join(data["files"]))
