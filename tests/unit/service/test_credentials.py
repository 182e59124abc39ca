"""Members of the daemon's group may look at the objects of others, and do nothing else to them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, FABRIC, Service, client_of

import waiting
from wherry.service import credentials
from wherry.service.credentials import PeerCredentials
from wherry.service.rest.app import make_app

GROUP = 7
OWNER, OTHER = 4242, 4243

Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(service: Service) -> Ask:
    """Asks as a user with these credentials at the socket; waits for the operation's end."""
    app = make_app(service.context, GROUP)

    def ask(uid: int, method: str, path: str, json: Any = None) -> httpx.Response:
        async def told(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": {"peer": PeerCredentials(uid, uid, frozenset({GROUP}))}}, receive, send)

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(told)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:
                answer = await client.request(method, path, json=json)
                while answer.status_code == 202:
                    seen = await client.get(answer.headers["Location"], params={"wait": 1})
                    if seen.json()["operation"]["state"] != "running":
                        return seen
                return answer

        return asyncio.run(go())

    return ask


def result(answer: httpx.Response) -> Any:
    operation = answer.json()["operation"]
    assert operation["state"] == "done", operation["error"]
    return operation["result"]


@pytest.fixture
def job(ask: Ask) -> str:
    """A job of OWNER's that runs on the cluster of OWNER's."""
    result(ask(OWNER, "POST", "/v1/clusters", {"spec": CLUSTER}))
    body = {"cluster": "hello", "argv": ["sleep"], "ranks": 1}
    return str(result(ask(OWNER, "POST", "/v1/jobs", body))["job"]["id"])


def other_host(ask: Ask) -> str:
    here = ask(OTHER, "GET", "/v1/nodes/hello-0").json()["node"]["host"]
    return next(host for host in ("a1", "a2", "b1") if host != here)


def test_what_is_anothers_is_left_alone(ask: Ask, job: str, service: Service) -> None:
    move = {"node": "hello-0", "host": other_host(ask)}
    before = service.context.store.nodes(), service.context.store.jobs(), len(service.context.operations.all())
    for method, path, json in (
        ("DELETE", "/v1/clusters/hello", None),
        ("POST", "/v1/clusters", {"spec": CLUSTER}),
        ("POST", "/v1/moves", move),
        ("DELETE", f"/v1/jobs/{job}", None),
        ("GET", f"/v1/jobs/{job}/output", None),
        ("POST", f"/v1/operations/{service.context.operations.all()[0].id}/cancel", None),
    ):
        answer = ask(OTHER, method, path, json)
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.json()["code"] in ("PERMISSION", "NAME_TAKEN") and answer.json()["next"]
    assert (
        service.context.store.nodes(),
        service.context.store.jobs(),
        len(service.context.operations.all()),
    ) == before
    assert ask(OTHER, "GET", "/v1/jobs").status_code == 200


@pytest.mark.skipif(os.geteuid() == OWNER, reason="the daemon's own user has the rights of root")
def test_what_all_share_is_roots(ask: Ask, service: Service) -> None:
    for method, path, json in (
        ("PUT", "/v1/fabric", {"spec": FABRIC}),
        ("DELETE", "/v1/fabric", None),
        ("POST", "/v1/machines/add", {"uri": "ssh://root@10.0.0.1"}),
        ("POST", "/v1/machines/remove", {"uri": "ssh://root@10.0.0.1"}),
        ("POST", "/v1/hosts/a1/drain", None),
        ("POST", "/v1/hosts/a1/restore", None),
    ):
        assert ask(OWNER, method, path, json).json()["code"] == "PERMISSION"
    assert service.context.operations.all() == []


def test_a_job_keeps_who_started_it(ask: Ask, job: str) -> None:
    assert ask(OWNER, "GET", f"/v1/jobs/{job}").json()["starter"] == OWNER


@pytest.mark.parametrize("uid", [OWNER, 0])
def test_the_owner_and_root_may(ask: Ask, job: str, uid: int) -> None:
    assert ask(uid, "GET", f"/v1/jobs/{job}/output").json()["chunks"]
    result(ask(uid, "POST", "/v1/moves", {"node": "hello-0", "host": other_host(ask)}))
    assert result(ask(uid, "DELETE", f"/v1/jobs/{job}"))["job"]["state"] == "cancelled"
    result(ask(uid, "DELETE", "/v1/clusters/hello"))


def test_numbers_are_bounded(ask: Ask) -> None:
    for path in ("/v1/events?after={}", "/v1/operations/x?after={}", "/v1/jobs/x/output?offset={}"):
        for number in ("-1", str(2**64), "1e3", "nan"):
            assert ask(0, "GET", path.format(number)).status_code == 422


def test_names_are_looked_up_and_nothing_else(ask: Ask) -> None:
    for where in ("clusters/{}", "jobs/{}", "jobs/{}/output", "nodes/{}", "moves/{}", "operations/{}"):
        for name in ("..", "%2e%2e%2fhello", "a/b", "x" * 5000, "%00", "' OR 1=1 --"):
            for method in ("GET", "DELETE"):
                answer = ask(0, method, f"/v1/{where.format(name)}")
                assert answer.status_code in (404, 405), (method, where, answer.text)


def test_connections_are_bounded_and_one_too_many_is_told_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are descriptors of the daemon, without which no node moves."""
    for name in ("CONNECTIONS", "CONNECTIONS_OF_ONE"):
        monkeypatch.setattr(credentials, name, 3)
    with ExitStack() as first:
        clients = [first.enter_context(client_of(service)) for _ in range(3)]
        assert [client.get("/healthz").status_code for client in clients] == [200] * 3
        with client_of(service) as fourth:
            for _ in range(2):
                refused = fourth.post("/v1/clusters", json={"spec": CLUSTER, "source": "x" * 1_000_000})
                assert refused.status_code == 409 and refused.json()["what"].startswith("the daemon takes no more")
        clients[0].close()
        with client_of(service) as fourth:
            waiting.until(lambda: fourth.get("/healthz").status_code == 200, "the room of the first")


def test_users_keep_neither_root_nor_each_other_out() -> None:
    one, users = [7] * credentials.CONNECTIONS_OF_ONE, [7, 8, 9] * (credentials.CONNECTIONS_OF_USERS // 3)
    assert credentials._too_many(7, one) and not credentials._too_many(8, one)
    assert credentials._too_many(10, users) and not credentials._too_many(0, users)
    assert credentials._too_many(0, [0] * credentials.CONNECTIONS)
