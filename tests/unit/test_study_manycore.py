"""The study `manycore`: its design, goals and report."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from wherry.base.paths import native_program
from wherry.lab.report.statistics import Estimate
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.papers.manycore import LARGEST, TCP, WORKING_SETS, Manycore, combination_of, max_overlap
from wherry.lab.study.papers.manycore_page import goal_verdict
from wherry.lab.study.results import Results, Run
from wherry.model.tiles import MODES


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
    values += [Value("bytes", 4096.0, "B"), Value("rounds", 1.0, ""), Value("overlap", 2.0, "")]
    return Run(results.next_number(), 1, False, True, combination, 0.0, 1.0, values=values)


def test_page_names_working_sets_and_what_the_last_thread_waits_for(tmp_path: Path) -> None:
    results = filled(tmp_path)
    tables = {table.title.split(":")[0].split(",")[0]: table for table in results.study.page(results).tables}
    goals = tables["What was to be reached"].rows
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
