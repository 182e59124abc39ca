"""Long polls, probes, idempotency keys, and hosts that are silent: what waits, and what is sent twice."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, ended

from wherry.base.errors import Code, Refused
from wherry.fabric.fake import FakeFabric
from wherry.node.fake import FakeDriver
from wherry.service.operations import Operations
from wherry.service.rest import app as app_module
from wherry.service.rest import dependencies
from wherry.service.rest.dependencies import LONGEST


def eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_that_wait_cost_nothing_while_nothing_happens(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = service.context.store, list[int]()
    events = store.events
    monkeypatch.setattr(
        store, "events", lambda after, *more, **named: asked.append(after) or events(after, *more, **named)
    )
    last = max([event.id for event in events()], default=0)

    def client() -> int:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.place.socket)), base_url="http://x") as http:
            return len(http.get("/v1/events", params={"after": last, "wait": LONGEST}, timeout=60).json())

    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(client) for _ in range(12)]
        while len(asked) < 12:
            time.sleep(0.01)
        time.sleep(0.5)
        assert len(asked) == 12  # more requests than threads for them, and none has looked twice
        began = time.monotonic()
        store.add_event("test", "x", "news")
        assert [answer.result() for answer in answers] == [1] * 12
    assert time.monotonic() - began < LONGEST - 5


def test_output_is_told_when_it_is_written(http: httpx.Client, service: Service, tmp_path: Path) -> None:
    """The holder of a job writes its files, which no row tells."""
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    order = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "env": {}}
    job = ended(http, http.post("/v1/jobs", json=order))["result"]["job"]["id"]
    files = tmp_path / "job"
    files.mkdir()
    service.jobs.directory = lambda id: files  # type: ignore[method-assign]

    def write() -> None:
        service.jobs.outputs[job].append(("stdout", 3.0, b"late\n"))
        (files / "output").write_bytes(b"late")

    output = service.jobs.output

    def looked(id: str, offset: int = 0, limit: int = 1 << 20) -> tuple[list[tuple[str, float, bytes]], int]:
        """Writes after the first look, which has found nothing."""
        found = output(id, offset, limit)
        if not found[0] and not (files / "output").exists():
            threading.Timer(0.1, write).start()
        return found

    service.jobs.output = looked  # type: ignore[method-assign]
    began = time.monotonic()
    answer = http.get(f"/v1/jobs/{job}/output", params={"offset": 2, "wait": LONGEST}, timeout=60).json()
    assert [base64.b64decode(chunk["data"]) for chunk in answer["chunks"]] == [b"late\n"]
    assert time.monotonic() - began < LONGEST - 5


def test_output_is_gathered_until_the_job_ends(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    order = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "env": {}}
    job = ended(http, http.post("/v1/jobs", json=order))["result"]["job"]["id"]
    path = f"/v1/jobs/{job}/output"
    began = time.monotonic()
    assert http.get(path, params={"wait": LONGEST, "gather": 0.3}, timeout=60).json()["chunks"]
    assert time.monotonic() - began >= 0.3
    ending = threading.Timer(0.1, lambda: ended(http, http.delete(f"/v1/jobs/{job}")))
    ending.start()
    began = time.monotonic()
    assert http.get(path, params={"offset": 2, "wait": LONGEST, "gather": LONGEST}, timeout=60).json()["end"]
    assert time.monotonic() - began < LONGEST - 5
    ending.join()


def test_probes_of_the_doctor_run_once_a_minute(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[int] = []
    monkeypatch.setattr(app_module, "examine", lambda: examined.append(1) or [])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: http.get("/v1/doctor").json(), range(8)))
    assert answers == [[]] * 8 and examined == [1]


def test_requests_that_wait_for_the_doctor_hold_up_no_other(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    examining, go = threading.Event(), threading.Event()

    def examine() -> list[Any]:
        examining.set()
        go.wait(90)
        return []

    monkeypatch.setattr(app_module, "examine", examine)
    with ThreadPoolExecutor(45) as pool:  # more than the threads that serve all requests
        answers = [pool.submit(http.get, "/v1/doctor") for _ in range(45)]
        assert examining.wait(60)
        time.sleep(0.2)  # some of the others have come meanwhile
        try:
            assert http.get("/healthz", timeout=60).status_code == 200
        finally:
            go.set()
        assert all(answer.result().json() == [] for answer in answers)


@pytest.mark.parametrize("path", ["/v1/hosts", "/v1/links", "/v1/nodes/hello-0", "/v1/moves"])
def test_requests_that_wait_for_silent_hosts_hold_up_no_other(
    path: str, http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    go, silences = threading.Event(), list[int]()

    def silent(*_: object) -> Any:
        silences.append(1)
        go.wait(120)
        raise Refused(Code.HOST_DOWN, "it was silent")

    for kind, name in ((FakeFabric, "reachable"), (FakeFabric, "measure_link"), (FakeDriver, "usage")):
        monkeypatch.setattr(kind, name, silent)
    monkeypatch.setattr(dependencies, "_ASKING_SECONDS", 0.5)

    def ask(_number: int) -> int:
        if path == "/v1/moves":
            return http.post(path, json={"node": "hello-0", "host": "b1", "dry_run": True}).status_code
        return http.get(path).status_code

    with ThreadPoolExecutor(50) as pool:  # more than the threads that serve all requests
        asked = [pool.submit(ask, number) for number in range(50)]
        try:
            eventually(lambda: len(silences) >= dependencies.ASKING_AT_ONCE)
            assert http.get("/healthz", timeout=60).status_code == 200
            eventually(lambda: sum(answer.done() for answer in asked) == 50 - dependencies.ASKING_AT_ONCE)
            assert http.get("/healthz", timeout=60).status_code == 200
            refused = [answer.result() for answer in asked if answer.done()]
        finally:
            go.set()
    assert refused == [Code.WRONG_STATE.http_status] * (50 - dependencies.ASKING_AT_ONCE)


def test_a_fault_is_a_header_and_refused_unless_the_daemon_allows_it(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    source = http.get("/v1/nodes/hello-0").json()["node"]["host"]
    move = {"node": "hello-0", "host": "a2" if source == "a1" else "a1"}
    assert http.post("/v1/moves", json=move | {"fault": "transfer:fail"}).json()["code"] == "USAGE"
    refused = http.post("/v1/moves", json=move, headers={"Wherry-Fault": "transfer:fail"})
    assert (refused.status_code, refused.json()["code"]) == (Code.UNSUPPORTED.http_status, "UNSUPPORTED")
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    failed = ended(http, http.post("/v1/moves", json=move, headers={"Wherry-Fault": "transfer:fail"}))
    assert failed["state"] == "failed" and "transfer" in str(failed["error"])


def test_a_request_that_comes_twice_begins_one_operation(http: httpx.Client, service: Service) -> None:
    """Also while the first is still being looked at, and from a later daemon; another user's key is another key."""
    body, key = {"spec": CLUSTER}, {"Idempotency-Key": "3f2a"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/clusters", json=body, headers=key), range(4)))
    assert {answer.status_code for answer in answers} == {202}
    (id,) = {answer.json()["id"] for answer in answers}
    assert {answer.headers["location"] for answer in answers} == {f"/v1/operations/{id}"}
    assert ended(http, answers[0])["state"] == "done"
    again = http.post("/v1/clusters", json=body, headers=key).json()
    assert (again["id"], again["state"]) == (id, "done") and len(http.get("/v1/operations").json()) == 1
    assert Operations(service.context.store).with_key(os.getuid(), "3f2a").id == id  # type: ignore[union-attr]
    assert service.context.operations.with_key(os.getuid() + 1, "3f2a") is None
    other = http.post("/v1/clusters", json=body, headers={"Idempotency-Key": "3f2b"})
    assert other.json()["id"] != id
    refused = {"spec": {**CLUSTER, "nodes": 0}}
    for _ in range(2):  # a refusal begins nothing, and is said again
        assert http.post("/v1/clusters", json=refused, headers={"Idempotency-Key": "x"}).status_code == 422
