"""Rights over the network: every route has its row, and another user's objects are not there."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from accounts_world import Accounts
from rest_service import CLUSTER, FABRIC, Service

from wherry.base.errors import Code, Refused
from wherry.model.accounts import Allowed, Role
from wherry.service.rest import authorization
from wherry.service.rest.app import make_app
from wherry.service.rest.authorization import RULES, Access

FOUND_BY_NAME = {
    "{name}": "theirs",
    "{host}": "a1",
    "{one}": "a",
    "{other}": "b",
    "{id}": "x",
    "{key}": "k",
    "{user}": "bob",
}


@pytest.fixture
def world(service: Service) -> Accounts:
    """Two users with a cluster and a job each, a viewer, an admin, and a project of the users' with a cluster."""
    world = Accounts(service)
    world.add("ann")
    world.add("bob")
    world.add("vic", Role.VIEWER)
    world.add("eve", Role.ADMIN)
    world.add("cat")
    world.project("team", "ann", "bob", "vic")
    world.allow()
    spec = {**CLUSTER, "nodes": 1, "cpus": 0.1, "memory": "64MiB"}
    for who, name, project in (("ann", "hers", None), ("bob", "theirs", None), ("ann", "shared", "team")):
        world.done(who, "POST", "/v1/clusters", {"spec": {**spec, "name": name}, "project": project})
        world.done(who, "POST", "/v1/jobs", {"cluster": name, "argv": ["sleep"], "ranks": 1})
    return world


def names(world: Accounts, who: str, path: str, key: str = "name") -> list[str]:
    answer = world.ask(who, "GET", path)
    assert answer.status_code == 200, answer.text
    return [one[key] for one in answer.json()]


def test_every_route_has_its_row(service: Service) -> None:
    document: Any = make_app(service.context)._app
    routes = {(method.upper(), path) for path, of in document.openapi()["paths"].items() for method in of}
    assert routes == set(RULES)
    assert {route for route in RULES if RULES[route].access is Access.OPEN} == {
        ("GET", "/healthz"), ("POST", "/v1/session"),
    }  # fmt: skip


