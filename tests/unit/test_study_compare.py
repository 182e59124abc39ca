"""Two sessions of a study beside each other: what is divided, what is refused, and what is said beside it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakestudy import Act, make, run

from wherry.base.errors import Refused
from wherry.lab.study import compare
from wherry.lab.study.levels import Combination, SampleFailed, Value
from wherry.lab.study.results import Results


def seconds(of: float) -> Act:
    return lambda cell: [Value("seconds", of, "s")]


def made(directory: Path, act: Act, quick: bool = False, repetitions: int = 4) -> Results:
    results = make(directory, act, repetitions, quick)
    run(results)
    return results


def test_two_studies_are_compared_as_ratios(tmp_path: Path) -> None:
    old, new = make(tmp_path / "old"), make(tmp_path / "new", lambda cell: [Value("seconds", 3.0, "s")])
    run(old)
    run(new)
    found = compare.differences(old, new)
    assert {(one.cell, one.ratio) for one in found} == {("size=small kind=a", 3.0), ("size=large kind=a", 1.5)}
    assert all(one.p is not None and one.p < 0.05 and one.metric == "seconds" for one in found)
    assert compare.caveats(old, new)[0].startswith("The two were not run in turns")


def test_a_result_is_compared_as_such_and_not_as_a_number(tmp_path: Path) -> None:
    def act(crc: float) -> Act:
        return lambda cell: [Value("result_crc", crc if cell["size"] == "large" else 5.0, "")]

    old, new = make(tmp_path / "old", act(7.0)), make(tmp_path / "new", act(8.0))
    run(old)
    run(new)
    assert compare.differences(old, new) == []
    assert compare.caveats(old, new)[1:] == ["size=large kind=a: the program's result is not the same"]


def test_a_short_study_and_a_whole_one_are_not_compared(tmp_path: Path) -> None:
    """Their combinations have the same names, and not the same problems."""
    old, new = made(tmp_path / "old", seconds(1.0), quick=True), made(tmp_path / "new", seconds(9.0))
    for pair in ((old, new), (new, old)):
        with pytest.raises(Refused, match="short study") as raised:
            compare.differences(*pair)
        assert (
            str(old.directory) in raised.value.why.partition("--quick")[0] and "wherry study run" in raised.value.next
        )


def test_what_only_one_measured_is_named(tmp_path: Path) -> None:
    def lost(cell: Combination) -> list[Value]:
        if cell["size"] == "large":
            raise SampleFailed("the node is lost")
        return [Value("seconds", 2.0, "s"), Value("rounds", 0.0, "")]

    def whole(cell: Combination) -> list[Value]:
        return [Value("seconds", 1.0, "s"), Value("rounds", 0.0, ""), Value("gap", 1.0, "s")]

    old, new = made(tmp_path / "old", whole), made(tmp_path / "new", lost)
    assert [(one.cell, one.metric) for one in compare.differences(old, new)] == [("size=small kind=a", "seconds")]
    said = compare.caveats(old, new)
    only = f"size=large kind=a: only {old.directory} measured it"
    assert any(only in line and "its 4 runs there failed" in line and "the node is lost" in line for line in said)
    assert f"size=small kind=a: 1 of its numbers are in {old.directory} alone" in said
    assert "rounds: 1 without a ratio, as some runs have 0 there" in said
    assert any(only in line for line in compare.caveats(new, old)), "whichever of them is the new one"


def test_another_environment_is_told_whatever_it_differs_in(tmp_path: Path) -> None:
    old, new = made(tmp_path / "old", seconds(1.0)), made(tmp_path / "new", seconds(1.0))
    assert not [line for line in compare.caveats(old, new) if "before," in line]
    old.about["sessions"][0]["before"] |= {"lapack, blas": "OpenBLAS", "governor": "powersave", "load": "9 9 9"}
    old.about["sessions"].append({"started": math.inf, "before": {"packages": "hpcc 9"}, "after": {}})
    old.about |= {"fabric": ["other"]}
    said = [line for line in compare.caveats(old, new) if "before," in line]
    assert {line.partition(":")[0] for line in said} == {"lapack, blas", "governor", "packages", "fabric"}
    assert any(line.startswith("packages") and "; then hpcc 9 before" in line for line in said)


def test_a_study_whose_first_session_never_began_is_compared(tmp_path: Path) -> None:
    empty = make(tmp_path / "empty", seconds(1.0))
    new = made(tmp_path / "new", seconds(1.0))
    assert compare.differences(empty, new) == []
    said = compare.caveats(empty, new)
    assert any(line.startswith("kernel: not noted before") for line in said)
    assert any("it was not run there" in line for line in said)


def test_many_tests_are_told_to_be_many(tmp_path: Path) -> None:
    old, new = made(tmp_path / "old", seconds(1.0)), made(tmp_path / "new", seconds(2.0))
    assert any("2 differences were tested" in line for line in compare.caveats(old, new))
    few = made(tmp_path / "few", seconds(1.0), repetitions=1)
    assert not any("were tested" in line for line in compare.caveats(few, new)), "one run and four: no test"
