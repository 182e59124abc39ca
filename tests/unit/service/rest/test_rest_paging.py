"""Lists in pages over the socket: the header Link, cursors, the client's walk, and a caller's own rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from accounts_world import Accounts
from rest_service import CLUSTER, Service, ended

from wherry.client import Client
from wherry.model.records import Operation, OperationState

LISTS = ("clusters", "nodes", "jobs", "moves", "operations", "programs", "events", "audit", "users", "tokens")
LISTS += ("keys", "projects")


def walk(get: Callable[[str], Any], path: str) -> list[list[dict[str, Any]]]:
    found, link = list[list[dict[str, Any]]](), path
    while link:
        answer = get(link)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        header = answer.headers.get("Link", "")
        link = header.partition(">")[0].lstrip("<")
        assert not header or header == f'<{link}>; rel="next"'
    return found


def many_operations(service: Service, number: int, uid: int = 0) -> list[str]:
    names = [f"op-{each:04}" for each in range(number)]
    for name in names:
        one = Operation(id=name, kind="up", target="a", state=OperationState.DONE, created=1.0, uid=uid)
        service.context.store.put_operation(one)
    return names


@pytest.fixture
def full(http: httpx.Client, service: Service) -> httpx.Client:
    """A service with a cluster, a job, a move, and accounts."""
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    for job in range(2):
        ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["p", str(job)], "ranks": 1, "env": {}}))
        host = {"a1": "a2"}.get(service.context.store.nodes()[0].host, "a1")
        ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": host}))
    for name in ("ann", "bob"):
        for path, body in (("users", {"name": name}), ("tokens", {"name": "t", "user": name})):
            assert http.post(f"/v1/{path}", json=body).status_code == 201
        assert http.post("/v1/keys", json={"name": "k", "user": name}).status_code == 201
        project = {"name": f"of-{name}", "owner": name}
        assert http.post("/v1/projects", json=project).status_code == 201
    return http


def test_every_list_that_can_grow_has_pages(full: httpx.Client) -> None:
    for name in LISTS:
        whole = full.get(f"/v1/{name}")
        assert "Link" not in whole.headers
        pages = walk(full.get, f"/v1/{name}?limit=1")
        rows = [row for page in pages for row in page]
        assert all(len(page) == 1 for page in pages if rows), name
        expected = whole.json()
        if name == "audit":  # reading writes nothing there
            assert expected
        assert rows == expected, name
        assert len(rows) > 1 or name == "programs" or name == "clusters", name


def test_newest_first_and_parameters_stay(full: httpx.Client) -> None:
    for name in ("operations", "moves", "jobs", "events", "audit"):
        whole = full.get(f"/v1/{name}").json()
        pages = walk(full.get, f"/v1/{name}?newest=true&limit=2")
        assert pages[0] == whole[-2:] and [row for page in pages[::-1] for row in page] == whole, name
    nodes = walk(full.get, "/v1/nodes?cluster=hello&limit=2")
    assert [len(page) for page in nodes] == [2, 1]
    after = full.get("/v1/events").json()[3]["id"]
    events = walk(full.get, f"/v1/events?after={after}&limit=2")
    assert [row["id"] for page in events for row in page][0] == after + 1


def test_a_cursor_is_of_its_own_list(full: httpx.Client) -> None:
    link = full.get("/v1/nodes?limit=1").headers["Link"]
    cursor = link.partition("cursor=")[2].partition(">")[0]
    made = [
        base64.urlsafe_b64encode(json.dumps(one).encode()).decode()
        for one in (["nodes", "a", "b"], ["nodes", "\0", 1], ["nodes", "\ud800", 1], ["nodes", "a", 1e9], 5)
    ]
    for path in (f"clusters?cursor={cursor}", "nodes?cursor=x", *(f"nodes?cursor={one}" for one in made)):
        answer = full.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["code"]) == (422, "USAGE"), path
        assert "Link" in answer.json()["next"]
    for limit in (0, 10_001):
        assert full.get(f"/v1/nodes?limit={limit}").status_code == 422


def test_a_list_without_a_limit_is_bounded_and_the_client_walks_on(service: Service, http: httpx.Client) -> None:
    names = many_operations(service, 1001)
    assert [len(page) for page in walk(http.get, "/v1/operations")] == [1000, 1]
    with Client(service.place) as client:
        assert [one.id for one in client.operations()] == names
        assert next(iter(client.each("/v1/operations", limit=1)))["id"] == names[0]
        assert client.some("/v1/operations", 3, newest=True)[1]
        assert [one["id"] for one in client.some("/v1/operations", 3, newest=True)[0]] == names[-3:]
        assert client.some("/v1/operations", 1001) == (list(client.each("/v1/operations")), False)
        assert [one["id"] for one in client.some("/v1/operations", None)[0]] == names


def test_pages_have_ones_own_alone(service: Service) -> None:
    world = Accounts(service)
    world.add("ann")
    uid = service.context.store.accounts.user("ann").uid  # type: ignore[union-attr]
    for number in range(9):
        one = Operation(
            id=f"op-{number}",
            kind="up",
            target="a",
            state=OperationState.DONE,
            created=1.0,
            uid=uid if number % 4 == 0 else 0,
        )
        service.context.store.put_operation(one)
    pages = walk(lambda path: world.ask("ann", "GET", path), "/v1/operations?limit=2")
    assert [[one["id"] for one in page] for page in pages] == [["op-0", "op-4"], ["op-8"]]
