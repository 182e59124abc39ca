"""`wherry study`: the lab's repeatable experiments.

Nothing of the lab is imported before a command runs, so that help stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.output import Output, emit, table

if TYPE_CHECKING:
    from wherry.lab.study.own_hosts import OwnHosts

app = App(name="study", help="Studies: repeatable experiments that end in a report.")

Quick = Annotated[bool, Parameter(help="Shorter runs and fewer of them: minutes, not an hour.")]
Paper = Annotated[bool, Parameter(help="The sizes of the paper, where it gives them: for a large machine.")]
Set = Annotated[
    tuple[str, ...], Parameter(name="--set", help="NAME=VALUE: a size, class, moment or count; may be repeated.")
]
Ranks = Annotated[int | None, Parameter(help="Ranks, in a study that has a setting for them (wherry study show).")]
Sites = Annotated[int | None, Parameter(help="Sites that a job is spread over, likewise.")]
Hosts = Annotated[int | None, Parameter(help="Hosts, likewise.")]
Fabric = Annotated[
    Path | None, Parameter(help="Run on the hosts of this fabric file (driver: ssh), not on emulated ones.")
]


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the studies."""
    from wherry.lab.study.catalog import STUDIES

    rows = [(study.name, *study.duration, study.question) for study in STUDIES]
    keys = ("name", "lasts", "lasts_quick", "question")
    data = {"studies": [dict(zip(keys, row, strict=True)) for row in rows]}
    emit(output, "study-list", data, lambda: table(("STUDY", "LASTS", "QUICK", "QUESTION"), rows, "no studies"))


@app.command
def show(
    name: str,
    /,
    *,
    quick: Quick = False,
    paper: Paper = False,
    settings: Set = (),
    ranks: Ranks = None,
    sites: Sites = None,
    hosts: Hosts = None,
    fabric: Fabric = None,
    output: Output = "text",
) -> None:
    """Show a study: its factors, repetitions, verification and limits.

    Parameters
    ----------
    name
        The study.
    """
    from wherry.client import daemon_process
    from wherry.lab.study.catalog import find
    from wherry.lab.study.execution import describe
    from wherry.lab.study.requirements import unavailable_features

    given = _given(name, settings, ranks=ranks, sites=sites, hosts=hosts)
    own = _own_hosts(fabric)
    lacks = unavailable_features(daemon_process.examine()) | (own.unavailable() if own else {})
    data = describe(find(name)(quick, lacks, given, paper, own_hosts=own))
    emit(output, "study", data, lambda: _print_study(data))


@app.command
def run(
    name: str,
    /,
    *,
    quick: Quick = False,
    paper: Paper = False,
    settings: Set = (),
    ranks: Ranks = None,
    sites: Sites = None,
    hosts: Hosts = None,
    fabric: Fabric = None,
    out: Path | None = None,
    reps: int | None = None,
    keep: bool = False,
    output: Output = "text",
) -> int:
    """Run a study, or continue a study that was interrupted; with a larger --reps, extend it. Ctrl-C keeps the runs.

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

    given, own = _given(name, settings, ranks=ranks, sites=sites, hosts=hosts), _own_hosts(fabric)
    with signals_as_interrupt(), Progress("making the cluster") as progress:
        results, files = execution.run(
            name,
            quick=quick,
            out=out,
            repetitions=reps,
            keep=keep,
            on_progress=progress,
            settings=given,
            paper=paper,
            own_hosts=own,
        )
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


def _given(name: str, settings: tuple[str, ...], **counts: int | None) -> dict[str, str]:
    """Texts of the settings that were typed, those of options of their own included."""
    from wherry.lab.study.catalog import find
    from wherry.lab.study.counts import with_counts
    from wherry.lab.study.settings import parse_words

    return with_counts(find(name), parse_words(settings), counts)


def _own_hosts(fabric: Path | None) -> OwnHosts | None:
    """The hosts of a fabric file."""
    if fabric is None:
        return None
    from wherry.cli.files import read_fabric
    from wherry.lab.study.own_hosts import OwnHosts

    return OwnHosts.of(read_fabric(fabric), str(fabric))


def _print_study(data: dict[str, Any]) -> None:
    print(f"{data['name']}: {data['title']}\n{data['question']}\n")
    for factor in data["factors"]:
        print(f"{factor['name']}: {factor['text']}")
        for level in factor["levels"]:
            reason = f" (left out: {level['left_out']})" if level["left_out"] else ""
            print(f"  {level['name']}: {level['text']}{reason}")
    if data["settings"]:
        print("\nsettings (--set NAME=VALUE):")
    for one in data["settings"]:
        paper = f"; in the paper {one['paper']}" if one["paper"] else ""
        name = f"{one['name']} (or {one['option']})" if one["option"] else one["name"]
        print(f"  {name} = {one['value']}: {one['text']} (in full {one['full']}, --quick {one['quick']}{paper})")
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


@app.command
def publish(report: Path, /, *, name: str | None = None, output: Output = "text") -> None:
    """Give the report of a study to the daemon, whose web page shows it to users who see your objects.

    Root's are shown to all accounts. One of yours with the same name is replaced.

    Parameters
    ----------
    report
        The study's directory, or its report (an HTML file).
    name
        At most 20 lower-case letters, digits and inner hyphens; default: the directory's or file's.
    """
    from wherry.base.errors import Code, Refused
    from wherry.client import Client

    file = report / "report.html" if report.is_dir() else report
    if not file.is_file():
        raise Refused(Code.NOT_FOUND, f"there is no report {file}", "", f"wherry study report {report}")
    html = file.read_text(errors="replace")
    with Client() as client:
        found = client.put_report(name or report.resolve().stem, _title_of(html), html)
    emit(output, "report", found, lambda: print(f"Report {found['name']} is on the page: {found['title']}"))


@app.command
def withdraw(name: str, /, *, output: Output = "text") -> None:
    """Remove a report from the web page.

    Parameters
    ----------
    name
        Its name there.
    """
    from wherry.client import Client

    with Client() as client:
        found = client.remove_report(name)
    emit(output, "report", found, lambda: print(f"Report {name} is no more on the page."))


def _title_of(html: str) -> str:
    """The content of the title element of a page."""
    import re
    from html import unescape

    found = re.search(r"<title>(.*?)</title>", html, re.DOTALL | re.IGNORECASE)
    return unescape(" ".join(found[1].split()))[:200] if found else "report"