def test_a_route_without_a_row_is_refused(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(authorization.RULES, ("GET", "/v1/version"))
    assert world.ask("eve", "GET", "/v1/version").status_code == 403
    assert world.ask("root", "GET", "/v1/version").status_code == 200


def test_nobody_asks_without_a_token(world: Accounts) -> None:
    """Each route is asked from an address of its own: an address that asks often is made to wait."""
    asked = [route for route, rule in RULES.items() if rule.access is not Access.OPEN]
    for number, route in enumerate(asked):
        world.address = f"192.0.2.{number}"
        assert world.ask("", route[0], path_of(route)).status_code == 401, route


def path_of(route: tuple[str, str]) -> str:
    path = route[1]
    for part, name in FOUND_BY_NAME.items():
        path = path.replace(part, name)
    return path


@pytest.mark.parametrize(
    ("who", "method", "path"),
    [("cat", "GET", "/v1/clusters"), ("cat", "GET", "/v1/none"), ("", "GET", "/v1/me"), ("", "POST", "/ec2")],
)
def test_answers_over_the_network_are_kept_by_nobody(world: Accounts, who: str, method: str, path: str) -> None:
    headers = world.ask(who, method, path).headers
    assert headers.get_list("cache-control") == ["no-store"]
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert "cache-control" not in world.ask("root", "GET", "/v1/clusters").headers


def test_roles(world: Accounts) -> None:
    """The table refuses routes for which a role is too small; no row admits a smaller role."""
    before = world.service.context.store.clusters(), world.root.users(), world.root.projects()
    for route, rule in RULES.items():
        refused = {
            Access.USER: ("vic",), Access.ADMIN: ("vic", "cat"), Access.SOCKET: ("vic", "cat", "eve"),
        }.get(rule.access, ())  # fmt: skip
        for who in refused:
            answer = world.ask(who, route[0], path_of(route), {} if route[0] in ("POST", "PUT", "PATCH") else None)
            assert answer.status_code == 403, (who, route, answer.text)
            assert answer.json()["code"] == "PERMISSION" and answer.json()["next"]
    assert (world.service.context.store.clusters(), world.root.users(), world.root.projects()) == before


def test_one_sees_what_is_ones_own_and_ones_projects(world: Accounts) -> None:
    assert names(world, "ann", "/v1/clusters") == ["hers", "shared"]
    assert names(world, "bob", "/v1/clusters") == ["shared", "theirs"]
    assert names(world, "vic", "/v1/clusters") == ["shared"]
    assert names(world, "cat", "/v1/clusters") == []
    assert names(world, "eve", "/v1/clusters") == ["hers", "shared", "theirs"]
    assert names(world, "bob", "/v1/nodes") == ["shared-0", "theirs-0"]
    assert {one["cluster"] for one in world.ask("bob", "GET", "/v1/jobs").json()} == {"shared", "theirs"}
    assert {one["target"] for one in world.ask("bob", "GET", "/v1/operations").json()} == {"shared", "theirs"}
    assert world.ask("cat", "GET", "/v1/operations").json() == []


def test_nothing_tells_anothers_names(world: Accounts) -> None:
    """All that a third user may read, and all errors of its refused requests."""
    (job,) = (one for one in world.service.context.store.jobs() if one.cluster == "theirs")
    operation = next(one for one in world.service.context.store.operations() if one.target == "theirs")
    host = next(one.host for one in world.service.context.store.nodes() if one.name == "theirs-0")
    other = next(name for name in ("a1", "a2", "b1") if name != host)
    asked = [(method, path_of((method, path)).replace("/x", f"/{job.id}")) for method, path in RULES]
    asked += [("GET", f"/v1/operations/{operation.id}"), ("POST", f"/v1/operations/{operation.id}/cancel")]
    asked += [("GET", "/v1/nodes?cluster=theirs"), ("GET", "/v1/jobs?cluster=theirs"), ("GET", "/v1/nodes/theirs-0")]
    asked += [("GET", "/v1/nodes/thiers-0"), ("DELETE", "/v1/clusters/thiers"), ("GET", "/v1/nodes/theirs-0/check")]
    for method, path in asked:
        if path.startswith("/v1/session") or path.endswith("/stream"):  # that one: test_event_stream
            continue
        answer = world.ask("cat", method, path, {} if method in ("POST", "PUT", "PATCH") else None)
        secrets = [name for name in ("hers", "theirs", "shared", "ann", "bob", job.id) if name not in path]
        told = set(re.findall(r"[\w-]+", answer.text))
        assert told.isdisjoint({*secrets, *(f"{name}-0" for name in secrets)}), (method, path, answer.text)
        assert answer.status_code != 500, (method, path, answer.text)
    for method, path, body in (
        ("POST", "/v1/moves", {"node": "theirs-0", "host": other}),
        ("POST", "/v1/moves", {"node": "theirs-0", "host": other, "dry_run": True}),
        ("POST", "/v1/swaps", {"node": "theirs-0", "other": "hers-0"}),
        ("POST", "/v1/restarts", {"nodes": ["theirs-0"], "end_jobs": True}),
        ("POST", "/v1/jobs", {"cluster": "theirs", "argv": ["sleep"], "ranks": 1}),
        ("POST", "/v1/nodes/theirs-0/exec", {"argv": ["sleep"]}),
        ("POST", "/v1/balance", {"cluster": "theirs"}),
        ("DELETE", "/v1/clusters/theirs", None),
        ("DELETE", f"/v1/jobs/{job.id}", None),
        ("GET", f"/v1/jobs/{job.id}", None),
        ("GET", f"/v1/jobs/{job.id}/output", None),
        ("DELETE", f"/v1/jobs/{job.id}/output", None),
        ("PUT", f"/v1/jobs/{job.id}/input", {"offset": 0}),
        ("GET", f"/v1/jobs/{job.id}/check", None),
        ("GET", f"/v1/jobs/{job.id}/profile?seconds=1", None),
        ("GET", f"/v1/jobs/{job.id}/mpi-profile?seconds=1", None),
        ("GET", "/v1/nodes/theirs-0", None),
        ("GET", "/v1/nodes/theirs-0/check", None),
        ("GET", "/v1/nodes/theirs-0/console", None),
        ("GET", f"/v1/operations/{operation.id}", None),
        ("POST", f"/v1/operations/{operation.id}/cancel", None),
    ):
        answer = world.ask("cat", method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), (method, path, answer.text)
        assert "known: " not in answer.json()["why"]


def test_balancing_of_all_needs_an_admin(world: Accounts) -> None:
    assert world.ask("ann", "POST", "/v1/balance", {}).status_code == 403


def test_events_are_ones_own_also_when_what_they_tell_of_is_gone(world: Accounts) -> None:
    world.done("bob", "DELETE", "/v1/clusters/theirs?end_jobs=true")
    targets = {event["target"] for event in world.ask("bob", "GET", "/v1/events").json()}
    assert "theirs" in targets and "shared" in targets
    kinds = {event["kind"] for event in world.ask("bob", "GET", "/v1/events").json() if event["target"] == "theirs"}
    assert {"cluster.up", "cluster.down", "operation"} <= kinds
    mine = world.ask("cat", "GET", "/v1/events").json()
    assert mine == []
    assert {event["target"] for event in world.ask("ann", "GET", "/v1/events").json()}.isdisjoint({"theirs"})


def test_a_name_that_another_had_before_tells_nothing_of_that(world: Accounts) -> None:
    host = next(one.host for one in world.service.context.store.nodes() if one.name == "theirs-0")
    other = next(name for name in ("a1", "a2", "b1") if name != host)
    move = world.done("bob", "POST", "/v1/moves", {"node": "theirs-0", "host": other})["move"]["id"]
    assert names(world, "bob", "/v1/moves", "id") == [move]
    assert world.ask("ann", "GET", f"/v1/moves/{move}").status_code == 404
    world.done("bob", "DELETE", "/v1/clusters/theirs?end_jobs=true")
    world.done("ann", "POST", "/v1/clusters", {"spec": {**CLUSTER, "name": "theirs", "nodes": 1}})
    assert names(world, "ann", "/v1/moves", "id") == []
    assert world.ask("ann", "GET", f"/v1/moves/{move}").status_code == 404


def test_members_use_what_is_their_projects(world: Accounts) -> None:
    """A project's cluster and its jobs are the project's, whichever member made them; a viewer reads them."""
    (job,) = (one for one in world.service.context.store.jobs() if one.cluster == "shared")
    assert world.ask("bob", "GET", f"/v1/jobs/{job.id}/output").json()["chunks"]
    assert world.ask("vic", "GET", f"/v1/jobs/{job.id}/output").json()["chunks"]
    assert world.ask("vic", "DELETE", f"/v1/jobs/{job.id}").status_code == 403
    found = world.done("bob", "POST", "/v1/jobs", {"cluster": "shared", "argv": ["sleep"], "ranks": 1})["job"]
    assert found["uid"] == job.uid == world.root.project("team").uid
    world.done("ann", "DELETE", f"/v1/jobs/{found['id']}")
    world.root.drop_member("team", "bob")
    assert world.ask("bob", "DELETE", "/v1/clusters/shared").status_code == 404
    world.done("ann", "DELETE", "/v1/clusters/shared?end_jobs=true")


def test_a_project_of_others_is_not_there(world: Accounts) -> None:
    answer = world.ask("cat", "POST", "/v1/clusters", {"spec": {**CLUSTER, "name": "new"}, "project": "team"})
    assert answer.status_code == 404 and "team" not in answer.json()["why"]


def test_nothing_starts_until_an_admin_allows_it(world: Accounts) -> None:
    cluster = ("POST", "/v1/clusters", {"spec": {**CLUSTER, "name": "new", "nodes": 1}})
    job = ("POST", "/v1/jobs", {"cluster": "hers", "argv": ["sleep"], "ranks": 1})
    world.allow(Allowed.OFF)
    for method, path, body in (cluster, job, ("POST", "/v1/nodes/hers-0/exec", {"argv": ["sleep"]})):
        answer = world.ask("ann", method, path, body)
        assert answer.status_code == 403 and "off" in answer.json()["why"]
    assert world.ask("ann", "PUT", "/v1/allowed", {"allowed": "jobs"}).status_code == 403
    world.allow(Allowed.NODES)
    world.done("ann", *cluster)
    assert world.ask("ann", *job).status_code == 403
    assert world.ask("ann", "GET", "/v1/allowed").json() == {"allowed": "nodes"}


def test_it_is_off_at_first(service: Service) -> None:
    assert Accounts(service).root.allowed() is Allowed.OFF


@pytest.mark.parametrize("who", ["ann", "eve"])
def test_nobody_names_users_directories_or_files_of_the_machine(world: Accounts, who: str) -> None:
    """Whatever the role: the daemon would open them as root, or bind them."""
    root = {"uid": 0, "gid": 0, "groups": [], "home": "/root", "cwd": "/etc"}
    own = root | {"uid": world.root._user(who).uid}
    spec = {**CLUSTER, "name": "new"}
    for method, path, body in (
        ("POST", "/v1/clusters", {"spec": spec, "owner": root}),
        ("POST", "/v1/clusters", {"spec": spec, "owner": own}),
        ("POST", "/v1/clusters", {"spec": spec, "owner": own, "dry_run": True}),
        ("POST", "/v1/clusters", {"spec": {**spec, "needs": ["/etc/shadow"]}}),
        ("POST", "/v1/clusters", {"spec": {**spec, "kind": "vm", "memory": "256MiB", "image": "/root/disk.qcow2"}}),
        ("POST", "/v1/jobs", {"cluster": "shared", "argv": ["sleep"], "ranks": 1, "owner": root}),
        ("POST", "/v1/nodes/shared-0/exec", {"argv": ["sleep"], "owner": own}),
    ):
        answer = world.ask(who, method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION"), (path, answer.text)
    if who == "eve":
        ssh = {**FABRIC, "driver": "ssh", "hosts": [{"name": "a1", "site": "a", "uri": "ssh://root@192.0.2.1"}]}
        answer = world.ask(who, "PUT", "/v1/fabric", {"spec": ssh})
        assert answer.status_code in (403, 422), answer.text
    assert [cluster.name for cluster in world.service.context.store.clusters()] == ["hers", "shared", "theirs"]


def test_nodes_of_accounts_bind_nothing(world: Accounts) -> None:
    for cluster in world.service.context.store.clusters():
        assert cluster.binds == () and cluster.owner_groups == () and cluster.owner_uid >= 1_900_000_000


def test_nothing_is_bound_into_nodes_of_accounts_later(world: Accounts) -> None:
    """As it is into nodes of users of the machine, when a program is below /tmp."""
    clusters = world.service.context.require_managers().clusters
    with pytest.raises(Refused) as caught:
        clusters.binds.check("hers", ["/tmp/somebodys"])
    assert caught.value.code is Code.PERMISSION


def test_an_admin_runs_nothing_as_a_user_of_the_machine(world: Accounts) -> None:
    world.done("root", "POST", "/v1/clusters", {"spec": {**CLUSTER, "name": "roots", "nodes": 1, "cpus": 0.1}})
    assert "roots" in names(world, "eve", "/v1/clusters")
    answer = world.ask("eve", "POST", "/v1/jobs", {"cluster": "roots", "argv": ["sleep"], "ranks": 1})
    assert answer.status_code == 403, answer.text
    found = world.ask("eve", "POST", "/v1/nodes/roots-0/exec", {"argv": ["sleep"]})
    assert found.status_code == 403, found.text


@pytest.mark.parametrize(("key", "value"), [("pin", "cores"), ("tmp", "disk")])
def test_cpus_and_disks_of_ones_own_are_an_admins_to_give(world: Accounts, key: str, value: str) -> None:
    spec = {**CLUSTER, "name": "new", "nodes": 1, key: value}
    answer = world.ask("ann", "POST", "/v1/clusters", {"spec": spec})
    assert answer.status_code == 403 and key in answer.json()["next"]


def test_what_another_does_is_not_told_to_who_must_wait(world: Accounts) -> None:
    stop = threading.Event()
    operations, bob = world.service.context.operations, world.root._user("bob").uid
    operations.start("balance", "theirs", lambda _: stop.wait(30) and None, uid=bob, owner=bob, exclusive=["balance"])
    try:
        answer = world.ask("ann", "POST", "/v1/balance", {"cluster": "hers", "apply": True})
        assert answer.json()["code"] == "WRONG_STATE" and "theirs" not in answer.text, answer.text
    finally:
        stop.set()


def test_capacity_is_told_without_names(world: Accounts) -> None:
    answer = world.ask("cat", "GET", "/v1/capacity")
    hosts = answer.json()
    assert [host["host"] for host in hosts] == ["a1", "a2", "b1"]
    assert sum(host["cores"] - host["free_cores"] for host in hosts) == pytest.approx(0.3)
    assert "hers" not in answer.text


def test_a_cluster_of_another_cannot_be_taken_over(world: Accounts) -> None:
    answer = world.ask("cat", "POST", "/v1/clusters", {"spec": {**CLUSTER, "name": "theirs"}})
    assert answer.json()["code"] == "NAME_TAKEN" and "bob" not in answer.text


def test_no_body_is_a_mistake_of_the_daemons(world: Accounts) -> None:
    """Whatever JSON an admin sends to the routes of accounts, it is refused or taken, never a failure (500)."""
    values: tuple[Any, ...] = (
        None,
        0,
        -1,
        1e308,
        True,
        "",
        "x" * 70,
        "\x00",
        "../..",
        "<b>",
        "\ud7ff",
        [],
        {},
        [[]],
        {"a": {}},
    )
    keys = ("name", "user", "role", "quota", "password", "old", "days", "owner", "allowed", "setting")
    bodies = [*values, *({key: value} for key in keys for value in values)]
    bodies += [{"name": "x", key: value} for key in keys for value in values]
    routes = [route for route in RULES if route[0] in ("POST", "PUT", "PATCH")]
    parts = ("users", "tokens", "keys", "projects", "allowed")
    of_accounts = [route for route in routes if route[1].split("/")[2] in parts]
    for number, body in enumerate(bodies):
        method, path = of_accounts[number % len(of_accounts)]
        answer = world.ask("eve", method, path_of((method, path)), body)
        assert answer.status_code != 500, (method, path, body, answer.text)
