"""The REST interface over its real socket: permissions, versions, sizes, problems, operations."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, client_of, ended

import waiting
from wherry import __version__
from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.model.owner import Owner
from wherry.model.records import Move, Phase
from wherry.node.fake import FakeDriver
from wherry.service.credentials import PeerCredentials, peer_of
from wherry.service.host_commands import HostCommands


def test_the_socket_is_its_owners_alone(service: Service) -> None:
    assert service.place.socket.stat().st_mode & 0o777 == 0o600


def test_an_unknown_path_is_a_problem_with_three_parts(http: httpx.Client) -> None:
    answer = http.get("/v1/nothing")
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "NOT_FOUND" and answer.json()["next"]


def test_versions_must_match(http: httpx.Client) -> None:
    assert http.get("/healthz").headers["Wherry-Version"] == __version__
    answer = http.get("/v1/clusters", headers={"Wherry-Version": "0.0.0"})
    assert answer.status_code == 503 and answer.json()["code"] == "VERSION_MISMATCH"
    assert "wherry daemon stop" in answer.json()["next"]
    assert http.get("/v1/version", headers={"Wherry-Version": "0.0.0"}).json() == {"version": __version__}


def test_a_request_that_is_too_large_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/clusters", content=b" " * (5 * 2**20))
    assert answer.status_code == 422 and "too large" in answer.json()["what"]
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"spec": 1}', b'{"spec": {}, "more": 1}', b"\xff\xfe"])
def test_a_body_that_is_not_valid_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/clusters", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and answer.json()["code"] == "USAGE"


def test_a_cluster_from_plan_to_removal(http: httpx.Client, service: Service) -> None:
    plan = http.post("/v1/clusters", json={"spec": CLUSTER, "dry_run": True})
    assert plan.status_code == 200 and "3 to create" in plan.json()["text"]
    assert http.get("/v1/clusters").json() == [] and http.get("/v1/operations").json() == []

    up = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert up["state"] == "done" and len(up["result"]["nodes"]) == 3 and up["lines"]
    assert [c["name"] for c in http.get("/v1/clusters").json()] == ["hello"]
    again = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert {step["kind"] for step in again["result"]["plan"]["steps"]} == {"keep"}
    assert http.get("/v1/nodes/hello-1").json()["usage"]["processes"] == 1

    refused = http.delete("/v1/fabric")
    assert (refused.status_code, refused.json()["code"]) == (409, "WRONG_STATE")
    down = ended(http, http.delete("/v1/clusters/hello"))
    assert down["state"] == "done" and http.get("/v1/nodes").json() == []
    assert ended(http, http.delete("/v1/fabric"))["state"] == "done"
    assert http.get("/v1/fabric").status_code == 404


def test_what_is_wrong_makes_no_operation(http: httpx.Client) -> None:
    for answer, code in (
        (http.post("/v1/clusters", json={"spec": CLUSTER | {"memroy": "1GiB"}}), "INVALID_FILE"),
        (http.post("/v1/clusters", json={"spec": CLUSTER | {"nodes": 200}}), "NO_CAPACITY"),
        (http.delete("/v1/clusters/none"), "NOT_FOUND"),
        (http.post("/v1/moves", json={"node": "none", "host": "a1"}), "NOT_FOUND"),
        (http.post("/v1/hosts/none/drain"), "NOT_FOUND"),
        (http.post("/v1/jobs", json={"cluster": "none", "argv": ["x"], "ranks": 1}), "NOT_FOUND"),
        (http.post("/v1/jobs", json={"cluster": "none", "argv": ["x"], "ranks": 0}), "USAGE"),
        (http.get("/v1/jobs", params={"cluster": "none"}), "NOT_FOUND"),
        (http.get("/v1/nodes", params={"cluster": "none"}), "NOT_FOUND"),
        (http.get("/v1/jobs/none"), "NOT_FOUND"),
        (http.get("/v1/operations/none"), "NOT_FOUND"),
    ):
        assert answer.status_code >= 400 and answer.json()["code"] == code, answer.text
    assert http.get("/v1/operations").json() == []


def test_a_move_and_its_prediction(http: httpx.Client) -> None:
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
    source = nodes[0]["host"]
    target = next(host for host in ("a1", "a2", "b1") if host != source)
    cost = http.post("/v1/moves", json={"node": "hello-0", "host": target, "dry_run": True})
    assert cost.status_code == 200 and cost.json()["predicted"]["bytes"] > 0
    moved = ended(http, http.post("/v1/moves", json={"node": "hello-0", "host": target}))
    assert moved["state"] == "done", moved["error"]
    move = moved["result"]["move"]
    assert (move["source"], move["destination"], move["phase"]) == (source, target, "done")
    assert http.get(f"/v1/moves/{move['id']}").json() == move
    assert http.post("/v1/moves", json={"node": "hello-0", "host": target}).status_code in (403, 409)


def test_a_cluster_that_cannot_be_removed_keeps_its_jobs(http: httpx.Client, service: Service) -> None:
    """A move that could neither be finished nor rolled back is in the way: removal is refused before any job ends."""
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    order = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "env": {}}
    job = ended(http, http.post("/v1/jobs", json=order))["result"]["job"]["id"]
    node = service.context.store.nodes()[0]
    move = Move(
        id="mv-1", node=node.name, cluster="hello", source=node.host, destination="b1", phase=Phase.FREEZE,
        created=now(), error={"what": "not back yet", "why": "host b1 does not answer"},
    )  # fmt: skip
    service.context.store.put_move(move)
    refused = http.delete("/v1/clusters/hello")
    assert refused.status_code == 409 and "does not answer" in refused.json()["why"]
    assert http.get("/v1/jobs").json()[0]["id"] == job and http.get(f"/v1/jobs/{job}").json()["state"] == "running"
    assert http.get("/v1/clusters").json()[0]["state"] == "running"
    service.context.store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": now()}))
    assert http.delete("/v1/clusters/hello").json()["code"] == "WRONG_STATE", "jobs are ended only on request"
    assert ended(http, http.delete("/v1/clusters/hello?end_jobs=true"))["state"] == "done"
    assert http.get("/v1/jobs").json() == []


def test_one_move_asks_only_its_own_hosts_and_once(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    fabric = service.context.require_managers().fabric
    asked: list[str] = []
    reachable = fabric.reachable
    fabric.reachable = lambda host: asked.append(host) or reachable(host)  # type: ignore[method-assign,func-returns-value]
    node = service.context.store.nodes()[0]
    target = next(host for host in ("a1", "a2") if host != node.host)
    assert ended(http, http.post("/v1/moves", json={"node": node.name, "host": target}))["state"] == "done"
    assert sorted(asked) == sorted([node.host, target])


def test_drain_empties_a_host_and_restore_puts_back(http: httpx.Client) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    before = {node["name"]: node["host"] for node in http.get("/v1/nodes").json()}
    drained = ended(http, http.post("/v1/hosts/a1/drain"))
    assert drained["state"] == "done", drained["error"]
    assert all(node["host"] != "a1" for node in http.get("/v1/nodes").json())
    assert [host["name"] for host in http.get("/v1/hosts").json() if host["drained"]] == ["a1"]
    assert ended(http, http.post("/v1/hosts/a1/drain"))["result"]["moves"] == []
    assert ended(http, http.post("/v1/hosts/a1/restore"))["state"] == "done"
    assert {node["name"]: node["host"] for node in http.get("/v1/nodes").json()} == before
    assert not any(host["drained"] for host in http.get("/v1/hosts").json())


def test_a_drain_moves_no_node_to_a_host_on_which_it_cannot_run(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))["state"] == "done"
    managers = service.context.require_managers()
    (node,) = http.get("/v1/nodes").json()
    first, second = (host for host in ("a1", "a2", "b1") if host != node["host"])
    lacking = {first, second}
    monkeypatch.setattr(
        managers.fabric, "missing_files", lambda host, files: ["/opt/solver"] if host in lacking else []
    )
    refused = http.post(f"/v1/hosts/{node['host']}/drain")
    assert refused.json()["code"] == "NO_CAPACITY"
    for host in (first, second):
        assert f"not {host}: it lacks /opt/solver" in refused.json()["why"]
    lacking.remove(second)
    drained = ended(http, http.post(f"/v1/hosts/{node['host']}/drain"))
    assert [move["destination"] for move in drained["result"]["moves"]] == [second]


def test_a_restore_moves_what_a_drain_took_until_its_claim(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain ends after the restore was requested and before it claims the host."""
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
    host, start = nodes[0]["host"], service.context.operations.start

    def late(*words: Any, **claims: Any) -> Any:
        monkeypatch.undo()
        assert ended(http, http.post(f"/v1/hosts/{host}/drain"))["state"] == "done"
        return start(*words, **claims)

    monkeypatch.setattr(service.context.operations, "start", late)
    with client_of(service) as other:
        assert ended(other, other.post(f"/v1/hosts/{host}/restore"))["state"] == "done"
    assert service.context.store.host_flags(host) == []
    assert {node.name: node.host for node in service.context.store.nodes()}["hello-0"] == host


