"""How `collectives` evaluates the output of its program, and samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.lab.bench import runner
from wherry.lab.bench.catalog import find
from wherry.lab.bench.collectives import geometric_means, read_cases
from wherry.lab.bench.samples import Samples


def test_each_round_is_a_sample_and_a_wrong_result_does_not_count() -> None:
    output = (
        '{"what": "bcast", "bytes": 8, "seconds": [0.010, 0.012], "right": true}\n'
        '{"what": "reduce", "bytes": 8, "seconds": [0.020], "right": false}\n'
    )
    assert read_cases(output) == [
        {"what": "bcast", "bytes": 8, "ms": pytest.approx(10)},
        {"what": "bcast", "bytes": 8, "ms": pytest.approx(12)},
        {
            "what": "reduce",
            "bytes": 8,
            "ms": pytest.approx(20),
            "ok": False,
            "problem": "the result of reduce is wrong",
        },
    ]


def test_the_mean_is_of_the_cases_with_data_that_both_ways_have(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    times = {("barrier", 0): (90, 10), ("bcast", 8): (20, 10), ("bcast", 1024): (80, 10), ("alltoall", 8): (50, None)}
    for (what, size), pair in times.items():
        for way, ms in zip(("own", "sites"), pair, strict=True):
            if ms is not None:
                samples.add(turn=0, mpi="mpich", way=way, what=what, bytes=size, ms=float(ms))
    assert geometric_means(samples, "turn", mpi="mpich") == [pytest.approx(4.0)]
    assert geometric_means(samples, "turn", mpi="openmpi") == []
    table = runner.report(find("collectives"), samples).tables[0]
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts["MPICH: bcast 8 B"] == verdicts["MPICH: geometric mean of own : by sites"] == "met"
    assert verdicts["MPICH: bcast 8 B, by itself"] == "met"


def test_settings_that_measure_nothing_are_refused() -> None:
    for setting in ("sizes=1", "sizes=6", "rounds=0", "nodes=0"):
        with pytest.raises(Refused):
            find("collectives", settings=[setting])
