"""`xen-migration`: tests that are chosen, and the moment of a move where the program's length is not known before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wherry.base.errors import Code, Refused
from wherry.lab.study import render, runner, workloads
from wherry.lab.study.levels import Value
from wherry.lab.study.papers import xen_migration
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.results import Results
from wherry.lab.study.workloads import MoveSchedule

NO_KVM = {"kvm": "no KVM here"}
BED = cast(Any, SimpleNamespace())


def test_only_the_chosen_tests_run(tmp_path: Path) -> None:
    study = XenMigration(False, NO_KVM, {"tests": "shallow,sp,idle"})
    assert {one["test"] for one in study.combinations()} == {"sp", "shallow", "idle"}
    left = {level.name: level.left_out for level in study.factors()[0].levels}
    assert left["netpipe"] == left["hpl6"] == "not among `tests`" and left["sp"] == ""
    text = render.report(Results.create(tmp_path, study, 1)).html()
    assert "not among `tests`" in text and "Figure 2" not in text, "of Linpack, which does not run"
    assert "in the form of the paper&#39;s Figure 8" in text


def test_one_pair_of_an_hour_is_two_runs(tmp_path: Path) -> None:
    """Without runs to warm up, which would be hours, too."""
    given = {"tests": "shallow", "shallow.duration": "3600s"}
    left = runner.remaining_runs(Results.create(tmp_path / "long", XenMigration(False, NO_KVM, given), 1))
    assert {(turn, one["how"]) for turn, one in left} == {(0, "nodes"), (0, "moved")} and len(left) == 2
    short = XenMigration(False, NO_KVM, {"tests": "shallow"})
    assert len(runner.remaining_runs(Results.create(tmp_path / "short", short, 1))) == 4


@pytest.mark.parametrize(("test", "part", "ours"), [("sp", 60 / 1267, 50.0), ("hpl3", 60 / 263, 70.0)])
def test_the_papers_move_begins_at_its_part_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, part: float, ours: float
) -> None:
    """And so ends before a program that takes a minute here, where it took twenty there. The length is found once."""
    moves: list[float | None] = []

    def program(*words: Any) -> list[Value]:
        move = next((word for word in words if isinstance(word, MoveSchedule)), None)
        moves.append(move and move.after)
        return [Value("seconds", ours, "s")]

    monkeypatch.setattr(workloads, "npb", program)
    monkeypatch.setattr(workloads, "hpl", program)
    monkeypatch.setattr(
        xen_migration, "_move_to_free", lambda _bed, _cluster, _node, after: MoveSchedule("n", (), after)
    )
    study = XenMigration(False, paper=True)
    run = study._sp if test == "sp" else study._hpl
    for number, how in enumerate(("moved", "moved", "nodes", "vms-moved")):
        directory = tmp_path / "runs" / str(number)
        directory.mkdir(parents=True)
        values = run(BED, test, how, directory)
        assert [value.value for value in values if value.metric == "moved_after"] == (
            [] if how == "nodes" else [pytest.approx(part * ours, rel=0.01)]
        )
    begun = pytest.approx(part * ours, rel=0.01)
    assert moves == [None, begun, begun, None, None, begun], "containers and machines have a length each"
    text = study.factors()[0].label(test)
    assert f"a move {100 * study.part(test):.3g} % of the run's length after it" in text


def test_the_papers_sixty_seconds_can_be_asked_for() -> None:
    assert XenMigration(False).moment("sp") == "2.8 s" and XenMigration(False).part("hpl3") == 0
    assert XenMigration(False, paper=True).moment("sp") == "4.7 % of the run's length"
    assert XenMigration(False, paper=True).moment("shallow") == "60 s", "of an hour"
    for given in ({"sp.part": "0"}, {"sp.after": "60s"}):
        assert XenMigration(False, paper=True, given=given).moment("sp") == "60 s"
    with pytest.raises(Refused, match="sp.after and sp.part both say when the node moves") as refused:
        XenMigration(False, given={"sp.after": "60s", "sp.part": "0.5"})
    assert refused.value.code is Code.USAGE
    assert refused.value.next == "wherry study run xen-migration --set sp.part=0.5"
