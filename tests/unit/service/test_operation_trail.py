"""The steps of operations: complete, bounded, and as durable as the operation."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from rest_service import CLUSTER, Service, ended

from wherry.base.acting import acting
from wherry.base.errors import Code, Failed
from wherry.service.operations import Operations
from wherry.service.task import Task
from wherry.store import Store, operation_steps
from wherry.store.address import Address


@pytest.fixture
def store(address: Address) -> Store:
    return Store(address)


def seen(operations: Operations, id: str) -> list[tuple[str, str, str]]:
    trail = operations.trail(id)
    assert [step.number for step in trail] == list(range(1, len(trail) + 1))
    assert [step.time for step in trail] == sorted(step.time for step in trail)
    return [(str(step.kind), step.text, step.by) for step in trail]


def finish(operations: Operations, id: str) -> None:
    thread = operations._tasks[id].thread
    assert thread
    thread.join()


def test_who_did_what_and_when(store: Store) -> None:
    operations, go = Operations(store), threading.Event()

    def body(task: Task) -> None:
        task.progress("waiting")
        task.stop.wait()
        go.wait()
        raise Failed(Code.CANCELLED, "it was cancelled", "ann wished it")

    token = acting.set("ann")
    one = operations.start("up", "hello", body)
    acting.set("eve")
    operations.cancel(one.id)
    operations.cancel(one.id)
    acting.reset(token)
    go.set()
    finish(operations, one.id)
    found = seen(operations, one.id)
    assert found[0] == ("begin", "up hello", "ann")
    assert sorted(found[1:3]) == [("cancel", "it was asked to end", "eve"), ("progress", "waiting", "")]
    assert found[3:] == [("end", "cancelled: it was cancelled; ann wished it", "")]


def test_the_trail_goes_on_after_the_daemon_was_killed(store: Store) -> None:
    first, half, go = Operations(store), threading.Event(), threading.Event()

    def body(task: Task) -> None:
        task.progress("half")
        half.set()
        go.wait()

    one = first.start("up", "hello", body)
    half.wait()
    second = Operations(store)
    second.end_left_over()
    assert [kind for kind, _, _ in seen(second, one.id)] == ["begin", "progress", "end"]
    assert "the daemon was stopped" in seen(second, one.id)[-1][1]
    go.set()
    finish(first, one.id)


def test_it_is_bounded_and_goes_with_its_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_steps, "MOST", 3)
    store = Store(tmp_path / "wherry.db")
    operations = Operations(store)

    def body(task: Task) -> None:
        for number in range(5):
            task.progress(str(number))

    one = operations.start("up", "hello", body)
    finish(operations, one.id)
    assert [text for _, text, _ in seen(operations, one.id)] == ["up hello", "0", "1", "done"]
    row = operations.get(one.id)
    store.put_operation(row.model_copy(update={"created": 1.0}))
    store.prune(others=0)
    assert store.operation(one.id) is None and operations.trail(one.id) == []


def test_a_move_has_its_phases_there(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    node = service.context.store.nodes()[0]
    host = {"a1": "a2"}.get(node.host, "a1")
    moved = ended(http, http.post("/v1/moves", json={"node": node.name, "host": host}))
    trail = http.get(f"/v1/operations/{moved['id']}", params={"trail": True}).json()["trail"]
    assert [step["kind"] for step in trail][:1] == ["begin"] and trail[-1]["text"] == "done"
    texts = " ".join(step["text"] for step in trail)
    assert all(phase in texts for phase in ("freeze", "restore", "commit")), texts
    assert "trail" not in http.get(f"/v1/operations/{moved['id']}").json()
