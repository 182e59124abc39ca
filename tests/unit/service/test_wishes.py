"""Moves that a running program leaves to the daemon: wishes, and balancing; over its routes, in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from inside_programs import HOSTS, Program, elsewhere, make_job
from rest_service import Service

from wherry.base.errors import Code, Refused
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.records import Job, JobState, OperationState
from wherry.service import wishes
from wherry.service.balance_commands import carry_out, measurement, start
from wherry.service.claims import BALANCE, FABRIC, cluster_claim, node_claim
from wherry.service.inside_commands import InsideCommands
from wherry.service.wishes import Wish, only_of


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "_POLL_INTERVAL", 0.05)
    monkeypatch.setattr(wishes, "_ROUND_INTERVAL", 0.05)


def looks_from_now(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that waits until wishes have looked three times more."""
    hindrance, looked = Wish._hindrance, threading.Semaphore(0)

    def counted(wish: Wish, cluster: str) -> str:
        looked.release()
        return hindrance(wish, cluster)

    monkeypatch.setattr(Wish, "_hindrance", counted)

    def await_looks() -> None:
        while looked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert looked.acquire(timeout=60)

    return await_looks


@pytest.fixture
def program(service: Service) -> Program:
    """A rank on node hello-0 of root's job."""
    return Program(service, make_job(service))


