"""The resource that limits a program, by a profile of one of its runs: the same wherever its nodes were."""

from __future__ import annotations

import pytest
from jobs_in_mind import Imagined, Job, hosts_at, nodes_on, ring

from wherry.model.balance import Kind
from wherry.model.profile import RankLoad
from wherry.model.records import ProgramKey
from wherry.schedule import program_class
from wherry.schedule.program_class import program_profile

KEY = ProgramKey(name="p", digest="", arguments=(), ranks=2, uid=0)


@pytest.mark.parametrize("hosts", [["a1", "b1"], ["a1", "a2"]], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        ({"pairs": ring(2, 6), "work": 0.001}, Kind.NETWORK, "ms apart"),
        ({"work": 0.5}, Kind.CPU, "exchange hardly anything"),
        ({"work": 1.0, "pairs": ring(2, 2)}, Kind.CPU, "are few"),
    ],
)
def test_its_kind_does_not_depend_on_where_it_ran(
    hosts: list[str], job: dict[str, object], kind: Kind, words: str
) -> None:
    nodes = nodes_on("x", hosts)
    world = Imagined(hosts_at("ab", 2)).world()
    measured = Job(nodes, **job).case(world).profile  # type: ignore[arg-type]
    ranks = tuple(
        RankLoad(rank=i, node=load.node, cpu=1, computing=load.computing, waiting=load.waiting)
        for i, load in enumerate(measured.nodes)
    )
    measured = measured.model_copy(update={"ranks": ranks})
    found = program_profile(KEY, "job", measured, nodes, world, None)
    assert found is not None and found.kind is kind, found
    assert words in found.reason or hosts[1] == "b1" and "links took" in found.reason
    again = program_profile(KEY, "next", measured, nodes, world, found)
    same = program_profile(KEY, "job", measured, nodes, world, found)
    assert again is not None and same is not None and (again.runs, same.runs) == (2, 1)
    short = measured.model_copy(update={"ranks": ranks[:1]})
    assert program_profile(KEY, "job", short, nodes, world, None) is None, "a rank was not seen"


def test_the_flows_with_most_turns_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, world = nodes_on("x", ["a1", "b1"]), Imagined(hosts_at("ab", 1)).world()
    measured = Job(nodes, pairs={(0, 1): 2, (1, 0): 6}).case(world).profile
    ranks = tuple(RankLoad(rank=i, node=node.name, cpu=1, computing=0.5, waiting=0.5) for i, node in enumerate(nodes))
    monkeypatch.setattr(program_class, "_FLOWS", 1)
    found = program_profile(KEY, "job", measured.model_copy(update={"ranks": ranks}), nodes, world, None)
    assert found is not None and [(flow.source, flow.target) for flow in found.flows or ()] == [(1, 0)]