def test_a_drain_that_fails_leaves_the_mark_as_it_found_it_at_its_claim(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, start = service.context.store, service.context.operations.start
    store.set_host_flag("a1", "drained", True)

    def late(*words: Any, **claims: Any) -> Any:
        store.set_host_flag("a1", "drained", False)  # a restore has ended
        return start(*words, **claims)

    def failing(*_: object) -> None:
        raise Refused(Code.NO_CAPACITY, "no room")

    monkeypatch.setattr(service.context.operations, "start", late)
    drains = HostCommands(service.context)
    monkeypatch.setattr(drains, "_await_arrivals", failing)
    service.context.operations.wait(drains.drain("a1").id, 60)
    assert not store.host_flag("a1", "drained")


def test_a_restore_moves_no_later_node_of_the_same_name(http: httpx.Client, service: Service) -> None:
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
    host = nodes[0]["host"]
    ended(http, http.post(f"/v1/hosts/{host}/drain"))
    ended(http, http.delete("/v1/clusters/hello"))
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert ended(http, http.post(f"/v1/hosts/{host}/restore"))["result"]["moves"] == []


def test_a_drain_takes_what_was_on_its_way_to_the_host(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    (coming,) = (node["name"] for node in http.get("/v1/nodes").json() if node["host"] == "a2")
    driver, standing, go_on = (
        service.context.require_managers().drivers["container"],
        threading.Event(),
        threading.Event(),
    )
    assert isinstance(driver, FakeDriver)

    def on_call(name: str) -> None:
        if name == "freeze" and not standing.is_set():
            standing.set()
            go_on.wait(60)

    driver.on_call = on_call
    move = http.post("/v1/moves", json={"node": coming, "host": "a1"})
    assert standing.wait(60)
    drain = http.post("/v1/hosts/a1/drain")
    path = drain.headers["Location"]
    assert drain.status_code == 202, drain.text

    def said() -> str:
        found = str(http.get(path).json()["operation"]["progress"])
        return found if "being moved to a1" in found else ""

    assert coming in waiting.until(said, "the drain waits")
    assert http.post("/v1/moves", json={"node": coming, "host": "b1"}).status_code in (403, 409)
    go_on.set()
    assert ended(http, move)["state"] == "done"
    drained = ended(http, drain)
    assert drained["state"] == "done" and coming in [one["node"] for one in drained["result"]["moves"]], drained
    assert all(node["host"] != "a1" for node in http.get("/v1/nodes").json())
    assert ended(http, http.post("/v1/hosts/a1/restore"))["state"] == "done"


def test_a_drain_that_finds_no_room_changes_nothing(http: httpx.Client) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER | {"cpus": 2}}))
    refused = http.post("/v1/hosts/a1/drain")
    assert refused.status_code == 403 and refused.json()["code"] == "NO_CAPACITY"
    assert not any(host["drained"] for host in http.get("/v1/hosts").json())


