"""Operations: claims, cancelling, ends, and operations that a dead daemon left running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, FABRIC, Service, client_of, ended, running

import waiting
from holdings import held, shown
from wherry.base.errors import Code, Failed, Refused
from wherry.base.progress import Check
from wherry.client import Client
from wherry.fabric.fake import FakeFabric
from wherry.model.records import ClusterState, JobState, OperationState
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.node.fake import FakeDriver
from wherry.node.protocol import Placement
from wherry.service import context as context_module
from wherry.service import operations as operations_module
from wherry.service.claims import Claims
from wherry.service.operations import Operations
from wherry.service.task import Task
from wherry.store import Store


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    return Operations(Store(tmp_path / "wherry.db"))


def until_ended(operations: Operations, id: str) -> OperationState:
    thread = operations._tasks[id].thread
    assert thread
    thread.join()
    return operations.get(id).state


def test_an_operation_can_be_cancelled(operations: Operations) -> None:
    def body(task: Task) -> None:
        while True:
            task.stop.wait()
            task.check()

    id = operations.start("up", "x", body).id
    assert operations.cancel(id).id == id
    assert until_ended(operations, id) == OperationState.CANCELLED
    with pytest.raises(Refused):
        operations.cancel(id)


def test_what_is_claimed_is_not_claimed_twice(operations: Operations) -> None:
    go = threading.Event()

    def body(task: Task) -> None:
        go.wait()

    first = operations.start("move", "x", body, shared=["cluster x"], exclusive=["node x-1"])
    operations.start("move", "x", body, shared=["cluster x"], exclusive=["node x-2"])
    for claims in ({"shared": ["node x-1"]}, {"exclusive": ["cluster x"]}):
        with pytest.raises(Refused) as caught:
            operations.start("down", "x", body, **claims)
        assert first.id in caught.value.why
    go.set()
    assert until_ended(operations, first.id) == OperationState.DONE


def test_nobody_looks_at_what_an_operation_works_on(operations: Operations) -> None:
    go, seen = threading.Event(), list[str]()

    def body(task: Task) -> None:
        go.wait()

    id = operations.start("move", "x", body, shared=["cluster x"]).id
    assert not operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), lambda: "x", seen.append)
    assert operations.if_unclaimed(Claims.of(exclusive=["cluster y"]), lambda: "y", seen.append)
    beside = Claims.of(shared=["cluster x"], exclusive=["node x-1"])
    assert operations.if_unclaimed(beside, lambda: "y", lambda _: None), "as it does not work on that node"
    go.set()
    until_ended(operations, id)
    assert operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), lambda: "x", seen.append) and seen == ["y", "x"]


def test_a_look_that_takes_long_holds_up_nobody_and_is_forgotten_when_somebody_was_at_it(
    operations: Operations,
) -> None:
    seen = list[str]()

    def look() -> str:
        """A host is silent; meanwhile an operation on the cluster begins and ends."""
        id = operations.start("move", "x", lambda task: None, shared=["cluster x"]).id
        assert until_ended(operations, id) == OperationState.DONE
        return "old"

    assert not operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), look, seen.append) and seen == []


def test_an_observation_is_void_also_when_the_operation_is_forgotten(operations: Operations) -> None:
    """A silent host is asked for minutes, in which many operations begin and end."""
    seen = list[str]()

    def look() -> str:
        for number in range(60):
            claims = {"shared": ["cluster x"]} if not number else {}
            id = operations.start("move", "x", lambda task: None, **claims).id
            assert until_ended(operations, id) == OperationState.DONE
        return "old"

    assert not operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), look, seen.append) and seen == []
    assert operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), lambda: "new", seen.append) and seen == ["new"]

    def claims_later() -> str:
        def body(task: Task) -> None:
            task.claim(Claims.of(exclusive=["cluster x"]))

        until_ended(operations, operations.start("balance", "all", body).id)
        return "old"

    assert (
        not operations.if_unclaimed(Claims.of(exclusive=["cluster x"]), claims_later, seen.append)
        and operations._observations == []
    )


def test_errors_and_bugs_end_an_operation(operations: Operations) -> None:
    def fails(task: Task) -> None:
        raise Failed(Code.MOVE_FAILED, "it failed")

    def breaks(task: Task) -> None:
        raise KeyError("x")

    for body, code in ((fails, "MOVE_FAILED"), (breaks, "BUG")):
        id = operations.start("move", "x", body).id
        assert until_ended(operations, id) == OperationState.FAILED
        error = operations.get(id).error
        assert error and error["code"] == code


def test_what_a_dead_daemon_left_running_is_marked_failed(tmp_path: Path) -> None:
    first, go = Operations(Store(tmp_path / "wherry.db")), threading.Event()

    def body(task: Task) -> None:
        go.wait()

    id = first.start("up", "x", body).id
    second = Operations(Store(tmp_path / "wherry.db"))
    second.end_left_over()
    found = second.get(id)
    assert found.state == OperationState.FAILED and found.error and found.error["what"] == "the daemon was stopped"
    go.set()
    until_ended(first, id)


def test_recovery_ends_what_was_cut_short(tmp_path: Path) -> None:
    with (
        running(tmp_path) as service,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(service.place.socket)), base_url="http://x", timeout=60
        ) as http,
    ):
        nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
        target = next(host for host in ("a1", "a2", "b1") if host != nodes[0]["host"])
        move = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": target}))
        context, store = service.context, service.context.store
        row = store.operation(move["id"])
        cluster = store.cluster("hello")
        assert row and cluster
        made = store.moves()[-1]
        store.put_move(made.model_copy(update={"created": row.created - 3600}))  # the clock was set back meanwhile
        cut = {"state": OperationState.RUNNING, "ended": None, "result": None}
        store.put_operation(row.model_copy(update=cut))
        store.put_operation(row.model_copy(update=cut | {"id": "op-2", "target": "hello-1 to a1"}))
        store.put_cluster(cluster.model_copy(update={"state": ClusterState.MAKING}))
        context.recover()
        first, second, after = store.operation(move["id"]), store.operation("op-2"), store.cluster("hello")
        assert first and first.state == OperationState.DONE and first.result
        assert second and second.state == OperationState.FAILED
        assert after and after.state == ClusterState.PARTLY and "daemon" in after.reason


def test_a_job_that_a_killed_daemon_started_is_the_result_of_its_operation(tmp_path: Path) -> None:
    """After an error its user would repeat the command, and the program would run twice."""
    with running(tmp_path) as service, client_of(service) as http:
        ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
        run = ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1}))
        store, id = service.context.store, run["result"]["job"]["id"]
        row, job = store.operation(run["id"]), store.job(id)
        assert row and job and job.operation == run["id"]
        cut = row.model_copy(update={"state": OperationState.RUNNING, "ended": None, "result": None})
        for state, expected in ((JobState.RUNNING, OperationState.DONE), (JobState.STARTING, OperationState.FAILED)):
            store.put_operation(cut)
            store.put_job(job.model_copy(update={"state": state}))
            service.context.recover()
            after = store.operation(run["id"])
            assert after and after.state == expected
            assert expected == OperationState.FAILED or (after.result or {})["job"]["id"] == id


def test_an_error_of_the_recovery_that_cannot_be_written_stops_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: object) -> None:
        raise OSError("full")

    with running(tmp_path) as service:
        adopted = list[int]()
        managers = service.context.require_managers()
        monkeypatch.setattr(managers.moves, "recover", refusing)
        monkeypatch.setattr(managers.jobs, "adopt", lambda: adopted.append(1))
        monkeypatch.setattr(service.context.store, "add_event", refusing)
        service.context.recover()
        assert adopted
        monkeypatch.undo()


class FullDisk:
    """A store whose writes fail while `full` is set."""

    def __init__(self, store: Store) -> None:
        self._store, self.full = store, False

    def __getattr__(self, name: str) -> Any:
        if self.full and name in ("put_operation", "add_event"):
            raise OSError(28, "No space left on device")
        return getattr(self._store, name)


def test_an_end_that_cannot_be_written_frees_the_claims_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_RETRY", 0.01)
    store = FullDisk(Store(tmp_path / "wherry.db"))
    operations = Operations(store)  # type: ignore[arg-type]

    def body(task: Task) -> dict[str, Any]:
        store.full = True
        task.progress("a line that cannot be written either")
        return {"answer": 1}

    id = operations.start("up", "x", body, exclusive=["cluster x"]).id
    waiting.until(lambda: operations.get(id).state != OperationState.RUNNING, "its end")
    assert operations.get(id).state == OperationState.DONE and operations.get(id).result == {"answer": 1}
    assert operations.conflicting_operation(exclusive=["cluster x"]) is None
    stored = store._store.operation(id)
    assert stored is not None and stored.state == OperationState.RUNNING
    store.full = False
    assert until_ended(operations, id) == OperationState.DONE
    stored = store._store.operation(id)
    assert stored is not None and stored.state == OperationState.DONE
    assert [event.kind for event in store.events()] == ["operation"]


def test_what_a_dead_daemon_left_running_has_ended_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_RETRY", 0.01)
    go, store = threading.Event(), FullDisk(Store(tmp_path / "wherry.db"))
    dead = Operations(Store(tmp_path / "wherry.db"))
    ids = [dead.start("up", name, lambda _task: go.wait() and None).id for name in "xy"]
    operations = Operations(store)  # type: ignore[arg-type]
    store.full = True
    operations.end_left_over(lambda operation: {"answer": 1} if operation.id == ids[1] else None)
    assert [operations.get(id).state for id in ids] == [OperationState.FAILED, OperationState.DONE]
    assert operations.all(running=True) == [] and len(operations.all()) == 2
    assert len(store._store.operations(running=True)) == 2
    store.full = False
    assert [until_ended(operations, id) for id in ids] == [OperationState.FAILED, OperationState.DONE]
    assert [row.state for row in store._store.operations()] == [OperationState.FAILED, OperationState.DONE]
    go.set()


def test_a_daemon_starts_although_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as service, client_of(service) as http:
        ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
        store = service.context.store
        (cluster,), row = store.clusters(), store.operations()[-1]
        store.put_cluster(cluster.model_copy(update={"state": ClusterState.MAKING}))
        left = row.model_copy(update={"id": "op-2", "state": OperationState.RUNNING, "ended": None})
        store.put_operation(left)

        def refusing(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            for name in ("put_cluster", "put_operation", "add_event"):
                patch.setattr(store, name, refusing)
            service.context.recover()
            assert http.get("/v1/operations/op-2").json()["operation"]["state"] == "failed"
            assert http.get("/v1/operations", params={"running": True}).json() == []


def test_closing_takes_its_time_from_a_clock_that_nobody_sets(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, waited = threading.Event(), list[float]()
    for name in "xy":
        id = operations.start("down", name, lambda task: end.wait() and None, may_cancel=False).id
        monkeypatch.setattr(operations._tasks[id].thread, "join", waited.append)
    monkeypatch.setattr(operations_module, "now", lambda: 0.0)  # set back for ever: a wall clock's deadline never comes
    monkeypatch.setattr(operations_module, "time", SimpleNamespace(monotonic=lambda: sum(waited)))
    operations.close(20.0)
    assert waited == [20.0, 0.0]
    end.set()


def test_a_task_claims_more_while_it_runs(operations: Operations) -> None:
    go, refused = threading.Event(), list[Refused]()

    def body(task: Task) -> None:
        task.claim(Claims.of(exclusive=["node x-1"]))
        task.claim(Claims.of(exclusive=["node x-1"]))  # its own do not conflict
        with pytest.raises(Refused) as caught:
            task.claim(Claims.of(exclusive=["node y-1"]))
        refused.append(caught.value)
        go.wait()

    other = operations.start("move", "y-1 to a2", lambda task: task.stop.wait() and None, exclusive=["node y-1"])
    id = operations.start("balance", "all", body, exclusive=["balance"]).id
    waiting.until(lambda: refused, "the refusal")
    assert other.id in refused[0].why
    with pytest.raises(Refused):
        operations.start("move", "x-1 to a2", body, exclusive=["node x-1"])
    go.set()
    until_ended(operations, id)
    assert operations.conflicting_operation(exclusive=["node x-1"]) is None
    operations.cancel(other.id)


def test_a_user_has_so_many_operations_at_a_time(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "_MAX_RUNNING", 2)
    go = threading.Event()

    def body(task: Task) -> None:
        go.wait()

    for _ in range(2):
        operations.start("run", "x", body, uid=1000)
    with pytest.raises(Refused) as caught:
        operations.start("run", "x", body, uid=1000)
    assert "2 operations of user 1000" in caught.value.what
    operations.start("run", "x", body, uid=1001)
    operations.start("run", "x", body, uid=0)
    for uid in (1000, 0):  # operations that mostly wait are counted apart
        for _ in range(2):
            operations.start("wish", "x", body, uid=uid, apart=True)
        with pytest.raises(Refused, match=f"2 wish operations of user {uid}"):
            operations.start("wish", "x", body, uid=uid, apart=True)
    go.set()


def test_an_operation_without_a_thread_claims_nothing(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Failed, match="up x cannot begin"):
            operations.start("up", "x", lambda _task: None, exclusive=["cluster x"])
    assert [found.state for found in operations.all()] == [OperationState.FAILED]
    assert operations.conflicting_operation(exclusive=["cluster x"]) is None
    operations.close(1)  # joins only threads that ran


def test_while_the_embedded_fabric_is_made_nothing_else_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it cannot be made it is removed again, beneath whatever began meanwhile."""
    monkeypatch.setattr(context_module, "default_fabric", lambda: parse(FabricSpec, FABRIC, "test"))
    making, made, starting, go = (threading.Event() for _ in range(4))

    class Slow(FakeFabric):
        def up(self) -> None:
            making.set()
            made.wait()
            super().up()

    start = FakeDriver.start

    def start_slowly(driver: FakeDriver, place: Placement, check: Check) -> None:
        starting.set()
        go.wait()
        start(driver, place, check)

    monkeypatch.setattr(FakeDriver, "start", start_slowly)
    monkeypatch.setattr(context_module.wiring, "make_fabric", lambda spec, _instance: Slow(spec))
    with running(tmp_path, fabric=False) as service, client_of(service) as http:
        first = http.post("/v1/clusters", json={"spec": CLUSTER})
        making.wait()
        other = {"spec": {**CLUSTER, "name": "other", "nodes": 1}}
        refused = http.post("/v1/clusters", json=other).json()
        assert refused["code"] == "WRONG_STATE" and first.json()["id"] in refused["why"]
        made.set()
        starting.wait()
        second = http.post("/v1/clusters", json=other)  # nodes of both are started at the same time
        assert http.delete("/v1/fabric").json()["code"] == "WRONG_STATE"
        go.set()
        assert [ended(http, answer)["state"] for answer in (first, second)] == ["done", "done"]


# Many moves leave nothing in the service: counted when it keeps as many ended operations as it may.


KEPT = 25
MOVES = 2 * KEPT
BATCHES = 8
"""A set with a bound, as a pool of threads on a busy machine, stops growing in one of them."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(operations_module, "_KEPT_ENDED", KEPT)
    with running(tmp_path) as made:
        yield made


def move(client: Client) -> None:
    node = client.nodes("hello")[0]
    client.move(node.name, "a2" if node.host == "b1" else "b1")


def test_neither_descriptors_nor_threads_nor_objects(service: Service) -> None:
    with Client(service.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "x").id)
        client.wait(client.up(CLUSTER, "x").id)
        for _ in range(KEPT + 10):
            move(client)
        for _ in range(BATCHES):
            before = held()
            for _ in range(MOVES):
                move(client)
            grown = held() - before
            if not (left := {name: number for name, number in grown.items() if number >= MOVES / 2}):
                return
    pytest.fail(f"{BATCHES} times one for every second move: {left}\n{shown(left)}")
