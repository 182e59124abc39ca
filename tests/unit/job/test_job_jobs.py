"""Starts and ends of jobs that fail halfway: nothing is left, and the first error is raised; and bounds of programs."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fakeworld import OTHER, World
from fakeworld import OWNER as USER
from rest_service import Here

import waiting
from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.cluster.lookup import HISTORY_REMOVED, JOB_REMOVED, find_job
from wherry.cluster.placements import Placements
from wherry.job import cleanup, holder_files, holder_start, job_end, jobs, losses, readiness
from wherry.job.agent_client import AgentError, Ended
from wherry.job.exec import Execs
from wherry.job.jobs import Jobs
from wherry.job.mpi import Family, Mpi
from wherry.job.validation import JobPlan
from wherry.model.job_request import ExecRequest, JobRequest
from wherry.model.kept_words import KEPT
from wherry.model.owner import Owner
from wherry.model.records import Job, JobState, Node, NodeState
from wherry.service.log import log_to_file
from wherry.store import Store

OWNER = Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd="/")


class Stand:
    """Jobs whose launcher is a process that sleeps, and whose node records the jobs that it sweeps."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.swept, self.silent = World(top), list[str](), False
        self.answers = threading.Event()
        self.answers.set()
        self.cluster = self.world.make("hello", 1, owner=OWNER)
        self.store = self.world.store
        self.place, self.drivers = Here("test", top), {"container": self.world.driver}
        self.jobs = self.next()
        self.holder: subprocess.Popen[bytes] | None = None
        for owner, name, act in (
            (self.jobs._start, "require_usable", lambda _name: self.cluster),
            (self.jobs._start, "_stage", lambda *_: None),
            (self.jobs.agents, "endpoints", lambda *_: [("hello-0", self)]),
            (readiness, "require_ready", lambda *_: None),
            (holder_start, "start", self.launch),
        ):
            monkeypatch.setattr(owner, name, act)
        monkeypatch.setattr(losses, "_LOST_SECONDS", 0.1)

    def next(self) -> Jobs:
        """Those of the next daemon."""
        return Jobs(self.store, self.world.fabric, Placements(self.store, self.world.fabric), self.place, self.drivers)

    def launch(self, directory: Path, *_: object) -> None:
        directory.mkdir(parents=True)
        self.holder = subprocess.Popen(["sleep", "60"])
        started = Path(f"/proc/{self.holder.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        (directory / "pid").write_text(f"{self.holder.pid} {started}")

    def kill_job(self, id: str, seconds: float) -> int:
        assert self.answers.wait(60)
        if self.silent:
            raise AgentError("no answer")
        self.swept.append(id)
        return 0

    def run(self, *_: object) -> Ended:
        return Ended(0, b"", b"")

    def start(self, *argv: str, **asked: bool) -> Job:
        request = JobRequest.model_validate(
            {"cluster": "hello", "argv": argv, "ranks": 1, "owner": OWNER, "env": {}, **asked}
        )
        mpi = Mpi(Family.OPENMPI, (4, 1, 4), Path("/usr/bin/mpirun"))
        return self.jobs.start(JobPlan(request, (Path(argv[0]),), mpi), starter=7)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    made = Stand(tmp_path, monkeypatch)
    yield made
    if made.holder:
        made.holder.kill()
        made.holder.wait()


def test_what_a_silent_node_keeps_of_a_job_is_killed_when_it_answers(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next daemon, too. Until then the job is not removed."""
    stand.silent = True
    job = stand.start("/bin/true")
    assert stand.holder
    stand.holder.kill()
    waiting.until(lambda: not stand.store.jobs_under_way(), "the end of the job")
    assert (stand.jobs.directory(job.id) / "unswept").read_text() == "hello-0"
    following = stand.next()
    monkeypatch.setattr(following.agents, "endpoints", lambda *_: [("hello-0", stand)])
    following.sweep()
    following.prune(keep=0)
    assert stand.store.job(job.id), "it still has something to kill"
    stand.silent = False
    waiting.until(lambda: following.sweep() or stand.swept == [job.id], "the sweep")
    waiting.until(lambda: stand.store.events()[-1].kind == "job.swept", "its event")
    following.prune(keep=0)
    assert not stand.store.job(job.id)


def test_a_job_that_is_being_ended_keeps_nobody_who_looks(stand: Stand) -> None:
    """As the health monitor of all clusters does, each second."""
    stand.answers.clear()
    job = stand.start("/bin/true")
    assert stand.holder
    stand.holder.kill()
    settling = stand.jobs._ends.settling(job.id)
    waiting.until(settling.locked, "the job's watching thread")
    stand.jobs.watch(job.id)
    assert not stand.answers.is_set()
    stand.answers.set()
    waiting.until(lambda: not stand.store.jobs_under_way(), "the end of the job")


@pytest.mark.parametrize("full", [False, True], ids=["for a moment", "for good"])
def test_a_job_whose_start_cannot_be_written_leaves_nothing(
    stand: Stand, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = stand.store.put_job

    def refusing(job: Job) -> None:
        if job.state == JobState.RUNNING:
            raise OSError("the disk is full")
        put(job)

    def refusing_too(_id: str) -> None:
        raise OSError("this error comes second")

    monkeypatch.setattr(stand.store, "put_job", refusing)
    if full:
        monkeypatch.setattr(stand.store, "drop_job", refusing_too)
    with pytest.raises(OSError, match="the disk is full"):
        stand.start("/bin/true")
    assert stand.holder and stand.holder.wait(10) == -9
    assert len(stand.swept) == 1 and stand.swept[0].startswith("job-")
    assert list((stand.place.state / "jobs").iterdir()) == []
    assert len(stand.store.jobs()) == full, "a row that could not be deleted is ended by the monitor"


def test_a_job_that_cannot_be_told_of_does_not_run(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the operation fails, its user repeats it, and the program runs twice."""
    monkeypatch.setattr(stand.store, "add_event", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        stand.start("/bin/true")
    assert stand.holder and stand.holder.wait(10) == -9 and stand.store.jobs() == []


def test_a_job_without_a_watching_thread_is_polled(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job_end.threading, "Thread", Refusing)
    job = stand.start("/bin/true")
    monkeypatch.undo()
    assert job.state == JobState.RUNNING and stand.jobs._ends._watched == set()


def test_rows_and_the_event_of_a_start_have_only_the_beginning_of_a_long_command(stand: Stand) -> None:
    job = stand.start("/bin/true", "x" * 100_000)
    (event,) = [event for event in stand.store.events() if event.kind == "job.start"]
    assert len(event.text) < 200 and event.text.startswith("/bin/true xxx") and "… on hello, 1 ranks" in event.text
    assert job.argv == ("/bin/true", "x" * (KEPT - 10) + "…") and job.argv_cut == 100_000 - KEPT + 11
    assert stand.store.job(job.id) == job, "rows of megabytes would be read by each list"


def test_a_killed_daemon_leaves_no_files_without_a_row(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would find them, the keys of nodes among them."""
    job = stand.start("/bin/true")
    assert stand.holder
    monkeypatch.setattr(stand.jobs._ends, "watch", lambda _id: None)
    stand.holder.kill()
    stand.holder.wait()
    own, writes = stand.jobs.directory(job.id) / "own", list[bool]()
    put, drop = stand.store.put_job, stand.store.drop_job
    monkeypatch.setattr(stand.store, "put_job", lambda row: (writes.append(own.exists()), put(row)))
    monkeypatch.setattr(stand.store, "drop_job", lambda id: (writes.append(own.parent.exists()), drop(id)))
    ended = stand.jobs.poll(job.id)
    stand.jobs._ends.discard(ended)
    assert not any(writes) and stand.store.jobs() == []


def test_one_event_tells_of_a_history_that_is_removed(stand: Stand) -> None:
    running = stand.start("/bin/true")
    old = [running.model_copy(update={"id": f"job-{n}", "state": JobState.ENDED, "ended": 1.0}) for n in range(3)]
    for job in old:
        stand.store.put_job(job)
    stand.jobs.remove("hello", "its cluster was taken down by root")
    told = [event for event in stand.store.events() if event.kind in (JOB_REMOVED, HISTORY_REMOVED)]
    assert [event.target for event in told] == [running.id, "hello"] and stand.store.jobs() == []
    for job in (running, *old):
        with pytest.raises(Refused, match="taken down by root") as caught:
            find_job(stand.store, job.id)
        assert caught.value.code == Code.TAKEN_DOWN
    for unknown in ("job-", "%", "hello"):
        with pytest.raises(Refused) as caught:
            find_job(stand.store, unknown)
        assert caught.value.code == Code.NOT_FOUND


@pytest.mark.parametrize(
    ("exit", "state", "code"),
    [
        ("exit 3\nended 5000000000\n", JobState.ENDED, 3),
        ("exit 1\nended 5000000000\nstopped 2\n", JobState.CANCELLED, 130),
        (None, JobState.CANCELLED, 130),
    ],
    ids=["ended by itself before", "stopped", "killed with its holder"],
)
def test_a_job_that_ends_while_it_is_cancelled_keeps_its_exit_code(
    stand: Stand, exit: str | None, state: JobState, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, kill = stand.start("/bin/true"), holder_files.end_holder

    def late(directory: Path, *gently: Any) -> None:
        if exit is not None:
            (directory / "exit").write_text(exit)
        kill(directory, *gently)
        assert stand.holder
        stand.holder.wait()

    monkeypatch.setattr(holder_files, "end_holder", late)
    ended = stand.jobs.cancel(job.id)
    assert (ended.state, ended.exit_code) == (state, code)


class Killed(BaseException):
    """The daemon, at this line."""


@pytest.mark.parametrize("at", ["before the agent is killed", "before the launcher is watched", "after a repair"])
def test_a_daemon_that_is_killed_while_it_ends_a_job_on_a_lost_node_leaves_that_to_the_next(
    stand: Stand, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPICH's launcher does not notice the loss by itself, and waits for ever."""
    job, node = stand.start("/bin/true"), stand.store.nodes("hello")[0]
    environment = {"WHERRY_JOB": str(stand.jobs.directory(job.id) / "own" / "job"), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sh", "-c", "sleep 60; :", "agent", node.address], env=environment) as agent:
        with monkeypatch.context() as patch:

            def killed(*_: object) -> None:
                raise Killed

            owner, name = (job_end.cleanup, "end_agents") if "agent" in at else (stand.jobs._losses, "end_if_lost")
            patch.setattr(owner, name, killed)
            with pytest.raises(Killed):
                stand.jobs.node_lost(job.id, node)
        following = stand.next()
        monkeypatch.setattr(following._ends, "watch", lambda _id: None)
        if at == "after a repair":
            following.adopt()
        else:
            assert not following.node_lost(job.id, node), "it is known already"
        assert agent.wait(20) == -9 and stand.holder and stand.holder.wait(20) == -2
    assert not following.node_lost(job.id, node)


def test_a_job_without_ranks_on_a_lost_node_runs_on(stand: Stand) -> None:
    job, node = stand.start("/bin/true"), stand.store.nodes("hello")[0]
    assert (job.nodes, job.starter) == (("hello-0",), 7)
    assert not stand.jobs.node_lost(job.id, node.model_copy(update={"name": "hello-1"}))
    assert not (stand.jobs.directory(job.id) / "lost").exists()


def test_a_job_whose_launcher_has_no_agent_on_a_lost_node_ends(stand: Stand) -> None:
    """The agent has ended, or not begun, when the job has just started."""
    job, node = stand.start("/bin/true"), stand.store.nodes("hello")[0]
    assert stand.jobs.node_lost(job.id, node)
    assert stand.holder and stand.holder.wait(20) == -2


def test_a_node_that_is_lost_ends_the_start_of_a_job(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    node = stand.store.nodes("hello")[0]

    def stage(_cluster: object, _request: object, check: Callable[[], None]) -> None:
        check()
        stand.store.put_node(node.model_copy(update={"state": NodeState.LOST}))
        check()

    monkeypatch.setattr(stand.jobs._start, "_stage", stage)
    with pytest.raises(Failed, match="hello-0 is lost") as failed:
        stand.start("/bin/true")
    assert failed.value.code is Code.UNREACHABLE and stand.store.jobs() == [] and stand.holder is None


def test_how_long_a_job_has_run_does_not_depend_on_the_clock(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stand.start("/bin/true")
    monkeypatch.setattr(jobs, "now", lambda: 0.0)
    assert 0 <= stand.jobs.ran(job) < 60
    assert stand.jobs.ran(job.model_copy(update={"id": "job-x"})) == 0


def test_a_job_whose_files_cannot_be_read_or_removed_keeps_no_other(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From being adopted, or removed when it is old."""
    monkeypatch.setattr(stand.jobs._ends, "watch", lambda _id: None)  # the daemon that started it has ended
    job = stand.start("/bin/true")
    broken = job.model_copy(update={"id": "job-0", "state": JobState.STARTING})
    started = job.model_copy(update={"state": JobState.STARTING})
    stand.store.drop_job(job.id)
    for row in (broken, started):  # the older one first
        stand.store.put_job(row)
    (stand.jobs.directory("job-0")).mkdir()
    (stand.jobs.directory("job-0") / "pid").mkdir()
    assert stand.holder
    stand.holder.kill()
    stand.holder.wait()
    following = stand.next()
    watched = list[str]()
    monkeypatch.setattr(following._ends, "watch", watched.append)
    following.adopt()
    found = stand.store.job(job.id)
    assert watched == [job.id] and found and found.state == JobState.RUNNING, "it was started, and has ended since"

    for row in (broken, started):
        stand.store.put_job(row.model_copy(update={"state": JobState.ENDED}))
    remove = job_end.remove_tree

    def refusing(path: Path) -> None:
        if path.name == "job-0":
            raise OSError(16, "a mount is left below it")
        remove(path)

    monkeypatch.setattr(job_end, "remove_tree", refusing)
    following.prune(keep=0)
    assert [row.id for row in stand.store.jobs()] == ["job-0"]


@pytest.mark.parametrize(("deterministic", "expected"), [(False, ""), (True, "0x1")])
def test_a_deterministic_job_has_a_map_also_at_one_site(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, deterministic: bool, expected: str
) -> None:
    spec = stand.world.fabric.spec
    hosts = tuple(host.model_copy(update={"site": "a"}) for host in spec.hosts)
    monkeypatch.setattr(stand.world.fabric, "spec", spec.model_copy(update={"hosts": hosts}))
    job = stand.start("./program", site_collectives=True, deterministic=deterministic)
    assert (job.site_map, job.deterministic) == (expected, deterministic)


# Errors of the daemon's threads: they are in its log, and the next steps are done all the same.


def test_what_ends_a_thread_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log_to_file(Here("test", tmp_path))

        def fail() -> None:
            raise OSError("no space left")

        thread = threading.Thread(target=fail, name="watch-job-1")
        thread.start()
        thread.join()
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:], root.level = handlers, level
    text = (tmp_path / "state" / "log").read_text()
    assert "the thread watch-job-1 ended" in text and "OSError: no space left" in text


def test_a_job_ends_with_its_node_though_the_loss_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, store, ended = Here("test", tmp_path), Store(tmp_path / "wherry.db"), threading.Event()
    jobs = Jobs(store, cast(Any, None), cast(Any, None), place, {})
    job = Job(
        id="job-1", cluster="a", argv=("x",), ranks=1, mpi="m", uid=0, gid=0, cwd="/", state=JobState.RUNNING,
        created=now(),
    )  # fmt: skip
    store.put_job(job)
    (jobs.directory("job-1") / "lost").mkdir(parents=True)  # no file can be written there
    monkeypatch.setattr(cleanup, "end_agents", lambda *_: True)
    monkeypatch.setattr(jobs._losses, "_end", lambda _id: ended.set())
    node = Node(name="a-0", cluster="a", index=0, host="a1", address="10.0.0.1", mac="", cpus=1, memory=1)
    jobs.node_lost("job-1", node)
    assert ended.wait(10)


# Files of a job that a power cut left empty, or that are damaged.


@pytest.mark.parametrize("left", [b"", b" " * 160, b"exit 7\n", b"ended 5\n", b"7", b"a b", b"\xff\0\xff"])
def test_a_damaged_file_of_a_job_is_as_none(tmp_path: Path, left: bytes) -> None:
    """Else each look at the job would fail, and it would run for ever."""
    for name in ("exit", "pid"):
        (tmp_path / name).write_bytes(left)
    assert holder_files.read_exit(tmp_path) is None and holder_files.read_holder(tmp_path) is None
    holder_files.end_holder(tmp_path)


# How many programs a user may have on nodes, and how many results of users are kept.


def program(id: str, uid: int, state: JobState) -> Job:
    return Job(
        id=id, kind="exec", cluster="hello", argv=("./x",), ranks=1, mpi="none", uid=uid, gid=uid, cwd="/", state=state,
        created=float(id), nodes=("hello-0",),
    )  # fmt: skip


def jobs_of(world: World, top: Path) -> Jobs:
    placements = Placements(world.store, world.fabric)
    return Jobs(world.store, world.fabric, placements, Here("test", top), {"container": world.driver})


def test_a_user_has_so_many_programs_on_nodes_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make("hello", 1)
    jobs, placements = jobs_of(world, tmp_path), Placements(world.store, world.fabric)
    execs = Execs(world.store, placements, Here("test", tmp_path), jobs)
    order = ExecRequest(node="hello-0", argv=("ls",), owner=USER.model_copy(update={"cwd": "/"}), env={})
    for number in range(64):
        world.store.put_job(program(str(number), OTHER.uid, JobState.RUNNING))
        world.store.put_job(program(str(100 + number), USER.uid, JobState.ENDED))
        world.store.put_job(program(str(200 + number), USER.uid, JobState.RUNNING))
    with pytest.raises(Refused) as refused:
        execs.plan(order)
    assert refused.value.code is Code.NO_CAPACITY and "64 programs" in refused.value.what
    world.store.put_job(program("200", USER.uid, JobState.ENDED))
    execs._require_few(USER)
    assert jobs._start._running_ranks() == 0, "they are no ranks"


def test_results_are_kept_for_each_user(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.store.put_job(program(str(number), USER.uid, JobState.ENDED))
        world.store.put_job(program(str(10 + number), OTHER.uid, JobState.ENDED))
    jobs_of(world, tmp_path).prune(keep=1)
    assert {job.id for job in world.store.jobs()} == {"2", "12"}, "nobody's push out another's"
