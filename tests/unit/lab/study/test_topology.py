"""`topology`: its combinations, that its hosts leave the balancer the choice that is asked of it, and how decisions are
compared with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jobs_in_mind import Imagined, Job, nodes_on
from study_results import made, table

from wherry.base.errors import Refused
from wherry.lab.study import render
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers.topology import Topology, decided
from wherry.lab.study.papers.topology_design import PROGRAM_NAMES, PROGRAMS, cell
from wherry.lab.study.papers.topology_page import judge
from wherry.lab.study.sites import machine_cpus
from wherry.lab.study.testbed import ProgramResult, Testbed
from wherry.model.balance import BalancePlan, Kind, Verdict
from wherry.model.records import Host
from wherry.model.spec.cluster import PlacementSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.schedule.placement import NodeNeed, choose_places

NO_LAMMPS = {"lammps": "lmp is not installed"}


def test_eight_programs_over_three_links_and_one_more_where_it_is_installed() -> None:
    """At one site nothing crosses the link: measured with the first one, for all."""
    study = Topology(False, NO_LAMMPS)
    cells = study.combinations()
    assert len({(one["program"], one["link"]) for one in cells if one["where"] == "brief"}) == 8 * 3
    assert len({one["program"] for one in Topology(False).combinations()}) == 9
    assert {one["link"] for one in cells if one["where"] in ("packed", "one")} == {"vpn"}
    assert study.runs_of("cg", "10", "packed") in cells and study.runs_of("cg", "10", "spread") in cells
    assert {one["program"] for one in cells if one["where"] in ("by-sites", "one")} == {"cg", "ft", "is"}
    links = [study.fabric(link)["links"][0] for link in ("vpn", "2", "10")]
    assert [(one["latency"], one["bandwidth"]) for one in links] == [
        *(("0.15ms", "290Mbit/s"), ("2ms", "1000Mbit/s"), ("10ms", "1000Mbit/s"))
    ]


def test_a_quick_one_has_two_programs_and_a_link() -> None:
    assert {(one["program"], one["link"]) for one in Topology(True).combinations()} == {("cg", "10"), ("ep", "10")}
    more = Topology(True, given={"programs": "queens, IS", "latencies": "3"})
    assert {(one["program"], one["link"]) for one in more.combinations()} == {("is", "3"), ("queens", "3")}


def test_what_the_machine_or_a_class_has_no_room_for_is_left_out() -> None:
    assert not Topology(False, machine_cpus(1)).combinations(), "four ranks of 0.4"
    study = Topology(False, given={"ranks": "64", "ft.class": "W", "lu.class": "S"})
    assert all(one["where"] != "by-sites" for one in Topology(False, given={"ranks": "2"}).combinations())
    left = {level.name: level.left_out for level in study.factors()[0].levels}
    assert left["ft"] == "class W has no work for 64 ranks" and left["lu"] and not left["cg"]


@pytest.mark.parametrize("typed", ["cg,xx", ",", "cg;ep"])
def test_names_that_are_none_are_refused_with_the_nearest(typed: str) -> None:
    with pytest.raises(Refused, match="it is some of cg, ep, ft") as refused:
        PROGRAMS.parse(typed)
    near = refused.value.next.partition("=")[2]
    assert PROGRAMS.parse(near) and set(near.split(",")) <= set(PROGRAM_NAMES)


@pytest.mark.parametrize("ranks", ["2", "4", "16"])
@pytest.mark.parametrize("where", ["packed", "spread", "brief", "one"])
def test_nodes_are_placed_where_a_level_says(ranks: str, where: str) -> None:
    """By the placement itself; a run that finds them elsewhere does not count."""
    study = Topology(False, given={"ranks": ranks})
    hosts, shape = fabric_hosts(study), study.shape(where)
    placement = PlacementSpec(**shape.spec()["placement"])
    places = choose_places([NodeNeed(1.0, 1 << 20)] * shape.nodes, hosts, {}, placement, only_hosts=shape.hosts)
    assert {place.host for place in places} == study.places(where)


def fabric_hosts(study: Topology) -> list[Host]:
    spec = parse(FabricSpec, study.fabric("10"), "the study")
    return [Host(name=one.name, site=one.site, cores=one.cores, memory=1 << 30, speed=one.speed) for one in spec.hosts]


@pytest.mark.parametrize(("messages", "packs"), [(100, True), (0, False)])
def test_the_balancer_has_the_choice_that_is_asked_of_it(messages: int, packs: bool) -> None:
    """A job that exchanges over 10 ms goes to the slow hosts of its site, and a job that computes stays."""
    study = Topology(False)
    hosts, shape = fabric_hosts(study), study.shape("brief")
    nodes = nodes_on("apart", ["a1", "a2", "b1", "b2"])
    pairs = {(one, other): messages for one in range(4) for other in range(4) if one != other and messages}
    imagined = Imagined(hosts, jobs=[Job(nodes, pairs=pairs, allowed=frozenset(shape.hosts), remaining=3600.0)])
    found = imagined.plan()
    values = {value.metric: value.value for value in decided(found, nodes)}
    assert values["packs"] == packs, found.verdicts[0].text
    assert {move.destination for move in found.moves} == ({"as1", "as2"} if packs else set())


@pytest.mark.parametrize("kind", [Kind.UNKNOWN, Kind.IDLE])
def test_no_decision_is_no_run(kind: Kind) -> None:
    with pytest.raises(RunFailed, match="nothing was decided: it is over"):
        decided(BalancePlan(verdicts=(Verdict(cluster="apart", kind=kind, text="it is over"),)), [])


@pytest.mark.parametrize(
    ("packed", "spread", "packs", "text"),
    [
        ([10.0], [20.0], [1.0], "right"),
        ([10.0], [20.0], [0.0], "wrong, 100% lost"),
        ([20.0], [10.0], [0.0], "right"),
        ([20.0], [16.0], [1.0, 1.0], "wrong, 25% lost"),
        ([20.0], [16.0], [1.0, 0.0], "wrong 1 of 2, 25% lost"),
        ([10.0], [10.4], [0.0], "tie"),
        ([10.4], [10.0], [0.0], "tie"),
        ([10.0, 14.0], [13.0, 15.0], [1.0], "tie"),
        ([10.0, 12.0], [13.0, 15.0], [1.0], "right"),
        ([10.0], [20.0], [], "not measured"),
        ([], [20.0], [1.0], "not measured"),
    ],
)
def test_a_decision_is_right_wrong_or_a_tie(
    packed: list[float], spread: list[float], packs: list[float], text: str
) -> None:
    assert judge(packed, spread, packs, 0.05).text == text


def test_the_report_counts_right_decisions_and_names_what_is_lost(tmp_path: Path) -> None:
    study = Topology(True, given={"programs": "cg,ep,is", "latencies": "2,10"})
    brief = {"computing": [0.5], "link": [0.5], "predicted": [0.4]}
    values: dict[Combination, dict[str, list[float]]] = {
        cell("cg", "2", "packed"): {"seconds": [10.0]},
        cell("ep", "2", "packed"): {"seconds": [20.0]},
        cell("cg", "2", "one"): {"seconds": [5.0]},
        cell("cg", "10", "by-sites"): {"seconds": [20.0]},
    }
    for program, link, spread, packs in (
        *(("cg", "2", 10.2, 0.0), ("cg", "10", 40.0, 1.0)),
        *(("ep", "2", 10.0, 0.0), ("ep", "10", 10.0, 1.0)),
    ):
        values[cell(program, link, "spread")] = {"seconds": [spread]}
        values[cell(program, link, "brief")] = {"packs": [packs], **brief}
    results = made(study, tmp_path / "study", values)
    share = {row[0]: row for row in table(study, results, "How often").rows}
    assert share["decisions that are right, without ties"][1:] == ("at least 95%", "2 of 3 (67%)", "missed")
    assert share["decisions in cells that are ties"][2] == "1"
    assert share["cells"][2] == "6, 2 of them not measured"
    assert share["the most that a wrong one loses"][2] == "100%"
    last = {(row[0], row[1]): row[5:8] for row in table(study, results, "Decisions").rows}
    assert last["NPB CG, class A", "2 ms, 1000 Mbit/s"] == ("tie", "packs 0 of 1", "tie")
    assert last["NPB EP, class C", "10 ms, 1000 Mbit/s"] == ("spread", "packs 1 of 1", "wrong, 100% lost")
    by_sites = table(study, results, "Collectives").rows
    assert [row[4] for row in by_sites if row[0].startswith("NPB CG")] == ["5 [5, 5] n=1"] * 2
    assert by_sites[1][7].startswith("4 ")
    assert render.write(results)[0].exists()


def test_all_right_reaches_the_goal_and_nothing_is_not_measured(tmp_path: Path) -> None:
    study = Topology(True)
    right = {
        cell("ep", "10", "packed"): {"seconds": [20.0]},
        cell("ep", "10", "spread"): {"seconds": [10.0]},
        cell("ep", "10", "brief"): {"packs": [0.0]},
    }
    assert table(study, made(study, tmp_path / "one", right), "How often").rows[0][2:] == ("1 of 1 (100%)", "reached")
    assert table(study, made(study, tmp_path / "none", {}), "How often").rows[0][2:] == ("not measured", "")


class Placed(Testbed):
    """Has a cluster on given hosts, and records the jobs that are started on it."""

    def __init__(self, hosts: Sequence[str], ended: bool = False) -> None:
        self.started: list[tuple[Any, ...]] = []
        self.removed: list[str] = []
        self.cancelled = False
        self._nodes, self._ended = nodes_on("apart", list(hosts)), ended
        self._client = cast(
            Any,
            SimpleNamespace(
                nodes=lambda _: self._nodes,
                auto_balance=lambda _: False,
                balance=lambda *_: BalancePlan(verdicts=(Verdict(cluster="apart", kind=Kind.CPU, text="it stays"),)),
            ),
        )

    def use_fabric(self, fabric: Mapping[str, Any]) -> None:
        pass

    def ensure_cluster(self, cluster: Any) -> None:
        pass

    def remove_cluster(self, name: str) -> None:
        self.removed.append(name)

    def start_job(self, *args: Any) -> Any:
        self.started.append(args)
        return SimpleNamespace(
            wait=lambda _: ProgramResult(0, "Time in seconds = 2.50\nVERIFICATION SUCCESSFUL\n", ""),
            has_ended=lambda: self._ended,
            cancel=lambda: setattr(self, "cancelled", True),
        )


SPREAD = ("a1", "a2", "b1", "b2")


@pytest.mark.parametrize(("where", "by_sites"), [("spread", False), ("by-sites", True)])
def test_collectives_go_by_sites_where_that_is_asked(tmp_path: Path, where: str, by_sites: bool) -> None:
    bed = Placed(SPREAD)
    assert Topology(True).measure(bed, cell("cg", "10", where), tmp_path) == [Value("seconds", 2.5, "s")]
    assert bed.started[0][-1] is by_sites and bed.removed == ["packed", "one"]


def test_nodes_elsewhere_are_no_run(tmp_path: Path) -> None:
    bed = Placed(("a1", "a2", "as1", "as2"))
    with pytest.raises(RunFailed, match="its nodes are on a1, a2, as1, as2"):
        Topology(True).measure(bed, cell("cg", "10", "spread"), tmp_path)
    assert bed.started == [] and bed.removed[-1] == "apart"


@pytest.mark.parametrize("ended", [False, True])
def test_a_brief_run_is_ended_and_counts_if_it_had_not(tmp_path: Path, ended: bool) -> None:
    bed, study = Placed(SPREAD, ended), Topology(True, given={"brief.after": "0"})
    if ended:
        with pytest.raises(RunFailed, match="ended before it was measured"):
            study.measure(bed, cell("cg", "10", "brief"), tmp_path)
    else:
        values = study.measure(bed, cell("cg", "10", "brief"), tmp_path)
        assert values[0] == Value("packs", 0.0, "") and (tmp_path / "decision").read_text() == "it stays\n"
    assert bed.cancelled
