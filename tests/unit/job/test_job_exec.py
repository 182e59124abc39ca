"""How many programs a user may have on nodes, and how many results of users are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import OTHER, OWNER, World
from rest_service import Here

from wherry.base.errors import Code, Refused
from wherry.cluster.placements import Placements
from wherry.job.exec import Execs
from wherry.job.jobs import Jobs
from wherry.model.job_request import ExecRequest
from wherry.model.records import Job, JobState


def program(id: str, uid: int, state: JobState) -> Job:
    return Job(
        id=id, kind="exec", cluster="hello", argv=("./x",), ranks=1, mpi="none", uid=uid, gid=uid, cwd="/", state=state,
        created=float(id), nodes=("hello-0",),
    )  # fmt: skip


def jobs_of(world: World, top: Path) -> Jobs:
    places = Placements(world.store, world.fabric)
    return Jobs(world.store, world.fabric, places, Here("test", top), {"container": world.driver})


def test_a_user_has_so_many_programs_on_nodes_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make("hello", 1)
    jobs, places = jobs_of(world, tmp_path), Placements(world.store, world.fabric)
    execs = Execs(world.store, places, Here("test", tmp_path), jobs)
    order = ExecRequest(node="hello-0", argv=("ls",), owner=OWNER.model_copy(update={"cwd": "/"}), env={})
    for number in range(64):
        world.store.put_job(program(str(number), OTHER.uid, JobState.RUNNING))
        world.store.put_job(program(str(100 + number), OWNER.uid, JobState.ENDED))
        world.store.put_job(program(str(200 + number), OWNER.uid, JobState.RUNNING))
    with pytest.raises(Refused) as refused:
        execs.plan(order)
    assert refused.value.code is Code.NO_CAPACITY and "64 programs" in refused.value.what
    world.store.put_job(program("200", OWNER.uid, JobState.ENDED))
    execs._require_few(OWNER)
    assert jobs._start._running_ranks() == 0, "they are no ranks"


def test_results_are_kept_for_each_user(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.store.put_job(program(str(number), OWNER.uid, JobState.ENDED))
        world.store.put_job(program(str(10 + number), OTHER.uid, JobState.ENDED))
    jobs_of(world, tmp_path).prune(keep=1)
    assert {job.id for job in world.store.jobs()} == {"2", "12"}, "nobody's push out another's"