def test_a_job_and_its_output(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    body = {"cluster": "hello", "argv": ["prog", "3"], "ranks": 2, "env": {"A": "b"}}
    job = ended(http, http.post("/v1/jobs", json=body))["result"]["job"]
    assert service.jobs.environments[job["id"]] == {"A": "b"} and job["uid"] == os.getuid()
    first = http.get(f"/v1/jobs/{job['id']}/output", params={"wait": 5}).json()
    assert [chunk["stream"] for chunk in first["chunks"]] == ["stdout", "stderr"] and not first["end"]
    last = http.get(f"/v1/jobs/{job['id']}/output", params={"offset": first["next"], "wait": 5}).json()
    assert last["end"] and last["job"]["exit_code"] == 3
    assert ended(http, http.delete(f"/v1/jobs/{job['id']}"))["result"]["job"]["exit_code"] == 3, "it stays as it is"
    assert http.get(f"/v1/jobs/{job['id']}", params={"wait": 5}).json()["exit_code"] == 3

    long = ended(http, http.post("/v1/jobs", json=body | {"argv": ["sleep"]}))["result"]["job"]
    sent = ended(http, http.post(f"/v1/jobs/{long['id']}/signal", json={"signal": "USR1"}))["result"]
    assert sent["sent"] == 2 and service.jobs.signals == [(long["id"], "SIGUSR1")]
    assert http.post(f"/v1/jobs/{long['id']}/signal", json={"signal": "RTMIN"}).status_code == 422
    assert ended(http, http.delete(f"/v1/jobs/{long['id']}"))["result"]["job"]["state"] == "cancelled"


def test_a_node_that_ends_by_itself_is_lost_and_repaired(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    job = {"cluster": "hello", "argv": ["sleep"], "ranks": 2}
    ended(http, http.post("/v1/jobs", json=job))
    driver: Any = service.context.require_managers().drivers["container"]
    driver.placements.clear()
    service.monitor.check()
    service.monitor.check()
    assert {node["state"] for node in http.get("/v1/nodes").json()} == {"lost"}
    assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
    assert {node["state"] for node in http.get("/v1/nodes").json()} == {"running"}
    kinds = [event["kind"] for event in http.get("/v1/events").json()]
    assert kinds.count("node.lost") == kinds.count("job.node-lost") == 3
    told: Any = service.context.require_managers().jobs
    assert told.lost == [("job-1", f"hello-{index}") for index in range(3)]


def test_a_check_that_fails_keeps_no_other_from_being_made(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "hello"):
        ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "name": name, "nodes": 1}}))
    order = {"argv": ["sleep"], "ranks": 1, "env": {}}
    for name in ("broken", "hello"):
        ended(http, http.post("/v1/jobs", json={**order, "cluster": name}))
    managers = service.context.require_managers()
    gone, watch, checked = managers.clusters.gone, managers.jobs.watch, list[str]()

    def failing_for(act: Any, broken: str) -> Any:
        def checks(name: str) -> Any:
            checked.append(name)
            if name == broken:
                raise OSError(5, "the host's disk")
            return act(name)

        return checks

    monkeypatch.setattr(managers.clusters, "gone", failing_for(gone, "broken"))
    monkeypatch.setattr(managers.jobs, "watch", failing_for(watch, "job-1"))
    monkeypatch.setattr(managers.fabric, "repair", lambda: checked.append("fabric") or [])
    service.monitor.check()
    service.monitor.check()
    assert checked.count("broken") == checked.count("hello") == 2
    assert checked.count("job-1") == checked.count("job-2") == 2 and checked.count("fabric") == 2


