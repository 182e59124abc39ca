"""The study `manycore`: its design, goals and report."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.lab.report.statistics import Estimate
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.results import Results, Run
from wherry_tiles.spec import MODES
from wherry_tiles.study.manycore import LARGEST, TCP, Manycore, combination_of, max_overlap
from wherry_tiles.study.mesh import WAYS
from wherry_tiles.study.page import goal_verdict

WORKING_SETS = ("8", "64", "all")


def test_goal_is_reached_only_by_the_whole_interval() -> None:
    def verdict(low: float, value: float, high: float, **bounds: float) -> str:
        return goal_verdict(Estimate(value, low, high, 20, "bootstrap"), **bounds)[1]

    assert verdict(1.5, 1.8, 2.0, at_most=2) == "reached"
    assert verdict(1.5, 1.8, 2.1, at_most=2) == "not certain"
    assert verdict(1.9, 2.1, 2.2, at_most=2) == "not certain"
    assert verdict(2.1, 2.2, 2.3, at_most=2) == "missed"
    assert verdict(101, 150, 200, at_least=100) == "reached"
    assert verdict(99, 150, 200, at_least=100) == "not certain"
    assert verdict(50, 60, 99, at_least=100) == "missed"
    assert goal_verdict(None, at_most=2) == ("not measured", "")


def test_max_overlap_of_intervals() -> None:
    assert max_overlap([(0, 10)]) == 1
    assert max_overlap([(0, 10), (10, 20), (20, 30)]) == 1  # half-open intervals that touch do not overlap
    assert max_overlap([(0, 10), (9, 20), (8, 9)]) == 2
    assert max_overlap([(0, 10), (2, 3), (2, 9), (8, 12)]) == 3


def test_manycore_covers_all_threads_pages_and_working_sets() -> None:
    combinations = set(Manycore(quick=False).combinations())
    for mode in MODES:
        for threads in map(str, range(1, 18)):
            assert (
                combination_of("move", mode, threads, "0") in combinations
                and combination_of("move", mode, threads, "32") in combinations
            )
    for how in ("precopy", "direct", *TCP):
        for written in WORKING_SETS:
            assert combination_of("move", how, "0", LARGEST, written) in combinations
        assert combination_of("move", how, "17", "32") in combinations


def test_what_is_set_is_what_is_run() -> None:
    given = {
        "threads": "0,3",
        "pages": "4-6",
        "pairs": "1,3",
        "pairs.threads": "2",
        "create.threads": "5",
        "written": "2",
    }
    study = Manycore(False, given={**given, "tcp.threads": "1"})
    made = [dict(combination.levels) for combination in study.combinations()]
    grid = {(one["threads"], one["pages"]) for one in made if one["what"] == "move" and one["how"] == "direct"}
    assert grid == {(t, p) for t in ("0", "3") for p in ("4", "5", "6")} | {("0", LARGEST)}
    assert {(one["threads"], one["pages"]) for one in made if one["how"] == "tcp-direct"} == {
        ("1", "6"),
        ("0", "4"),
        ("0", LARGEST),
    }
    assert {(one["pairs"], one["threads"], one["pages"]) for one in made if one["what"] == "parallel"} == {
        ("1", "2", "6"),
        ("3", "2", "6"),
    }
    assert {one["threads"] for one in made if one["what"] == "threads"} == {"5"}
    assert {one["written"] for one in made if one["pages"] == LARGEST} == {"2", "all"}
    levels = {factor.name: set(factor.measured()) for factor in study.factors()}
    assert all(one[name] in levels[name] for one in made for name in one), "every level is declared"
    assert study.changed_settings()["pages"] == ("4-6", "0,8,16,24,32")


def test_the_stack_of_pthreads_is_said(tmp_path: Path) -> None:
    study = Manycore(False, given={"pthreads.stack": "64KiB"})
    assert study.factors()[1].label("pthreads-small") == "pthreads, stacks of 64KiB"
    page = study.page(Results.create(tmp_path, study, 1))
    assert "pthreads, stacks of 64KiB" in str(page.tables) and "32 KiB" not in str(page.tables)


@pytest.mark.parametrize(
    "typed", ["pages=400", "pages=", "pages=8,x", "pages=9-3", "threads=18", "pairs=0", "pairs=9", "mesh.width=17"]
)
def test_sizes_that_are_none(typed: str) -> None:
    name, _, value = typed.partition("=")
    with pytest.raises(Refused, match=f"{name}={value} is not valid"):
        Manycore(False, given={name: value})


@pytest.mark.parametrize(
    ("width", "height", "near"), [("1", "1", "3"), ("2", "1", "2"), ("16", "2", "1"), ("5", "16", "3")]
)
def test_a_mesh_has_room_for_two_processes_apart_and_no_more_than_tiles_can_be(
    width: str, height: str, near: str
) -> None:
    with pytest.raises(Refused, match=f"mesh of {width} x {height} tiles is not valid") as refused:
        Manycore(False, given={"mesh.width": width, "mesh.height": height})
    assert refused.value.next.endswith(f"--set mesh.width={width} --set mesh.height={near}")
    Manycore(False, given={"mesh.width": width, "mesh.height": near})


def test_the_papers_lists() -> None:
    made = Manycore(False, paper=True).combinations()
    threads = {one["threads"] for one in made if one["what"] == "move" and one["how"] in MODES}
    assert threads == {"0", *map(str, range(1, 18))}, "the goals' process has one thread"
    assert {one["threads"] for one in made if one["what"] == "parallel"} == {"17"}, "it moved those with most resources"


def rows_of(results: Results) -> dict[str, tuple[object, ...]]:
    (table,) = (one for one in results.study.page(results).tables if one.title.startswith("Beside the published"))
    return {str(row[1]): tuple(row) for row in table.rows}


@pytest.mark.parametrize("quick", [True, False])
def test_every_published_value_has_our_own_beside_it(tmp_path: Path, quick: bool) -> None:
    rows = rows_of(filled(tmp_path, quick))
    assert "threads 17, pages 32" in str(rows["1.0"][0]), "the paper moved processes with most resources"
    assert "(1, 0)" in str(rows["19 ms"][0]) and "(17, 32)" in str(rows["113 ms"][0])
    assert "8 pages : 0" in str(rows["1.05 (growth of 5.26 %)"][0])
    assert str(rows["2.98 to 3.46 (198 to 246 %)"][3]) == "1 to 1"
    for published in ("slightly below 1", "about 1"):
        assert str(rows[published][3]).startswith("1 [")
    for published in ("0.92 (-7.8 %)", "0.94 (-5.8 %)", "0.94 (-6.45 %)"):
        assert "not counted here" in str(rows[published][3]), "no run had counters"
    assert not any("not measured" in row for row in rows.values())


def test_counters_are_shown_where_the_machine_has_them(tmp_path: Path) -> None:
    study = Manycore(True)
    results = Results.create(tmp_path, study, 2)
    for how, count in (("separated", 90.0), ("mixed", 100.0)):
        for _ in range(2):
            made = run(results, combination_of("threads", how, "17"))
            made.values.append(Value("branches", count, ""))
            results.add(made)
    assert str(rows_of(results)["0.92 (-7.8 %)"][3]).startswith("0.9 [")


def test_the_mesh_has_its_table(tmp_path: Path) -> None:
    results = filled(tmp_path)
    (table,) = (one for one in results.study.page(results).tables if one.title.startswith("Mesh"))
    assert [row[0] for row in table.rows] == [*WAYS.values(), "far : balanced", "balanced : near"]
    assert table.rows[0][1].startswith("6 ") and table.rows[-1][3].startswith("1 [")


def filled(directory: Path, quick: bool = True) -> Results:
    """Results with two runs of every combination."""
    study = Manycore(quick)
    results = Results.create(directory, study, 2)
    for combination in study.combinations():
        for _ in range(2):
            results.add(run(results, combination))
    return results


def run(results: Results, combination: Combination) -> Run:
    names = ("first", "all", "observed", "seen", "freeze", "copy", "commit", "resume", "create", "join", "first_mean")
    values = [Value(name, 3.0, "s") for name in names]
    values += [Value("memcpy", 2.0, "s"), Value("memcpy_same", 1.0, "s"), Value("downtime", 900.0, "s")]
    values += [Value("hops", 6.0, ""), Value("before", 3.0, "s"), Value("latency_median", 3.0, "s")]
    values += [Value("bytes", 4096.0, "B"), Value("rounds", 1.0, ""), Value("overlap", 2.0, "")]
    return Run(results.next_number(), 1, False, True, combination, 0.0, 1.0, values=values)


def test_page_names_working_sets_and_what_the_last_thread_waits_for(tmp_path: Path) -> None:
    results = filled(tmp_path)
    tables = {table.title.split(":")[0].split(",")[0]: table for table in results.study.page(results).tables}
    goals = tables["Goals"].rows
    assert [row[1] for row in goals] == [f"8 of {LARGEST}", f"64 of {LARGEST}", f"{LARGEST} (all)"] * 4 + ["all"] * 2
    assert all(row[3].startswith("1.5 ") and row[6].startswith("3 ") for row in goals[:-2])
    assert {row[5].split()[0] for row in goals[:-2]} == {"4"}  # KiB copied during the freeze
    assert [row[0].split(" : ")[1] for row in goals[-2:]] == ["precopy", "direct"]
    waits = {row[0]: row[-1] for row in tables["From the first thread to the last"].rows}
    assert waits["14"] == "Linux: a CPU" and waits["15"].startswith("the tile: one of its 15 cores")


@pytest.mark.parametrize(("stack", "has"), [([], 8 << 20), (["32768"], 32768)])
def test_pthreads_have_the_requested_stack_size(stack: list[str], has: int) -> None:
    command = [str(native_program("wherry-baseline")), "threads", "17", "2", *stack]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (result["threads"], result["stack"]) == (17, has) and result["create_ns"] > 0


def test_invalid_stack_size_is_refused() -> None:
    command = [str(native_program("wherry-baseline")), "threads", "17", "2", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "no stacks of 1 bytes" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="it enters network namespaces")
def test_tcp_transfer_is_timed() -> None:
    netns = "/proc/self/ns/net"
    command = [str(native_program("wherry-baseline")), "wire", netns, netns, "127.0.0.1", "65536", "5"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert result["bytes"] == 65536 and 0 < result["nanoseconds"] < 1e9
    refused = subprocess.run([*command[:4], "192.0.2.1", "65536", "5"], check=False, capture_output=True, text=True)
    assert refused.returncode == 1 and "192.0.2.1" in refused.stderr
