"""How `cluster-cost` evaluates the output of programs, and samples."""

import json
from pathlib import Path

import pytest

from wherry.base.errors import Failed
from wherry.lab.bench.cluster_cost import ClusterCost, _sample
from wherry.lab.bench.definition import Row
from wherry.lab.bench.samples import Samples

NPB = " Time in seconds =                   0.0145\n Verification    =               SUCCESSFUL\n"


_LARGE = (1 << 16, 1 << 17, 1 << 18, 1 << 20)


def line(**fields: float) -> str:
    return json.dumps({"errors": 0, **fields}) + "\n"


def test_samples_are_what_programs_print() -> None:
    assert _sample("npb", NPB, 2.0) == {"seconds": 0.0145, "whole": 2.0}
    assert _sample("start", "", 0.5) == {"seconds": 0.5}
    assert _sample("ring", "iteration 3\n" + line(iterations=7), 1.0) == {"rounds": 7.0}
    sizes = "".join(line(bytes=size, mean=1e-6, p999=3e-6, bits_per_second=2e9) for size in (8, *_LARGE))
    found = _sample("ping-pong", sizes, 1.0)
    assert found == pytest.approx({f"us.{size}": 1 for size in (8, *_LARGE)} | {"gbit": 2, "p999.8": 3})


@pytest.mark.parametrize(
    ("kind", "output"),
    [("npb", NPB.replace("SUCCESSFUL", "FAILED")), ("npb", ""), ("ring", ""), ("ring", line(iterations=7, errors=1))],
)
def test_a_program_that_did_not_verify_does_not_count(kind: str, output: str) -> None:
    with pytest.raises(Failed):
        _sample(kind, output, 1.0)


def rows(tmp_path: Path, *measured: tuple[int, str, str, Row]) -> dict[str, tuple[str, ...]]:
    """The table of samples (turn, what, by, fields) of kind npb with two ranks of Open MPI."""
    bench = ClusterCost(programs="cg,lu", classes="W", ranks="2", mpis="openmpi", crowds="", ring=0)
    samples = Samples(tmp_path / "s.jsonl", {})
    for turn, what, by, fields in measured:
        samples.add(turn=turn, kind="npb", mpi="openmpi", what=what, ranks=2, by=by, **fields)
    return {comparison.label: comparison.row()[1:] for comparison in bench.comparisons(samples)}


def test_programs_are_compared_and_their_ratios_averaged(tmp_path: Path) -> None:
    measured = []
    for turn in range(6):
        for what, native, cluster in (("cg:W", 1.0, 1.0), ("lu:W", 1.0, 1.21)):
            measured += [(turn, what, "native", {"seconds": native}), (turn, what, "cluster", {"seconds": cluster})]
    found = rows(tmp_path, *measured)
    assert found["CG W, 2 ranks, Open MPI: s"][-1] == "met"
    assert found["LU W, 2 ranks, Open MPI: s"][-1] == "missed"
    assert found["NPB, Open MPI: geometric mean of the ratios"][0].startswith("1.1 ")


def test_a_turn_without_its_native_run_has_no_ratio(tmp_path: Path) -> None:
    found = rows(tmp_path, (0, "cg:W", "cluster", {"seconds": 2.0}), (1, "cg:W", "native", {"seconds": 1.0}))
    assert found["NPB, Open MPI: geometric mean of the ratios"][0] == "not measured"


def test_quick_is_a_part_of_the_full() -> None:
    quick = ClusterCost(**ClusterCost.quick_settings)  # type: ignore[arg-type]
    full = [str(levels) for levels in ClusterCost().levels()]
    assert 0 < len(quick.levels()) < len(full) / 4 and {str(levels) for levels in quick.levels()} < set(full)
