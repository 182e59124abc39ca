"""Figures of ranks from inside MPI take the place of those from outside where each rank has some, or nowhere."""

from __future__ import annotations

from wherry.job.inside_loads import as_seen_inside
from wherry.model.mpi_profile import MpiProfile, OperationUse, RankActivity, RankFlow
from wherry.model.profile import INSIDE, OUTSIDE, Flow, NodeLoad, Profile, RankLoad
from wherry.model.records import Job, JobState

JOB = Job(
    id="job-1", cluster="c", argv=("x",), ranks=2, mpi="openmpi", uid=0, gid=0, cwd="/", state=JobState.RUNNING,
    created=0.0,
)  # fmt: skip
FROM_OUTSIDE = Profile(
    cluster="c", jobs=("job-1",), time=0.0, seconds=3.0, ran=9.0, remaining=9.0, basis="as told",
    nodes=tuple(
        NodeLoad(node=f"c-{i}", host="a1", ranks=1, cpu=1.0, computing=0.9, waiting=0.1) for i in range(2)
    ),
    ranks=tuple(RankLoad(rank=i, node=f"c-{i}", cpu=0.7, computing=0.9, waiting=0.1) for i in range(2)),
    flows=(Flow(source="c-0", target="c-1", messages=30.0, bytes=9000.0, turns=5.0),),
)  # fmt: skip


def from_inside(*steps: int, collectives: float = 0.0, unseen: dict[str, str] | None = None) -> MpiProfile:
    """The ranks with an iteration of so many calls each, that takes a tenth of a second for each."""
    ranks = [
        RankActivity(
            rank=i, node=f"c-{i}", computing=0.25 + i / 2, waiting=0.5 - i / 2, transferring=0.25, calls=20.0,
            period=steps[i] / 10 or None, steps=steps[i],
        )
        for i in range(len(steps))
    ]  # fmt: skip
    uses = [
        OperationUse(operation=name, least=1, calls=10.0, bytes=size, share=0.1, waiting=0.1)
        for name, size in (("Isend", 8000.0), ("Allreduce", collectives))
    ]
    return MpiProfile(
        job="job-1", time=0.0, seconds=3.0, size=2, kind="latency", reason="", imbalance=1.0, ranks=tuple(ranks),
        operations=tuple(uses), flows=(RankFlow(source=0, target=1, messages=10.0, bytes=8000.0),), communicators=(),
        unseen=unseen or {},
    )  # fmt: skip


def test_shares_of_ranks_their_iteration_and_the_bytes_between_nodes_are_exact() -> None:
    found = as_seen_inside(FROM_OUTSIDE, [JOB], [from_inside(4, 4)])
    assert (found.source, found.period, found.steps) == (INSIDE, 0.4, 4)
    assert [(load.computing, load.waiting, load.transferring) for load in found.ranks] == [
        (0.25, 0.75, 0.25),
        (0.75, 0.25, 0.25),
    ]
    assert [(load.computing, load.waiting, load.cpu) for load in found.nodes] == [(0.25, 0.75, 1.0), (0.75, 0.25, 1.0)]
    assert found.flows == (Flow(source="c-0", target="c-1", messages=30.0, bytes=8000.0, turns=5.0),)
    blind = as_seen_inside(FROM_OUTSIDE.model_copy(update={"flows": None}), [JOB], [from_inside(4, 4)])
    assert blind.flows == (Flow(source="c-0", target="c-1", messages=10.0, bytes=8000.0, turns=10.0),)


def test_bytes_of_collectives_are_known_from_the_wire_alone() -> None:
    found = as_seen_inside(FROM_OUTSIDE, [JOB], [from_inside(4, 4, collectives=1000.0)])
    assert found.source == INSIDE and found.flows == FROM_OUTSIDE.flows
    blind = FROM_OUTSIDE.model_copy(update={"flows": None})
    assert as_seen_inside(blind, [JOB], [from_inside(4, 4, collectives=1000.0)]).flows is None


def test_the_iteration_is_that_of_most_ranks() -> None:
    assert as_seen_inside(FROM_OUTSIDE, [JOB], [from_inside(0, 3)]).steps == 3
    assert as_seen_inside(FROM_OUTSIDE, [JOB], [from_inside(5, 3)]).steps == 3
    assert as_seen_inside(FROM_OUTSIDE, [JOB], [from_inside(0, 0)]).period is None


def test_a_job_of_which_a_rank_is_not_seen_stays_as_it_was_measured_from_outside() -> None:
    other = JOB.model_copy(update={"id": "job-2"})
    for jobs, seen in (
        ([JOB], [from_inside(4)]),
        ([JOB], []),
        ([], []),
        ([JOB], [from_inside(4, 4, unseen={"c-1": "it has ranks of other worlds"})]),
        ([JOB, other], [from_inside(4, 4)]),
    ):
        assert as_seen_inside(FROM_OUTSIDE, jobs, seen) == FROM_OUTSIDE
    assert FROM_OUTSIDE.source == OUTSIDE
