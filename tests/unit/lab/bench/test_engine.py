"""The benchmark of the move engine: its treatments, its goals, and the cases that it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.base.errors import Failed, Refused
from wherry.lab.bench import engine, runner
from wherry.lab.bench.baseline_container import Writing, writer_result
from wherry.lab.bench.catalog import find
from wherry.lab.bench.engine_job import seconds_beside, seconds_in_rounds
from wherry.lab.bench.samples import Samples
from wherry.model.records import Move, Phase

MIB = 1 << 20


def test_each_size_is_moved_by_every_means_and_the_link_by_wherry_alone() -> None:
    levels = find("engine", settings=["sizes=8MiB,1GiB", "links=0,0.5", "link_memory=125MiB"]).levels()
    assert [(level["memory"], level["by"]) for level in levels if level["part"] == "size"] == [
        (size, by) for size in (8 * MIB, 1 << 30) for by in ("wherry", "runc", "pre-dump", "podman")
    ]
    over_link = [level for level in levels if level["part"] == "link"]
    assert [(level["by"], level["ratio"]) for level in over_link] == [("wherry", 0.0), ("wherry", 0.5)]
    assert [level["bound"] for level in over_link] == pytest.approx([125 * MIB * 8e-9, 125 * MIB * 16e-9])
    assert all(level["part"] == "size" for level in find("engine", quick=True).levels())


def test_over_the_link_each_kind_of_contents_goes_in_each_way(tmp_path: Path) -> None:
    benchmark = find("engine", settings=["sizes=8MiB", "links=", "job=", "link_memory=64MiB"])
    levels = [level for level in benchmark.levels() if level["part"] == "path"]
    assert {(level["contents"], level["compress"], level["connections"]) for level in levels} == {
        (what, compress, number) for what in ("numbers", "random") for compress in ("off", "on") for number in (1, 4)
    }
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for level in levels:
        size = 8.0 if (level["contents"], level["compress"]) == ("numbers", "on") else 64.0
        samples.add(**level, total=size, mib=size, gap=0.1)
    ratios = {row.label: row.estimate() for row in benchmark.comparisons(samples) if "MiB of" in row.label}
    assert len(ratios) == 18
    for what, expected in (("numbers", 1 / 8), ("random", 1.0)):
        estimate = ratios[f"64.0 MiB of {what}, compressed: the move, s"]
        assert estimate and estimate.value == pytest.approx(expected)


@pytest.mark.parametrize(
    "setting", ["contents=text", "links=1", "links=-0.1", "rate=-1", "sizes=8", "working_set=some"]
)
def test_what_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(Refused):
        find("engine", settings=[setting])


def test_the_error_of_forecasts_is_that_of_nine_moves_of_ten(tmp_path: Path) -> None:
    benchmark = find("engine", settings=["sizes=8MiB", "links="])
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for came in (0.9, 1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 0.8, 1.0, 2.0, 1.0):
        samples.add(part="size", by="wherry", memory=8 * MIB, downtime=came, told_downtime=1.0, total=2.0)
    (row,) = [row for row in benchmark.comparisons(samples) if "foretold" in row.label]
    assert row.samples == pytest.approx([0.2]) and row.row()[-1] == "met" and "of 11 moves" in row.label


def test_goals(tmp_path: Path) -> None:
    benchmark = find("engine", settings=["sizes=8MiB,1GiB", "links=0"])
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    ours = {"part": "size", "by": "wherry", "downtime": 0.05, "total": 1.0, "mib": 9}
    samples.add(**ours, memory=8 * MIB, gap=0.04, peer_gap=0.06, phases={"freeze": 0.001})
    samples.add(**ours, memory=1 << 30, gap=0.09, peer_gap=0.16, phases={"freeze": 0.002})
    for by, gap in (("runc", 1.0), ("podman", 2.0)):
        samples.add(part="size", by=by, memory=1 << 30, gap=gap, peer_gap=gap, total=gap, mib=8)
    (link,) = (level for level in benchmark.levels() if level["part"] == "link")
    samples.add(**link, total=1.2 * link["bound"], gap=0.1)
    first, phases = runner.report(benchmark, samples).tables
    verdicts = {row[0]: row[-1] for row in first.rows}
    gap, peer_gap = "gap that the program sees, s", "gap that its peer sees, s"
    assert {label: verdict for label, verdict in verdicts.items() if verdict != "-"} == {
        f"1.0 GiB, {gap}, beside runc": "met",
        f"1.0 GiB, {gap}, beside podman": "missed",
        f"1.0 GiB, {peer_gap}, beside runc": "missed",
        f"1.0 GiB, {peer_gap}, beside podman": "missed",
        f"8.0 MiB, {gap}": "met",
        f"8.0 MiB, {peer_gap}": "missed",
        f"1.0 GiB beside 8.0 MiB, {gap}": "met",
        f"1.0 GiB beside 8.0 MiB, {peer_gap}": "missed",
        "1.0 GiB over 1Gbit/s, 0 of it written: the move, s": "missed",
    }
    assert [list(row) for row in phases.rows] == [["freeze", "1.0", "2.0"]]


def test_what_is_left_out_is_told_once(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for turn in range(2):
        for size in (8 * MIB, 256 * MIB):
            samples.add(turn=turn, part="size", by="podman", memory=size, left_out="podman is not installed")
    samples.add(part="size", by="runc", memory=8 * MIB, ok=False, problem="it broke")
    table = runner.report(find("engine", quick=True), samples).tables[-1]
    assert [tuple(row) for row in table.rows] == [
        ("podman, 8.0 MiB, 256.0 MiB", "podman is not installed"),
        ("runc, 8.0 MiB", "it broke"),
    ]


def test_a_size_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_available_memory", lambda: 4 << 30)
    benchmark = find("engine")
    (row,) = benchmark.measure(None, {"part": "size", "by": "runc", "memory": 4 << 30}, Path())  # type: ignore[arg-type]
    assert row == {"left_out": "3 copies need 13.0 GiB, and 4.0 GiB of memory are available"}
    assert benchmark.describe_sample(row).startswith("left out: 3 copies")


def test_a_result_that_is_wrong_does_not_count() -> None:
    assert writer_result('ready\n{"wrong": 0, "lost": 0}\n') == {"wrong": 0, "lost": 0}
    for output, words in (('{"wrong": 2, "lost": 1}\n', "2 pages are wrong"), ("ready\n", "did not come to an end")):
        with pytest.raises(Exception, match=words):
            writer_result(output)


def test_the_working_set_is_at_most_the_memory() -> None:
    assert Writing(4096, 2.5e6, 1 << 20).arguments("10.0.0.1") == [
        "write",
        "10.0.0.1",
        "7411",
        "4096",
        "2500000",
        "4096",
    ]


def test_iterations_in_rounds_are_told_from_those_beside() -> None:
    """Rounds from 10.5 to 14.5, in which an iteration takes 2 s; then 1 s of downtime; else each takes 1 s."""
    fields = {"node": "n", "cluster": "c", "source": "a", "destination": "b", "phase": Phase.DONE}
    phases = {"prepare": 0.5, "rounds": 4.0, "freeze": 1.0}
    move = Move(id="m", created=10.0, ended=15.5, downtime=1.0, phases=phases, **fields)
    ends = [8.5, 9.5, 10.5, 12.5, 14.5, 16.5, 17.5, 18.5]
    assert seconds_in_rounds(ends, [move]) == pytest.approx(2.0)
    assert seconds_beside(ends, [move]) == pytest.approx(1.0)
    with pytest.raises(Failed, match="no iteration"):
        seconds_in_rounds([1.0, 2.0], [move])
