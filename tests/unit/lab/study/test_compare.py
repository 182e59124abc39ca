"""Comparison of two results of a study: ratios, refusals and caveats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakestudy import Act, make, run

from wherry.base.errors import Refused
from wherry.lab.study import compare
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.results import Results


def seconds(value: float) -> Act:
    return lambda combination: [Value("seconds", value, "s")]


def run_study(directory: Path, measure_run: Act, quick: bool = False, repetitions: int = 4) -> Results:
    results = make(directory, measure_run, repetitions, quick)
    run(results)
    return results


def test_two_studies_are_compared_as_ratios(tmp_path: Path) -> None:
    old, new = make(tmp_path / "old"), make(tmp_path / "new", lambda combination: [Value("seconds", 3.0, "s")])
    run(old)
    run(new)
    differences = compare.differences(old, new)
    assert {(difference.cell, difference.ratio) for difference in differences} == {
        ("size=small kind=a", 3.0),
        ("size=large kind=a", 1.5),
    }
    assert all(
        difference.p is not None and difference.p < 0.05 and difference.metric == "seconds"
        for difference in differences
    )
    assert compare.caveats(old, new)[0].startswith("The two were not run in turns")


def test_result_checksums_are_compared_for_equality(tmp_path: Path) -> None:
    def measure_run(crc: float) -> Act:
        return lambda combination: [Value("result_crc", crc if combination["size"] == "large" else 5.0, "")]

    old, new = make(tmp_path / "old", measure_run(7.0)), make(tmp_path / "new", measure_run(8.0))
    run(old)
    run(new)
    assert compare.differences(old, new) == []
    assert compare.caveats(old, new)[1:] == ["size=large kind=a: the program's result is not the same"]


def test_quick_and_full_studies_are_not_compared(tmp_path: Path) -> None:
    """Their combinations have the same names but different problem sizes."""
    old, new = run_study(tmp_path / "old", seconds(1.0), quick=True), run_study(tmp_path / "new", seconds(9.0))
    for pair in ((old, new), (new, old)):
        with pytest.raises(Refused, match="short study") as raised:
            compare.differences(*pair)
        assert (
            str(old.directory) in raised.value.why.partition("--quick")[0] and "wherry study run" in raised.value.next
        )


def test_metrics_of_only_one_study_are_listed(tmp_path: Path) -> None:
    def fails_when_large(combination: Combination) -> list[Value]:
        if combination["size"] == "large":
            raise RunFailed("the node is lost")
        return [Value("seconds", 2.0, "s"), Value("rounds", 0.0, "")]

    def whole(combination: Combination) -> list[Value]:
        return [Value("seconds", 1.0, "s"), Value("rounds", 0.0, ""), Value("gap", 1.0, "s")]

    old, new = run_study(tmp_path / "old", whole), run_study(tmp_path / "new", fails_when_large)
    assert [(difference.cell, difference.metric) for difference in compare.differences(old, new)] == [
        ("size=small kind=a", "seconds")
    ]
    remarks = compare.caveats(old, new)
    only = f"size=large kind=a: only {old.directory} measured it"
    assert any(only in line and "its 4 runs there failed" in line and "the node is lost" in line for line in remarks)
    assert f"size=small kind=a: 1 of its numbers are in {old.directory} alone" in remarks
    assert "rounds: 1 without a ratio, as some runs have 0 there" in remarks
    assert any(only in line for line in compare.caveats(new, old)), "whichever of them is the new one"


def test_environment_differences_are_listed(tmp_path: Path) -> None:
    old, new = run_study(tmp_path / "old", seconds(1.0)), run_study(tmp_path / "new", seconds(1.0))
    assert not [line for line in compare.caveats(old, new) if "before," in line]
    old.manifest["sessions"][0]["before"] |= {"lapack, blas": "OpenBLAS", "governor": "powersave", "load": "9 9 9"}
    old.manifest["sessions"].append({"started": math.inf, "before": {"packages": "hpcc 9"}, "after": {}})
    old.manifest |= {"fabric": ["other"]}
    remarks = [line for line in compare.caveats(old, new) if "before," in line]
    assert {line.partition(":")[0] for line in remarks} == {"lapack, blas", "governor", "packages", "fabric"}
    assert any(line.startswith("packages") and "; then hpcc 9 before" in line for line in remarks)


def test_study_without_sessions_can_be_compared(tmp_path: Path) -> None:
    empty = make(tmp_path / "empty", seconds(1.0))
    new = run_study(tmp_path / "new", seconds(1.0))
    assert compare.differences(empty, new) == []
    remarks = compare.caveats(empty, new)
    assert any(line.startswith("kernel: not noted before") for line in remarks)
    assert any("it was not run there" in line for line in remarks)


def test_multiple_testing_is_mentioned(tmp_path: Path) -> None:
    old, new = run_study(tmp_path / "old", seconds(1.0)), run_study(tmp_path / "new", seconds(2.0))
    assert any("2 differences were tested" in line for line in compare.caveats(old, new))
    few = run_study(tmp_path / "few", seconds(1.0), repetitions=1)
    assert not any("were tested" in line for line in compare.caveats(few, new)), "one run and four: no test"
