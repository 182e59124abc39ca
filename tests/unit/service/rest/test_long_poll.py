"""Long polls, probes, idempotency keys, and hosts that are silent: waiting and repeated requests."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, client_of, ended

import waiting
from wherry.base.errors import Code, Refused
from wherry.fabric.fake import FakeFabric
from wherry.node.fake import FakeDriver
from wherry.service.credentials import PeerCredentials
from wherry.service.operations import Operations
from wherry.service.rest import app as app_module
from wherry.service.rest import dependencies, long_poll
from wherry.service.rest.dependencies import MAX_WAIT
from wherry.service.rest.middleware import RequestMiddleware
from wherry.service.wakeups import Wakeups
from wherry.store import Store


class Clock:
    """The time of long polls, which passes when the test sets it: they sleep until they are woken."""

    to_thread = staticmethod(asyncio.to_thread)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sleeps = 0.0, list[float]()
        for name in ("time", "asyncio"):
            monkeypatch.setattr(long_poll, name, self)

    def monotonic(self) -> float:
        return self.now

    async def wait_for(self, woken: Awaitable[object], seconds: float) -> None:
        self.sleeps.append(seconds)
        await woken

    def await_sleep(self, seconds: float, requests: int = 1) -> None:
        """Returns when requests sleep that would be woken after so many seconds."""
        waiting.until(lambda: self.sleeps.count(seconds) >= requests, "the sleep of a long poll")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_clients_that_wait_sleep_until_something_happens(service: Service, clock: Clock) -> None:
    store = service.context.store
    last = store.add_event("test", "x", "no news").id

    def client() -> list[str]:
        with client_of(service) as http:
            return [event["text"] for event in http.get("/v1/events", params={"after": last, "wait": MAX_WAIT}).json()]

    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(client) for _ in range(12)]
        clock.await_sleep(MAX_WAIT, 12)
        store.add_event("test", "x", "news")
        assert [answer.result() for answer in answers] == [["news"]] * 12
    assert clock.sleeps == [MAX_WAIT] * 12, "none has looked before"


def test_output_is_told_when_it_is_written(http: httpx.Client, service: Service, clock: Clock, tmp_path: Path) -> None:
    """The holder of a job writes its files, of which no row has a trace."""
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    order = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "env": {}}
    job = ended(http, http.post("/v1/jobs", json=order))["result"]["job"]["id"]
    files = tmp_path / "job"
    files.mkdir()
    service.jobs.directory = lambda id: files  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.get, f"/v1/jobs/{job}/output", params={"offset": 2, "wait": MAX_WAIT})
        clock.await_sleep(MAX_WAIT)
        service.jobs.outputs[job].append(("stdout", 3.0, b"late\n"))
        (files / "output").write_bytes(b"late")
        assert [base64.b64decode(chunk["data"]) for chunk in answer.result().json()["chunks"]] == [b"late\n"]


def test_output_is_gathered_until_the_job_ends(http: httpx.Client, service: Service, clock: Clock) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    order = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "env": {}}
    job = ended(http, http.post("/v1/jobs", json=order))["result"]["job"]["id"]
    path = f"/v1/jobs/{job}/output"
    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(http.get, path, params={"wait": MAX_WAIT, "gather": 1})
        clock.await_sleep(1)
        clock.now += 1
        service.context.wakeups.wake()
        assert gathered.result().json()["chunks"]
        last = pool.submit(http.get, path, params={"offset": 2, "wait": MAX_WAIT, "gather": MAX_WAIT})
        clock.await_sleep(MAX_WAIT)
        ended(http, http.delete(f"/v1/jobs/{job}"))
        assert last.result().json()["end"]


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

    come, call = list[str](), RequestMiddleware.__call__

    def called(app: RequestMiddleware, scope: Any, *more: Any) -> Any:
        come.append(scope["path"])
        return call(app, scope, *more)

    monkeypatch.setattr(app_module, "examine", examine)
    monkeypatch.setattr(RequestMiddleware, "__call__", called)
    with ThreadPoolExecutor(45) as pool:  # more than the threads that serve all requests
        answers = [pool.submit(http.get, "/v1/doctor") for _ in range(45)]
        try:
            assert examining.wait(60)
            waiting.until(lambda: come == ["/v1/doctor"] * 45, "all requests")
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
            waiting.until(lambda: len(silences) >= dependencies.MAX_ASKING, "as many as may ask")
            assert http.get("/healthz", timeout=60).status_code == 200
            refusals = 50 - dependencies.MAX_ASKING
            waiting.until(lambda: sum(answer.done() for answer in asked) == refusals, "refusals")
            assert http.get("/healthz", timeout=60).status_code == 200
            refused = [answer.result() for answer in asked if answer.done()]
        finally:
            go.set()
    assert refused == [Code.WRONG_STATE.http_status] * refusals


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
    for _ in range(2):  # a refusal begins nothing, and is repeated
        assert http.post("/v1/clusters", json=refused, headers={"Idempotency-Key": "x"}).status_code == 422


# The middleware before all routes: idempotency keys, and clients that leave.


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    return Operations(Store(tmp_path / "wherry.db"))


def test_requests_with_one_key_are_served_one_at_a_time(operations: Operations) -> None:
    """Also a request that comes when the first was refused and the second, which waited for it, has begun."""
    at_once, served, most = 0, 0, 0

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        """Returns when the next one waits, or is served as well."""
        nonlocal at_once, served, most
        at_once, served = at_once + 1, served + 1
        most = max(most, at_once)
        if served < 3:
            await asyncio.to_thread(waiting.until, lambda: at_once > 1 or one_waits(), "the next request")
        at_once -= 1

    def one_waits() -> bool:
        return bool(serve._serving[0, "k"]._waiters)  # type: ignore[attr-defined]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_message: Any) -> None:
        pass

    serve = RequestMiddleware(app, operations)

    async def requests() -> None:
        peer = PeerCredentials(0, 0, frozenset())
        scope = {"type": "http", "method": "POST", "path": "/", "state": {"peer": peer}}
        scope["headers"] = [(b"idempotency-key", b"k")]
        first, second = (asyncio.create_task(serve(dict(scope), receive, send)) for _ in range(2))
        await first
        third = asyncio.create_task(serve(dict(scope), receive, send))
        await asyncio.gather(second, third)

    asyncio.run(requests())
    assert most == 1


def test_a_request_whose_client_left_midway_is_not_served(operations: Operations) -> None:
    served = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        served.append(scope["method"])

    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "DELETE", "path": "/", "headers": []}
    scope["state"] = {"peer": PeerCredentials(0, 0, frozenset())}
    asyncio.run(RequestMiddleware(app, operations)(scope, receive, send))
    assert served == []


# Wakeups of long polls.


def test_a_directory_that_appears_late_leaves_no_inotify_watch(tmp_path: Path) -> None:
    """A request that waits before the directory exists may be the last one to end."""

    async def wait() -> None:
        wakeups, late = Wakeups(), tmp_path / "late"
        with ExitStack() as first, ExitStack() as second:
            early = first.enter_context(wakeups.waiting(late))
            late.mkdir()
            second.enter_context(wakeups.waiting(late))
            (late / "output").touch()
            await asyncio.wait_for(early.wait(), 60)
            second.close()
        inotify = wakeups._files._inotify
        assert inotify
        await asyncio.to_thread(waiting.until, lambda: not inotify._watches, "the kernel's word that it is removed")

    asyncio.run(wait())
