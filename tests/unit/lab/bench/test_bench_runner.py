"""Benchmarks: the runner with a synthetic definition, and the comparisons of each real definition."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Code, Failed, Refused
from wherry.client import Client
from wherry.lab.bench import runner
from wherry.lab.bench.catalog import BENCHMARKS, find
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.launcher_rows import ROWS
from wherry.lab.bench.samples import Samples
from wherry.lab.report.statistics import median


class FakeClient:
    """A client of a service with one cluster; counts how often it is removed."""

    def __init__(self) -> None:
        self.removed_clusters = 0

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def auto_balance(self, on: bool) -> None:
        return

    def operations(self, running: bool) -> list[Any]:
        return []

    def clusters(self) -> list[dict[str, str]]:
        return [{"name": "bench"}]

    def down(self, name: str, end_jobs: bool) -> Any:
        self.removed_clusters += 1
        return self

    id = "op-1"

    def wait(self, id: str) -> None:
        return


@dataclass(frozen=True)
class MadeUpBenchmark(Benchmark):
    """A takes twice as long as B; the levels named in `failing` fail."""

    name = "made"
    compares = "A beside B"
    duration = ("a second", "a second")
    columns = ("A", "B")
    failing: str = ""

    def levels(self) -> Sequence[Levels]:
        return [{"kind": kind} for kind in "ab"]

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        if levels["kind"] in self.failing:
            raise Failed(Code.FAILED, "it broke")
        yield {"seconds": 2.0 if levels["kind"] == "a" else 1.0}

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        return [Comparison("one", *(samples.values("seconds", kind=kind) for kind in "ab"), Goal(at_most=2.5))]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClient:
    fake = FakeClient()

    @contextmanager
    def nothing(*_: object, **__: object) -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr(runner, "Client", lambda: fake)
    monkeypatch.setattr(runner, "temporary_instance", nothing)
    monkeypatch.setattr(runner, "working_directory", nothing)
    monkeypatch.setattr(runner.os, "geteuid", lambda: 0)
    return fake


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_turn_measures_every_combination_once(service: FakeClient, tmp_path: Path) -> None:
    messages: list[str] = []
    report = runner.run(
        MadeUpBenchmark(), 6, tmp_path / "s.jsonl", False, lambda done, total, text: messages.append(text)
    )
    header, *rows = lines(tmp_path / "s.jsonl")
    assert header["header"]["benchmark"] == "made" and "cpu" in header["header"]["environment"]
    assert [row["turn"] for row in rows] == [turn for turn in range(6) for _ in "ab"] and len(messages) == 12
    assert all({row["kind"] for row in rows[at : at + 2]} == {"a", "b"} for at in range(0, 12, 2))
    assert len({rows[at]["kind"] for at in range(0, 12, 2)}) == 2, "the order is drawn for each turn"
    assert service.removed_clusters == 12
    table = report.tables[0]
    assert list(table.head) == ["", "A", "B", "ratio", "goal", "verdict"]
    assert table.rows[0][3].startswith("2 [2, 2]") and list(table.rows[0][4:]) == ["at most 2.5", "met"]


def test_failed_run_is_recorded_and_the_benchmark_continues(service: FakeClient, tmp_path: Path) -> None:
    report = runner.run(MadeUpBenchmark(failing="b"), 2, tmp_path / "s.jsonl", False, lambda *_: None)
    samples = Samples.read(tmp_path / "s.jsonl")
    assert samples.failed() == 2 and len(samples.values("seconds")) == 2
    assert [row["problem"] for row in lines(tmp_path / "s.jsonl")[1:] if not row["ok"]] == ["it broke", "it broke"]
    assert "Samples that failed and do not count: 2." in report.remarks
    assert "it broke" not in (tmp_path / "s.html").read_text()
    assert "not measured" in "".join(report.tables[0].rows[0]) or report.tables[0].rows[0][-1] == "met"


def test_benchmark_stops_after_consecutive_failures(service: FakeClient, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="5 runs in a row failed"):
        runner.run(MadeUpBenchmark(failing="ab"), 9, tmp_path / "s.jsonl", False, lambda *_: None)
    assert len(lines(tmp_path / "s.jsonl")) == 6 and service.removed_clusters == 5
    with pytest.raises(Failed, match="no run of the benchmark made counts"):
        runner.run(MadeUpBenchmark(failing="ab"), 1, tmp_path / "t.jsonl", False, lambda *_: None)
    assert not (tmp_path / "t.html").exists()


def test_ctrl_c_during_an_operation_ends_the_benchmark(
    service: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(*_: object) -> Iterable[Row]:
        raise Failed(Code.CANCELLED, "cancelled")

    monkeypatch.setattr(MadeUpBenchmark, "measure", cancelled)
    with pytest.raises(Failed, match="interrupted: 2 runs are missing"):
        runner.run(MadeUpBenchmark(), 1, tmp_path / "s.jsonl", False, lambda *_: None)
    assert service.removed_clusters == 1


def run(out: Path, repetitions: int, benchmark: Benchmark | None = None) -> list[tuple[int, str, bool]]:
    """Turn and kind of all samples there are then, and whether they count."""
    runner.run(benchmark or MadeUpBenchmark(), repetitions, out, False, lambda *_: None)
    return [(row["turn"], row["kind"], row["ok"]) for row in lines(out) if "header" not in row]


def test_a_benchmark_is_continued_and_extended(
    service: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that count are kept; a run that failed or was cut off is made again."""
    whole = run(tmp_path / "whole.jsonl", 4)
    out, measure = tmp_path / "s.jsonl", MadeUpBenchmark.measure
    made = list[str]()

    def interrupted(self: Benchmark, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        made.append(levels["kind"])
        if len(made) == 2:
            raise ValueError("an odd answer")
        if len(made) == 4:
            raise KeyboardInterrupt
        return measure(self, client, levels, directory)

    monkeypatch.setattr(MadeUpBenchmark, "measure", interrupted)
    with pytest.raises(Failed, match="interrupted: 4 runs are missing"):
        run(out, 3)
    (failed,) = Samples.read(out).bad()
    assert failed["problem"] == "ValueError: an odd answer" and "interrupted" in failed["traceback"]
    assert (tmp_path / "s.html").exists(), "of the runs so far"
    monkeypatch.setattr(MadeUpBenchmark, "measure", measure)
    out.write_text(out.read_text() + '{"ok": true, "tu')
    again = run(out, 3)
    assert sorted(one for one in again if one[2]) == sorted(whole[:6]) and len(again) == 7
    assert run(out, 4)[7:] == whole[6:], "in the order that it would have had anyway"
    before = out.read_text()
    assert run(out, 4) and out.read_text().startswith(before) and service.removed_clusters == 8 + 3 + 1 + 4 + 2
    assert "The runs were made in 4 sessions." in (tmp_path / "s.html").read_text()


def test_samples_of_something_else_are_not_continued(
    service: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.jsonl"
    run(out, 1)
    before = out.read_text()
    with pytest.raises(Refused, match="cannot be continued here") as refused:
        run(out, 1, MadeUpBenchmark(failing="b"))
    assert "failing" in refused.value.why and refused.value.next == "choose another --out"
    here = runner.environment()
    monkeypatch.setattr(runner, "environment", lambda: {**here, "kernel": "7"})
    with pytest.raises(Refused, match="cannot be continued here") as refused:
        run(out, 1)
    assert refused.value.why == f"kernel: {here['kernel']} then, 7 now" and out.read_text() == before
    (tmp_path / "other").write_text("a,b\n1,2\n")
    with pytest.raises(Refused, match="has no samples of a benchmark"):
        run(tmp_path / "other", 1)


def test_a_report_is_written_again_from_its_samples(tmp_path: Path) -> None:
    header = {"benchmark": "launcher", "settings": vars(find("launcher")), "environment": {}}
    samples = Samples(tmp_path / "s.jsonl", header)
    samples.add(turn=0, load="0.50 0 0", row="one", problem="", **{"ok": False})
    assert runner.write_again(tmp_path / "s.jsonl").environment["load after"] == "0.50 0 0"
    assert "Benchmark launcher" in (tmp_path / "s.html").read_text()
    Samples(tmp_path / "s.jsonl", {**header, "settings": {"gone": 1}})
    with pytest.raises(Refused, match="not the one of this version"):
        runner.write_again(tmp_path / "s.jsonl")


def test_goal_is_met_only_by_the_whole_interval() -> None:
    estimate = median([1.0, 1.0, 1.1])
    assert Goal(at_most=1.1).verdict(estimate) == "met" and Goal(at_most=0.9).verdict(estimate) == "missed"
    assert Goal(at_most=1.05).verdict(estimate) == "not certain"
    assert Goal(at_least=0.95, at_most=1.05).verdict(estimate) == "not certain"
    assert Goal(at_least=1.2).verdict(estimate) == "missed" and Goal(at_least=1.0).verdict(estimate) == "met"


def test_goal_without_a_baseline_applies_to_the_median() -> None:
    assert Comparison("late", [0.1, 0.1], goal=Goal(at_most=0.2)).row()[1:] == (
        "0.1 [0.1, 0.1] n=2", "-", "-", "at most 0.2", "met",
    )  # fmt: skip
    comparison = Comparison("cg", [1.0], [2.0], Goal(at_most=0.6), missed_because="0 of 1 packed")
    assert comparison.row()[-1] == "missed: 0 of 1 packed"
    assert Comparison("cg", [], [2.0], Goal(at_most=0.6)).row()[1:] == (
        "not measured",
        "2 [2, 2] n=1",
        "-",
        "at most 0.6",
        "-",
    )


@pytest.mark.parametrize("kind", BENCHMARKS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("quick", [False, True])
def test_every_benchmark_has_levels_and_a_report_without_samples(
    kind: type[Benchmark], quick: bool, tmp_path: Path
) -> None:
    benchmark = find(kind.name, quick=quick)
    levels = benchmark.levels()
    assert levels and len({json.dumps(combination) for combination in levels}) == len(levels)
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    report = runner.report(benchmark, samples)
    assert report.tables[0].rows and all("met" not in row for row in report.tables[0].rows)
    report.write(tmp_path / "page.html")


def test_settings_are_checked_before_anything_starts() -> None:
    assert vars(find("many-moves", settings=["memory=8"])) == {"seconds": 600, "mpis": "openmpi,mpich", "memory": 8}
    assert find("vm-move", quick=True, settings=["memory=16"]).levels() and vars(find("vm-move"))["memory"] == 32
    for name, settings, why in (
        ("engin", [], "did you mean engine"),
        ("engine", ["size=8MiB"], "sizes"),
        ("engine", ["sizes=eight"], "eight"),
        ("vm-move", ["memory=many"], "not a whole number"),
        ("link-moves", ["overlay=ipsec"], "openvpn"),
        ("vm-move", ["memory=0"], "at least 1"),
    ):
        with pytest.raises(Refused) as refused:
            find(name, settings=settings)
        assert why in refused.value.why


def test_link_moves_are_compared_with_their_bound(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for kind, downtime in (("local", 0.2), ("crossing", 0.6)):
        samples.add(memory=16, kind=kind, downtime=downtime, total=2 * downtime, bound=0.9)
    table = runner.report(find("link-moves", quick=True), samples).tables[0]
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts == {
        "16 MiB, downtime": "met", "16 MiB, downtime of a local move": "-",
        "16 MiB, total": "missed", "16 MiB, total of a local move": "-",
    }  # fmt: skip


def test_many_moves_compares_the_end_with_the_beginning(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for part, downtime, descriptors in (("first", 0.2, 50.0), ("last", 0.2, 90.0)):
        samples.add(mpi="mpich", part=part, downtime=downtime, total=0.5, descriptors=descriptors, memory=40.0)
    samples.add(mpi="mpich", part="all", moves=1000.0, iterations=5.0)
    table = runner.report(find("many-moves", settings=["mpis=mpich"]), samples).tables[0]
    verdicts = {row[0].removeprefix("mpich: "): row[-1] for row in table.rows}
    assert verdicts == {
        "moves of one job": "-", "downtime, s": "met", "total migration time, s": "met",
        "open descriptors of the daemon": "missed", "memory of the daemon, MiB": "met",
    }  # fmt: skip


def test_a_move_is_measured_with_one_thing_at_a_time(tmp_path: Path) -> None:
    benchmark = find("move", settings=["processes=1,64", "threads=400", "mappings=", "files=10"])
    assert benchmark.levels() == [
        {"many": many, "count": count}
        for many, count in (("processes", 1), ("processes", 64), ("threads", 400), ("files", 10))
    ]
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for many, count, downtime in (("processes", 1, 0.1), ("processes", 64, 0.226), ("threads", 400, 0.3)):
        phases = dict.fromkeys(("prepare", "freeze", "transfer", "restore", "commit", "thaw", "done"), downtime / 5)
        samples.add(many=many, count=count, downtime=downtime, total=1.0, gap=0.2, phases=phases)
    report = runner.report(benchmark, samples)
    verdicts = {row[0]: row[-1] for row in report.tables[0].rows}
    assert verdicts == {
        "1 processes: downtime, s": "-", "64 processes: downtime, s": "met",
        "64 processes: each further process, s": "met", "400 threads: downtime, s": "missed",
        "10 files: downtime, s": "-",
    }  # fmt: skip
    (where,) = [table for table in report.tables if table.title == "Medians in milliseconds"]
    assert list(where.rows[1]) == ["64 processes", *["45.2"] * 5, "200.0", "1000.0"]
    other = find("move", settings=["memory=8MiB"])
    assert all(row.goal is None for row in other.comparisons(samples) if "downtime" in row.label)


def test_launcher_says_which_differences_are_meant(tmp_path: Path) -> None:
    benchmark = find("launcher", settings=["mpis=one,two", "rows=code,kill,umask"])
    assert benchmark.levels() == [{"mpi": "one", "row": ""}, {"mpi": "two", "row": ""}], "neither is installed"
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for row, native, wherry, reason in (
        ("umask", "0027; 640", "0022; 644", ""),
        ("code", "exit code 7", "exit code 7", ""),
        ("kill", "ranks end", "ranks run on", "jobs outlive their client"),
    ):
        found = {"native": native, "wherry": wherry, "same": native == wherry, "reason": reason}
        samples.add(mpi="one", row=row, version="MPICH 4.0.2", **found)
    samples.add(mpi="two", row="", skipped="there is no launcher two")
    report = runner.report(benchmark, samples)
    agree, rows, absent = report.tables
    assert [row[0] for row in rows.rows][1:] == ["`umask 027`", "rank 1 ends with 7"], "in the order of the rows"
    assert [row[3:] for row in rows.rows] == [("on purpose", "jobs outlive their client"), ("NO", ""), ("yes", "")]
    assert agree.rows[0][0].startswith("MPICH 4.0.2") and agree.rows[0][-1] == "missed"
    assert list(absent.rows) == [("two", "there is no launcher two")]
    with pytest.raises(Refused) as refused:
        find("launcher", settings=["rows=code,coed"])
    assert "coed" in refused.value.why


def test_launcher_page_has_every_row_of_each_mpi(tmp_path: Path) -> None:
    top = Path(__file__).resolve().parents[4]
    page = (top / "docs" / "reports" / "launcher.md").read_text()
    sections = page.split("\n## ")[1:]
    assert len(sections) == 4 and not re.search(r"(?<![\w.])/(?:home|root|work|src)/", page)
    for section in sections:
        titles = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]
        assert titles == [row.title.replace("|", "\\|") for row in ROWS], "scripts/launcher-table writes it anew"
    kept = Samples(tmp_path / "s.jsonl", {"settings": vars(find("launcher", settings=["mpis=one"]))})
    kept.add(mpi="one", row="code", version="MPICH 4.0.2", native="7", wherry="7", same=True, reason="")
    again = Samples.read(tmp_path / "s.jsonl")
    assert list(again.good()) == list(kept.good()) and again.header == kept.header


@pytest.mark.parametrize("setting", ["processes=4,16", "processes=0,1", "threads=many", "moves=0", "memory=8"])
def test_a_move_of_nothing_is_not_measured(setting: str) -> None:
    with pytest.raises(Refused):
        find("move", settings=[setting])