def test_without_a_thread_for_clusters_the_other_checks_are_made(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))

    def refusing(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    checked = list[str]()
    monkeypatch.setattr(service.monitor._pool, "submit", refusing)
    monkeypatch.setattr(service.context.require_managers().fabric, "repair", lambda: checked.append("fabric") or [])
    service.monitor.check()
    assert checked == ["fabric"]


def test_clusters_of_silent_hosts_keep_no_other_from_being_checked(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))
    store, managers = service.context.store, service.context.require_managers()
    (cluster,) = store.clusters()
    for index in range(40):  # more than the threads that a pool has by default
        store.put_cluster(cluster.model_copy(update={"name": f"a{index}"}))
    answers, checked = threading.Event(), list[str]()

    def gone(name: str) -> list[Any]:
        if name != "hello":
            answers.wait(60)
        checked.append(name)
        return []

    monkeypatch.setattr(managers.clusters, "gone", gone)
    service.monitor.check()
    answers.set()
    assert checked and checked[0] == "hello"


def test_a_lost_node_ends_every_job_that_runs_on_it(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the end of one of them fails; a job that ended while the cluster was checked is left alone."""
    ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))
    for _ in range(3):
        ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1}))
    managers, told = service.context.require_managers(), list[str]()
    gone = managers.clusters.gone

    def slow(name: str) -> Any:
        service.jobs.cancel("job-2")
        return gone(name)

    def node_lost(id: str, _node: Any) -> bool:
        told.append(id)
        with ThreadPoolExecutor(1) as other:  # no operation waits until all processes have been looked at
            assert other.submit(service.context.operations.conflicting_operation).result(60) is None
        if told == ["job-1"]:
            raise OSError(5, "the job's files")
        return True

    monkeypatch.setattr(managers.clusters, "gone", slow)
    monkeypatch.setattr(managers.jobs, "node_lost", node_lost)
    driver: Any = managers.drivers["container"]
    driver.placements.clear()
    service.monitor.check()
    assert told == ["job-1", "job-3"]
    service.monitor.check()
    service.monitor.check()
    assert told == ["job-1", "job-3", "job-1"]


def test_a_repair_before_the_first_check_ends_the_jobs_on_the_node(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))
    ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1}))
    driver: Any = service.context.require_managers().drivers["container"]
    driver.placements.clear()
    assert ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))["state"] == "done"
    assert service.jobs.lost == [("job-1", "hello-0")]


@pytest.mark.parametrize("repaired", [False, True], ids=["next check", "repair"])
def test_jobs_on_nodes_that_an_earlier_daemon_marked_as_lost_are_ended(
    http: httpx.Client, service: Service, repaired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, or an event could not be written, after the row of the node."""
    ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))
    ended(http, http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1}))
    driver: Any = service.context.require_managers().drivers["container"]
    driver.placements.clear()
    with monkeypatch.context() as patch:
        patch.setattr(service.context.store, "add_event", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        service.monitor._check_clusters(service.context.require_managers())
    assert [node["state"] for node in http.get("/v1/nodes").json()] == ["lost"] and service.jobs.lost == []
    if repaired:
        assert ended(http, http.post("/v1/clusters", json={"spec": {**CLUSTER, "nodes": 1}}))["state"] == "done"
    else:
        service.monitor.check()
    assert service.jobs.lost == [("job-1", "hello-0")]


# Callers.


def test_the_peer_is_who_the_kernel_says() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == PeerCredentials(os.getuid(), os.getgid(), frozenset(os.getgroups()))


def test_only_root_may_name_another_user() -> None:
    named = Owner(uid=4242, gid=4242, home="/home/x", cwd="/tmp")
    assert PeerCredentials(0, 0, frozenset()).owner(named) == named
    assert PeerCredentials(4242, 4242, frozenset()).owner(named).cwd == "/tmp"
    with pytest.raises(Refused) as caught:
        PeerCredentials(4243, 4243, frozenset()).owner(named)
    assert caught.value.code == Code.PERMISSION


def test_a_group_may_be_let_in() -> None:
    assert not PeerCredentials(4242, 4242, frozenset()).is_authorised(None)
    assert not PeerCredentials(4242, 4242, frozenset({7})).is_authorised(8)
    assert PeerCredentials(4242, 4242, frozenset({7})).is_authorised(7) and PeerCredentials(
        4242, 7, frozenset()
    ).is_authorised(7)


# Operations.


def test_a_job_is_not_cancelled_while_its_cluster_is_removed(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files vanish meanwhile. `up` does not prevent it."""
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    body = {"cluster": "hello", "argv": ["sleep"], "ranks": 1}
    job = ended(http, http.post("/v1/jobs", json=body))["result"]["job"]["id"]
    managers, go, busy = service.context.require_managers(), threading.Event(), threading.Event()

    def blocking(act: Any) -> Any:
        def slow(*arguments: Any, **more: Any) -> Any:
            busy.set()
            assert go.wait(60)
            return act(*arguments, **more)

        return slow

    with monkeypatch.context() as patch:
        patch.setattr(managers.jobs, "cancel", blocking(managers.jobs.cancel))
        cancel = http.delete(f"/v1/jobs/{job}")
        assert busy.wait(60)
        refused = http.delete("/v1/clusters/hello?end_jobs=true").json()
        assert refused["code"] == "WRONG_STATE" and cancel.json()["id"] in refused["why"]
        assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
        go.set()
        assert ended(http, cancel)["state"] == "done"

    job = ended(http, http.post("/v1/jobs", json=body))["result"]["job"]["id"]
    go.clear(), busy.clear()
    monkeypatch.setattr(managers.jobs, "remove", blocking(managers.jobs.remove))
    monkeypatch.setattr(managers.jobs, "cancel", lambda _id, _reason: None)
    down = http.delete("/v1/clusters/hello?end_jobs=true")
    assert busy.wait(60)
    refused = http.delete(f"/v1/jobs/{job}").json()
    assert refused["code"] == "WRONG_STATE" and down.json()["id"] in refused["why"]
    go.set()
    assert ended(http, down)["state"] == "done"
