"""The running daemon continues a move that could neither be finished nor rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest
from rest_service import CLUSTER, Service, ended

import waiting
from wherry.base.errors import Code, LostContact
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.records import Move, NodeState, OperationState, Phase
from wherry.move import state_machine
from wherry.node.fake import Copy, FakeDriver
from wherry.service.balance_commands import carry_out, start
from wherry.service.health_monitor import HealthMonitor
from wherry.service.move_recovery import MoveRecovery


class Away:
    """A host that does not answer, from the call `since` on."""

    def __init__(self, driver: FakeDriver, since: str) -> None:
        self.driver, self.since, self.begun, self.over = driver, since, False, False
        driver.on_call = self

    def __call__(self, name: str) -> None:
        self.begun = self.begun or name == self.since
        if self.begun and not self.over:
            raise LostContact(Code.UNREACHABLE, "no libvirtd answers")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    """A client, and a cluster whose first node is on a1."""
    transport = httpx.HTTPTransport(uds=str(service.place.socket))
    with httpx.Client(transport=transport, base_url="http://x", timeout=60) as made:
        ended(made, made.post("/v1/clusters", json={"spec": CLUSTER}))
        yield made


def driver(service: Service) -> FakeDriver:
    assert service.context.managers
    found = service.context.managers.drivers["container"]
    assert isinstance(found, FakeDriver)
    return found


def taken_up(service: Service) -> list[OperationState]:
    """How the tries stand, oldest first."""
    return [found.state for found in service.context.operations.all() if found.kind == "recover move"]


@pytest.mark.parametrize(("since", "phase"), [("transfer", Phase.ROLLED_BACK), ("release", Phase.DONE)])
def test_it_is_gone_on_with_when_the_hosts_answer(
    service: Service, http: httpx.Client, since: str, phase: Phase
) -> None:
    context, task = service.context, MoveRecovery(service.context, 0.02)
    source = next(node.host for node in context.store.nodes("hello") if node.name == "hello-0")
    destination = next(host for host in ("a1", "a2", "b1") if host != source)
    away = Away(driver(service), since)
    assert context.managers
    failed = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": destination}))
    assert failed["state"] == "failed" and "the daemon retries" in failed["error"]["next"]
    (move,) = context.store.moves()
    assert move.ended is None and context.store.node("hello-0").state == NodeState.MOVING  # type: ignore[union-attr]

    context.managers.fabric.set_down(source, True)
    task.run_once()
    assert taken_up(service) == []  # it would fail again

    context.managers.fabric.set_down(source, False)
    task.run_once()
    waiting.until(lambda: taken_up(service) == [OperationState.FAILED], "the first try")
    away.over = True
    waiting.until(lambda: task.run_once() or OperationState.DONE in taken_up(service), "the last try")
    (move,) = context.store.moves()
    node = context.store.node("hello-0")
    assert move.phase == phase and node is not None and node.state == NodeState.RUNNING
    assert node.host == (destination if phase == Phase.DONE else source)
    assert driver(service).copies("hello-0") == {node.host: Copy.RUNNING}
    tries = len(taken_up(service))
    task.run_once()
    assert len(taken_up(service)) == tries


def test_a_move_that_somebody_is_at_is_left_alone(service: Service, http: httpx.Client) -> None:
    task, seen = MoveRecovery(service.context, 0.0), list[str]()

    def look(name: str) -> None:
        task.run_once()
        seen.append(name)

    driver(service).on_call = look
    source = next(node.host for node in service.context.store.nodes("hello") if node.name == "hello-0")
    destination = next(host for host in ("a1", "a2", "b1") if host != source)
    done = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": destination}))
    assert done["state"] == "done" and "transfer" in seen and taken_up(service) == []


def test_what_a_move_left_at_a_host_is_ended_when_that_answers(service: Service, http: httpx.Client) -> None:
    """By an operation with the node's claim, so beside no other; a look at nodes ends nothing."""
    context, task, fake = service.context, MoveRecovery(service.context, 0.02), driver(service)
    row = context.store.node("hello-0")
    assert context.managers and row
    elsewhere = next(host for host in ("a1", "a2", "b1") if host != row.host)
    fake.left = [("hello-0", elsewhere), ("hello-0", row.host), ("gone-1", elsewhere)]
    HealthMonitor(context).check()
    context.managers.fabric.set_down(elsewhere, True)
    task.run_once()
    waiting.until(lambda: not context.store.operations(running=True), "the end of all")
    assert fake.left == [("hello-0", elsewhere), ("hello-0", row.host), ("gone-1", elsewhere)]
    context.managers.fabric.set_down(elsewhere, False)
    busy, over = threading.Event(), threading.Event()
    fake.on_call = lambda name: (busy.set(), over.wait()) if name == "transfer" else None  # type: ignore[assignment]
    destination = next(host for host in ("a1", "a2", "b1") if host not in (elsewhere, row.host))
    move = http.post("/v1/moves", json={"node": "hello-0", "host": destination})
    busy.wait()
    waiting.until(lambda: task.run_once() or ("gone-1", elsewhere) not in fake.left, "the end of one")
    assert ("hello-0", elsewhere) in fake.left  # as the move is at it
    over.set()
    assert ended(http, move)["state"] == "done"
    waiting.until(lambda: task.run_once() or not fake.left, "the end of all")
    assert fake.copies("hello-0") == {destination: Copy.RUNNING}