def test_a_wish_waits_for_the_end_of_a_critical_phase(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    await_looks = looks_from_now(monkeypatch)
    program("PUT", "/hints", {"rank": 0, "phase": "exchange", "critical": True})
    target = elsewhere(program.service)
    wish = program("POST", "/wishes", {"host": target, "downtime": 100, "within": 60})
    same = program("POST", "/wishes", {"host": target, "downtime": 100, "within": 60})
    assert wish.json()["operation"] == same.json()["operation"], "one for a node"
    await_looks()
    assert not program.service.context.store.moves()
    program("PUT", "/hints", {"rank": 0, "phase": ""})
    assert program.end_of(wish) | {"progress": ""} == {**wish.json(), "progress": "", "state": "done", "moved": 1}
    found = program.service.context.store.node("hello-0")
    assert found and found.host == target


def test_a_wish_that_does_not_become_cheap_ends(program: Program) -> None:
    target = elsewhere(program.service)
    said = program.end_of(program("POST", "/wishes", {"host": target, "downtime": 0, "within": 0.1}))
    assert (said["state"], said["code"]) == ("failed", "TIMED_OUT") and not program.service.context.store.moves()
    assert program("POST", "/wishes", {"host": "none"}).json()["code"] == "NOT_FOUND"
    assert program("POST", "/wishes", {"within": 1e9}).json()["code"] == "USAGE"


def test_a_waiting_wish_holds_nothing_and_ends_when_its_job_is_removed(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    await_looks, context = looks_from_now(monkeypatch), program.service.context
    program("PUT", "/hints", {"rank": 0, "phase": "exchange", "critical": True})
    begun = [program("POST", "/wishes", body) for body in ({"host": elsewhere(program.service)}, {})]
    await_looks()
    claims = [FABRIC, BALANCE, cluster_claim("hello"), *map(node_claim, program.job.nodes)]
    assert context.operations.conflicting_operation(exclusive=claims) is None
    assert len(context.operations.all(running=True)) == 2
    hindrance, looked, go = Wish._hindrance, threading.Semaphore(0), threading.Event()

    def held(wish: Wish, cluster: str) -> str:
        looked.release()
        assert go.wait(60)
        return hindrance(wish, cluster)

    monkeypatch.setattr(Wish, "_hindrance", held)
    assert all(looked.acquire(timeout=60) for _ in begun)
    context.store.drop_job(program.job.id)  # both have read the job, and look for its critical phases next
    go.set()
    for wish in begun:
        found = context.operations.wait(wish.json()["operation"], 30)
        assert (found.state, found.result) == (OperationState.DONE, {"moves": []})


def test_a_node_has_one_wish_and_a_job_one_without_a_host(program: Program) -> None:
    operations = program.service.context.operations

    def waiting() -> list[str]:
        return [one.id for one in operations.all(running=True) if one.kind == wishes.KIND]

    def wish(asks: Program = program, **body: Any) -> str:
        return str(asks("POST", "/wishes", body).json()["operation"])

    program("PUT", "/hints", {"rank": 0, "phase": "exchange", "critical": True})
    here = program.service.context.store.nodes("hello")[0].host
    one, other = (host for host in HOSTS if host != here)
    first, second = wish(host=one), wish(host=other)
    assert operations.wait(first, 20).state == OperationState.CANCELLED, "the later one counts"
    assert wish(host=other) == second and waiting() == [second]
    third = wish(host=other, downtime=3)
    assert operations.wait(second, 20).state == OperationState.CANCELLED and waiting() == [third]
    anywhere = wish()
    assert wish(Program(program.service, program.job, node=1)) == anywhere, "it is the job's"
    assert waiting() == [third, anywhere]
    assert program("GET", f"/operations/{anywhere}").json()["state"] == "running"
    elsewhere_too = wish(Program(program.service, program.job, node=1), host=here)
    assert waiting() == [third, anywhere, elsewhere_too], "another node has its own"


def test_a_wish_does_not_move_a_node_amid_a_phase_of_another_job_that_began_after_its_plan(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    await_looks, begun = looks_from_now(monkeypatch), threading.Event()
    other = Program(program.service, make_job(program.service))
    moves, target = program.service.context.require_managers().moves, elsewhere(program.service)
    plan, planned = moves.plan, list[str]()

    def then_critical(*arguments: Any) -> Any:
        found = plan(*arguments)
        if not planned:
            other("PUT", "/hints", {"rank": 1, "phase": "write", "critical": True})
        planned.append(found.node.name)
        begun.set()
        return found

    moves.plan = then_critical  # type: ignore[method-assign]
    wish = program("POST", "/wishes", {"host": target, "downtime": 100, "within": 60})
    assert begun.wait(60)
    await_looks()
    said = program("GET", f"/operations/{wish.json()['operation']}").json()
    assert said["state"] == "running" and "critical phase 'write'" in said["progress"]
    assert planned == ["hello-0"] and not program.service.context.store.moves(), "nor was it planned again amid it"
    other("PUT", "/hints", {"rank": 1, "phase": ""})
    assert program.end_of(wish)["moved"] == 1


def test_a_wish_that_moves_is_not_replaced(program: Program) -> None:
    """One with other bounds waits until the move has ended, and finds the node there."""
    moves, target = program.service.context.require_managers().moves, elsewhere(program.service)
    apply, moving, go_on = moves.apply, threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> Any:
        moving.set()
        assert go_on.wait(30)
        return apply(*arguments, **options)

    moves.apply = slowly  # type: ignore[method-assign]
    wish = program("POST", "/wishes", {"host": target, "downtime": 100, "within": 60})
    assert moving.wait(30)
    later = program("POST", "/wishes", {"host": target, "downtime": 99, "within": 50})
    assert later.json()["operation"] != wish.json()["operation"]
    go_on.set()
    assert program.end_of(wish)["moved"] == 1 and program.end_of(later)["moved"] == 0


def test_a_wish_moves_nothing_for_a_user_who_may_no_more(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    may, acting = threading.Event(), InsideCommands._acting

    def asked_each_time(self: InsideCommands) -> Any:
        if may.is_set():
            return acting(self)
        raise Refused(Code.PERMISSION, "the user of this job may not use the daemon")

    monkeypatch.setattr(InsideCommands, "_acting", asked_each_time)
    may.set()
    program("PUT", "/hints", {"rank": 0, "phase": "exchange", "critical": True})
    wish = program("POST", "/wishes", {"host": elsewhere(program.service), "downtime": 100, "within": 60})
    may.clear()
    program("PUT", "/hints", {"rank": 0, "phase": ""})
    assert program.end_of(wish)["code"] == "PERMISSION" and not program.service.context.store.moves()


def test_a_wish_measures_within_the_bound_of_all_who_do(program: Program) -> None:
    with ExitStack() as others:
        for _ in range(8):
            others.enter_context(measurement())
        wish = program("POST", "/wishes", {"within": 0.1})
        assert "8 measurements are under way already" in program.end_of(wish)["why"]


def test_a_plan_stops_before_a_node_whose_program_has_begun_a_critical_phase(program: Program) -> None:
    context, target = program.service.context, elsewhere(program.service)
    node = context.store.nodes("hello")[0]
    move = ProposedMove(node=node.name, source=node.host, destination=target, reason="", bytes=1, seconds=1, downtime=1)
    plan = BalancePlan(verdicts=(Verdict(cluster="hello", kind=Kind.CPU, text="t", moves=(move,)),))

    def carried_out() -> dict[str, str]:
        begun = start(context, "hello", ["hello"], lambda task: carry_out(context, task, plan), 0)
        return context.operations.wait(begun.id, 30).error or {}

    program("PUT", "/hints", {"rank": 2, "phase": "write", "critical": True})
    assert "critical phase 'write'" in carried_out()["why"] and not context.store.moves()
    program("PUT", "/hints", {"rank": 2, "phase": "compute"})
    assert carried_out() == {}


def test_a_job_is_balanced_by_its_own_nodes_alone() -> None:
    def move(node: str, swap: str = "") -> ProposedMove:
        return ProposedMove(
            node=node, source="a1", destination="b1", reason="", bytes=1, seconds=1, downtime=1, swap=swap
        )

    job = Job(
        id="job-1", cluster="c", argv=("p",), ranks=2, mpi="m", uid=0, gid=0, cwd="/", state=JobState.RUNNING,
        created=0.0, nodes=("c-0", "c-1"),
    )  # fmt: skip

    def left(*moves: ProposedMove) -> int:
        plan = BalancePlan(verdicts=(Verdict(cluster="c", kind=Kind.CPU, text="t", moves=moves),))
        return len(only_of(plan, job).moves)

    assert left(move("c-0"), move("c-1")) == 2
    assert left(move("c-0"), move("c-2")) == 0
    assert left(move("c-0", swap="d-0")) == 0