def test_what_balancing_moves_no_recovery_touches(service: Service, http: httpx.Client) -> None:
    """The row still names the source while the copy arrives at a host where an earlier move left one to be ended."""
    context, fake = service.context, driver(service)
    recovery, row = MoveRecovery(context, 0.0), context.store.node("hello-0")
    assert row
    destination = next(host for host in ("a1", "a2", "b1") if host != row.host)
    fake.left = [("hello-0", destination)]
    move = ProposedMove(
        node="hello-0", source=row.host, destination=destination, reason="room", bytes=1, seconds=1.0, downtime=0.1
    )
    verdict = Verdict(cluster="hello", kind=Kind.NETWORK, text="it pays", before=9.0, after=3.0, moves=(move,))
    plan, tried = BalancePlan(verdicts=(verdict,)), list[str]()

    def look(name: str) -> None:
        recovery.run_once()
        tried.append(name)

    fake.on_call = look
    begun = start(context, "hello", ["hello"], lambda task: carry_out(context, task, plan), 0)
    waiting.until(lambda: context.operations.get(begun.id).state != OperationState.RUNNING, "its end")
    fake.on_call = lambda name: None
    assert context.operations.get(begun.id).state == OperationState.DONE and "transfer" in tried
    assert fake.copies("hello-0") == {destination: Copy.RUNNING} and fake.left == [("hello-0", destination)]
    assert {operation.kind for operation in context.operations.all()} == {"up", "balance"}


def test_a_try_that_takes_long_counts_for_the_backoff(service: Service, http: httpx.Client) -> None:
    task, fake = MoveRecovery(service.context, 3600.0), driver(service)
    destination = next(
        host
        for host in ("a1", "a2", "b1")
        if host not in {n.host for n in service.context.store.nodes() if n.index == 0}
    )
    away = Away(fake, "transfer")
    assert ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": destination}))["state"] == "failed"
    busy, over = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        busy.set()
        over.wait()
        away(name)

    fake.on_call = slow
    task.run_once()
    busy.wait()
    task.run_once()  # while the try is under way
    over.set()
    waiting.until(lambda: taken_up(service) == [OperationState.FAILED], "the first try")
    task.run_once()
    assert taken_up(service) == [OperationState.FAILED]  # the next try is due in an hour


def test_a_drain_does_not_wait_for_its_own_claims(service: Service, http: httpx.Client) -> None:
    """A committed move whose source fell silent is unfinished, and its node is at the host that is drained."""
    source = next(node.host for node in service.context.store.nodes("hello") if node.name == "hello-0")
    destination = next(host for host in ("a1", "a2", "b1") if host != source)
    Away(driver(service), "release")
    assert ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": destination}))["state"] == "failed"
    node = service.context.store.node("hello-0")
    assert node and (node.host, node.state) == (destination, NodeState.MOVING)
    drain = http.post(f"/v1/hosts/{destination}/drain").json()["id"]
    done = service.context.operations.wait(drain, waiting.bound())
    if done.state == OperationState.RUNNING:
        service.context.operations.cancel(drain)
    assert done.state == OperationState.FAILED and "hello-0" in str(done.error)


def test_a_driver_whose_search_fails_keeps_no_other_try_from_being_made(
    service: Service, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no pause of a known orphan is forgotten because it was not found in that round."""
    task, fake = MoveRecovery(service.context, 3600.0), driver(service)
    row, managers = service.context.store.node("hello-0"), service.context.require_managers()
    assert row
    elsewhere = next(host for host in ("a1", "a2", "b1") if host != row.host)
    fake.left = [("hello-0", elsewhere)]

    class Broken(FakeDriver):
        def orphans(self) -> list[tuple[str, str]]:
            raise OSError(5, "the notes of the hosts")

    monkeypatch.setitem(managers.drivers, "container", Broken())
    monkeypatch.setitem(managers.drivers, "other", fake)
    task.run_once()
    waiting.until(lambda: not fake.left, "the end of all")
    assert list(task._backoff) == [f"hello-0@{elsewhere}"]
    monkeypatch.setitem(managers.drivers, "other", Broken())
    task.run_once()
    assert list(task._backoff) == [f"hello-0@{elsewhere}"]


def test_a_node_is_not_moved_again_before_the_end_of_its_move_is_written(
    service: Service, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finishing the first one afterwards would name a host that the node has left."""
    store, task = service.context.store, MoveRecovery(service.context, 0.0)
    row, put = store.node("hello-0"), store.put_move
    assert row
    first, second = (host for host in ("a1", "a2", "b1") if host != row.host)

    def full(move: Move) -> None:
        if move.phase == Phase.DONE:
            raise OSError(28, "No space left on device")
        put(move)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_move", full)
        assert ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": first}))["state"] == "failed"
    node = store.node("hello-0")
    assert node and (node.host, node.state) == (first, NodeState.RUNNING) and store.moves(unfinished=True)
    refused = http.post("/v1/moves", json={"node": "hello-0", "host": second}).json()
    assert refused["code"] == "WRONG_STATE" and "is unfinished" in refused["what"]
    waiting.until(lambda: task.run_once() or not store.moves(unfinished=True), "the end of the move")
    waiting.until(lambda: not store.operations(running=True), "the end of all")
    assert ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": second}))["state"] == "done"
    node = store.node("hello-0")
    assert node and node.host == second
