"""The texts of `up` and `down`: refusals, steps, events, progress and rows, word for word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakeworld import OTHER, OWNER, World, fabric_spec

from wherry.base.errors import Code, Failed, Refused
from wherry.cluster.clusters import Clusters
from wherry.cluster.lookup import DRAINED_NODE, find_cluster, find_node
from wherry.cluster.placements import secret_name
from wherry.cluster.plan import ClusterPlan, StepKind, need_of
from wherry.model.records import ClusterState, Event, Job, JobState, Move, Node, NodeState, Phase
from wherry.model.spec.cluster import ClusterSpec
from wherry.node.fake import FakeDriver
from wherry.schedule.placement import NodeNeed


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def spec(**keys: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"name": "hello", "nodes": 4, **keys})


def planned(world: World, **keys: Any) -> ClusterPlan:
    return world.clusters.plan(spec(**keys), OWNER)


def refusal(act: Callable[[], object]) -> tuple[Code, str, str, str]:
    with pytest.raises(Refused) as caught:
        act()
    return caught.value.code, caught.value.what, caught.value.why, caught.value.next


def failure(act: Callable[[], object]) -> tuple[Code, str, str, str]:
    with pytest.raises(Failed) as caught:
        act()
    return caught.value.code, caught.value.what, caught.value.why, caught.value.next


def events(world: World, kind: str) -> list[Event]:
    return [event for event in world.store.events() if event.kind == kind]


def put(world: World, name: str, **changes: Any) -> Node:
    node = find_node(world.store, name).model_copy(update=changes)
    world.store.put_node(node)
    return node


def moving(node: str, source: str, destination: str) -> Move:
    fields = {"id": "m", "node": node, "cluster": "hello", "source": source, "destination": destination, "created": 0}
    return Move.model_validate({**fields, "phase": Phase.TRANSFER})


def test_kinds_that_cannot_run(world: World) -> None:
    assert refusal(lambda: planned(world, kind="vm")) == (
        Code.UNSUPPORTED, "this fabric cannot run nodes of kind 'vm'", "known: container", "wherry doctor",
    )  # fmt: skip
    clusters = Clusters(world.store, world.fabric, {"lxc": FakeDriver(), "other": FakeDriver()})
    assert refusal(lambda: clusters.plan(spec(), OWNER))[2] == "known: lxc, other"
    world.driver.cannot = "no container runtime"
    assert refusal(lambda: planned(world)) == (
        Code.UNSUPPORTED, "this machine cannot run nodes of kind 'container'", "no container runtime", "wherry doctor",
    )  # fmt: skip


def test_each_flavor_is_checked_once_by_its_driver(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[str, float, int]]()

    def check(driver: FakeDriver, flavor: Any, owner: Any) -> None:
        seen.append((driver.kind, flavor.cpus, owner.uid))

    monkeypatch.setattr(FakeDriver, "check", check)
    clusters = Clusters(world.store, world.fabric, {"container": world.driver, "vm": FakeDriver("vm")})
    groups = [{"count": 2, "cpus": 0.5}, {"kind": "vm", "memory": "192MiB"}, {"cpus": 0.5}]
    clusters.plan(spec(nodes=groups), OWNER)
    assert seen == [("container", 0.5, 1000), ("vm", 1.0, 1000)]


def test_unknown_sites_and_hosts(world: World) -> None:
    assert refusal(lambda: planned(world, sites=["a", "west"])) == (
        Code.NOT_FOUND, "no site is named 'west'", "known: a, b", "wherry status",
    )  # fmt: skip
    assert refusal(lambda: planned(world, hosts=["a1", "moon"])) == (
        Code.NOT_FOUND, "no host is named 'moon'", "known: a1, a2, b1, b2", "wherry status",
    )  # fmt: skip
    world.fabric.down()
    assert refusal(lambda: planned(world)) == (
        Code.WRONG_STATE, "no fabric is up", "clusters need its hosts", "wherry up FILE, or: wherry fabric up FILE",
    )  # fmt: skip


def test_clusters_of_others_and_those_that_are_being_removed(world: World) -> None:
    world.make()
    assert refusal(lambda: world.clusters.plan(spec(), OTHER)) == (
        Code.NAME_TAKEN, "cluster hello belongs to another user", "names of clusters are unique on a machine",
        "choose another name",
    )  # fmt: skip
    cluster = find_cluster(world.store, "hello")
    world.store.put_cluster(cluster.model_copy(update={"state": ClusterState.REMOVING, "reason": "a host is silent"}))
    assert refusal(lambda: planned(world)) == (
        Code.WRONG_STATE, "cluster hello is being removed", "a host is silent", "wherry down hello",
    )  # fmt: skip


def test_flavors_of_running_nodes_stay(world: World) -> None:
    world.make()
    assert refusal(lambda: planned(world, nodes=[{"count": 3}, {"cpus": 2}])) == (
        Code.WRONG_STATE, "cpus of a running cluster cannot be changed", "hello-3 was made with 1.0, the file has 2.0",
        "wherry down hello, then wherry up again",
    )  # fmt: skip
    more = planned(world, nodes=[{"count": 4}, {"cpus": 2}])
    assert [step.text for step in more.of(StepKind.ADD)] == ["create hello-4 on a1 (container, 2 CPUs, 512.0 MiB)"]
    fewer = planned(world, nodes=[{"count": 3}])
    assert [step.text for step in fewer.of(StepKind.REMOVE)] == ["remove hello-3 from b2"]


def test_nodes_that_cannot_be_removed_now(world: World) -> None:
    world.make()
    job = Job(
        id="job-1", cluster="hello", argv=("x",), ranks=4, mpi="openmpi", uid=1, gid=1, cwd="/", created=0,
        state=JobState.RUNNING,
    )  # fmt: skip
    world.store.put_job(job)
    assert refusal(lambda: planned(world, nodes=2)) == (
        Code.WRONG_STATE, "hello-2 cannot be removed while job job-1 runs on hello", "",
        "wherry job cancel job-1, or wait until it has ended",
    )  # fmt: skip
    world.store.put_job(job.model_copy(update={"cluster": "other"}))
    put(world, "hello-1", state=NodeState.MOVING)
    assert len(planned(world, nodes=2).of(StepKind.REMOVE)) == 2
    put(world, "hello-3", state=NodeState.MOVING)
    assert refusal(lambda: planned(world, nodes=2)) == (
        Code.WRONG_STATE, "hello-3 cannot be removed while it moves", "", "wherry op list",
    )  # fmt: skip


def test_the_steps_of_a_plan(world: World) -> None:
    """A node that moves is kept; a node that is planned only, or has ended, is repaired; indices count on."""
    world.make(nodes=3)
    put(world, "hello-0", state=NodeState.MOVING)
    put(world, "hello-1", state=NodeState.PLANNED)
    del world.driver.placements[("hello-2", "b1")]
    plan = planned(world, nodes=4)
    assert [(step.kind, step.index, step.node, step.host, step.text) for step in plan.steps] == [
        ("keep", 0, "hello-0", "a1", "keep hello-0 on a1"),
        ("repair", 1, "hello-1", "a2", "repair hello-1 on a2: stop and start it"),
        ("repair", 2, "hello-2", "b1", "repair hello-2 on b1: stop and start it"),
        ("add", 3, "hello-3", "b2", "create hello-3 on b2 (container, 1 CPU, 512.0 MiB)"),
    ]
    assert plan.text().splitlines()[3:] == ["1 to create, 2 to repair, 0 to remove. Nothing was changed."]
    assert not plan.empty and plan.network == 1 and (plan.owner, plan.head_host) == (OWNER, "a1")
    assert planned(world, name="other").network is None


def test_rooms_are_counted_node_by_node(tmp_path: Path) -> None:
    """Each host has room for two; the room of an ended node of this cluster is free for it again."""
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=2, hosts=["a1"], cpus=0.5)
    world.driver.placements.clear()
    plan = planned(world, nodes=3, cpus=0.5, hosts=["a1", "a2"])
    assert [(step.kind, step.host) for step in plan.steps] == [("repair", "a1"), ("repair", "a1"), ("add", "a2")]
    assert need_of(plan.spec, 2) == NodeNeed(0.5, 512 * 2**20)
    world.make("other", nodes=2, hosts=["a2"], cpus=0.5)
    found = refusal(lambda: planned(world, nodes=3, cpus=0.5, hosts=["a1", "a2"]))
    assert found[:2] == (Code.NO_CAPACITY, "1 nodes are wanted and 0 fit")
    assert found[2] == "; ".join(f"host {host} has 0 CPUs left, the node needs 0.5" for host in ("a1", "a2"))


def test_a_lost_node_goes_elsewhere_when_its_host_is_full(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=1, hosts=["a1"])
    world.store.put_node(put(world, "hello-0", state=NodeState.LOST))
    world.driver.placements.clear()
    world.store.put_node(find_node(world.store, "hello-0").model_copy(update={"name": "x-0", "cluster": "x"}))
    assert planned(world, nodes=1).steps[0].host == "a2"


def test_a_move_takes_its_destination(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=1, hosts=["a1"])
    world.store.put_move(moving("hello-0", "a1", "a2"))
    assert planned(world, name="other", nodes=1).steps[0].host == "b1"
    assert planned(world, name="other", nodes=1, sites=["b"]).steps[0].host == "b1"
    world.store.put_move(moving("hello-0", "a1", "a2").model_copy(update={"phase": Phase.DONE, "ended": 1.0}))
    assert planned(world, name="other", nodes=1).steps[0].host == "a2"
    assert planned(world, name="other", nodes=1, sites=["b"]).steps[0].host == "b1"


def test_most_per_host_counts_the_nodes_that_stay(world: World) -> None:
    world.make(nodes=1, hosts=["a1"])
    plan = planned(world, nodes=3, hosts=["a1", "a2", "b1"], placement={"spread": "pack", "max_per_host": 1})
    assert [step.host for step in plan.steps] == ["a1", "a2", "b1"]


def test_hosts_that_lack_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(
        tmp_path, fabric_spec(a1={"without_files": ["/opt/x", "/opt/y"]}, b1={"without_files": ["/home/user"]})
    )
    monkeypatch.setattr("wherry.cluster.binds.trusted_path", lambda path, _: path)  # the owner's home is imagined
    assert refusal(lambda: planned(world, nodes=1, needs=["/opt/x", "/opt/y"], hosts=["a1"])) == (
        Code.INCOMPATIBLE_HOST, "host a1 lacks /opt/x, which the nodes need", "1 nodes are wanted and 0 fit",
        "ask for fewer or smaller nodes, or see what is taken: wherry status",
    )  # fmt: skip
    assert refusal(lambda: planned(world, nodes=1, hosts=["b1"]))[1] == (
        "host b1 lacks /home/user, which the nodes need"
    )
    assert {step.host for step in planned(world, needs=["/opt/x"]).steps} == {"a2", "b2"}
    found = refusal(lambda: planned(world, nodes=40, needs=["/opt/x"]))
    assert found[:2] == (Code.INCOMPATIBLE_HOST, "host a1 lacks /opt/x, which the nodes need")
    assert refusal(lambda: planned(world, nodes=9, needs=["/opt/x"], hosts=["a2"]))[0] == Code.NO_CAPACITY


def test_the_head_moves_when_its_host_is_down(world: World) -> None:
    world.make(hosts=["a2", "b1"], nodes=2)
    assert find_cluster(world.store, "hello").head_host == "a2"
    assert planned(world, hosts=["a2", "b1"], nodes=2).head_host == "a2"
    world.fabric.set_down("a2", True)
    put(world, "hello-0", state=NodeState.LOST)
    assert planned(world, hosts=["a2", "b1"], nodes=2).head_host == "b1"


def test_up_is_told(world: World) -> None:
    told = list[str]()
    cluster = world.clusters.apply(planned(world, nodes=2), told.append)
    assert told[0] == "network of hello" and told[1:] in (
        ["1 of 2: hello-0", "2 of 2: hello-1"],
        ["1 of 2: hello-1", "2 of 2: hello-0"],
    )
    (event,) = events(world, "cluster.up")
    assert (event.target, event.text) == ("hello", "hello is up with 2 nodes")
    assert (cluster.state, cluster.reason) == (ClusterState.RUNNING, "")
    expected = {"name": "hello", "network": 1, "subnet": "10.77.1.0/24", "head_host": "a1", "owner_uid": 1000,
                "owner_gid": 1000, "owner_groups": OWNER.groups}  # fmt: skip
    assert cluster.model_dump(include=expected.keys()) == expected and cluster.created > 0
    (first, second) = world.store.nodes("hello")
    assert (first.mac, first.index, second.index) == ("02:77:0a:4d:01:00", 0, 1)
    assert (first.kind, first.cpus, first.memory) == ("container", 1.0, 512 * 2**20)


def test_a_second_up_keeps_what_running_nodes_know(world: World) -> None:
    """The owner's groups, the head, the time and the key, though the file has changed."""
    first = world.make(nodes=2, hosts=["a2", "b1"])
    secret = world.store.secret(secret_name("hello"))
    owner = OWNER.model_copy(update={"gid": 7, "groups": (7, 8)})
    second = world.clusters.apply(world.clusters.plan(spec(nodes=3, hosts=["a1", "a2", "b1"]), owner))
    kept = ("network", "subnet", "head_host", "owner_uid", "owner_gid", "owner_groups", "binds", "created")
    assert second.model_dump(include=set(kept)) == first.model_dump(include=set(kept)) and second.spec.size == 3
    assert world.store.secret(secret_name("hello")) == secret


def test_up_in_part_is_told(world: World) -> None:
    told, fails = list[str](), {"start": 0}

    def strike(name: str) -> None:
        if name == "start":
            fails["start"] += 1
            raise Failed(Code.FAILED, "no start", f"{fails['start']}")

    world.watch(strike)
    code, what, why, remedy = failure(lambda: world.clusters.apply(planned(world), told.append))
    assert (code, what) == (Code.PARTLY_DONE, "cluster hello is up in part")
    assert remedy == "wherry up FILE repairs it, wherry down hello removes it"
    shown = why.split("; ")
    assert [text.partition(": ")[0] for text in shown] == ["hello-0", "hello-1", "hello-2"]
    assert all("no start: " in text for text in shown)
    cluster, (event,) = find_cluster(world.store, "hello"), events(world, "cluster.partly")
    assert (cluster.state, cluster.reason) == (ClusterState.PARTLY, shown[0])
    assert (event.target, event.text) == ("hello", shown[0])
    assert len(event.data["errors"]) == 4 and event.data["errors"][:3] == shown  # type: ignore[arg-type]
    assert any(text.startswith("1 of 4: hello-") and "no start" in text for text in told)
    assert not world.driver.placements and not [key for key in world.fabric.ports if key[0] != "hello-head"]
    assert {node.state for node in world.store.nodes("hello")} == {NodeState.PLANNED}


def test_a_network_that_cannot_be_made(world: World) -> None:
    world.fabric.fail_at["network_up"] = "no bridge"
    found = failure(lambda: world.clusters.apply(planned(world)))
    assert found[0] == Code.PARTLY_DONE and found[2] == "its network: network_up failed: no bridge"
    assert "start" not in world.driver.calls


def test_up_that_was_cancelled(world: World) -> None:
    found = failure(lambda: world.clusters.apply(planned(world, nodes=1), cancelled=lambda: True))
    assert found[0] == Code.CANCELLED and found[2] == "hello-0: hello-0 was not started: cancelled"


def test_plans_that_rows_have_outrun(world: World) -> None:
    plan, stale = planned(world), "it was made or removed after this was planned"
    expected = Code.WRONG_STATE, "cluster hello has changed", stale, "run wherry up again"
    world.make(nodes=1)
    assert refusal(lambda: world.clusters.apply(plan)) == expected
    plan = planned(world)
    world.clusters.down("hello")
    assert refusal(lambda: world.clusters.apply(plan)) == expected and not world.store.clusters()


def test_hosts_that_have_changed_since_the_plan(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    plan = planned(world, nodes=2, cpus=0.5, hosts=["a1"])
    world.fabric.spec = fabric_spec(cores=0.5)
    assert refusal(lambda: world.clusters.apply(plan)) == (
        Code.NO_CAPACITY, "hello-1 no longer fits", "host a1 has 0 CPUs left, the node needs 0.5",
        "run wherry up again",
    )  # fmt: skip
    left = tuple(host for host in world.fabric.spec.hosts if host.name != "a1")
    world.fabric.spec = world.fabric.spec.model_copy(update={"hosts": left})
    assert refusal(lambda: world.clusters.apply(plan)) == (
        Code.WRONG_STATE, "there is no host a1 any more", "the fabric was changed after this was planned",
        "run wherry up again",
    )  # fmt: skip


def test_room_that_a_move_has_taken_since_the_plan(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make("other", nodes=1, hosts=["b1"])
    plan = planned(world, nodes=1, hosts=["a1"])
    world.store.put_move(moving("other-0", "b1", "a1"))
    assert refusal(lambda: world.clusters.apply(plan))[1] == "hello-0 no longer fits"


def test_a_node_that_was_removed_meanwhile(world: World) -> None:
    plan = planned(world, nodes=1)
    world.watch(lambda name: world.store.drop_node("hello-0") if name == "network_up" else None)
    found = failure(lambda: world.clusters.apply(plan))
    assert found[2] == "hello-0: hello-0 was removed after this was planned"


def test_a_repair_removes_what_is_left_first(world: World) -> None:
    """At the old host, before it is started at the new one; a host without room is refused."""
    world.make(nodes=1, hosts=["b1"])
    world.driver.placements.clear()
    world.fabric.set_down("b1", True)
    put(world, "hello-0", state=NodeState.LOST)
    seen, states, plan = list[tuple[str, str]](), list[NodeState](), planned(world, nodes=1)

    def look(name: str) -> None:
        node = find_node(world.store, "hello-0")
        seen.append((name, node.host))
        states.extend([node.state] if name == "start" else [])

    world.watch(look)
    world.clusters.apply(plan)
    assert states == [NodeState.PLANNED]
    names = [call for call in seen if call[0] in ("stop", "port_up", "start")]
    assert names[-3:] == [("stop", "b1"), ("port_up", "a1"), ("start", "a1")]
    assert ("port_down", "b1") in seen and ("hello-0", "b1") not in world.fabric.ports
    assert find_node(world.store, "hello-0").state == NodeState.RUNNING


def test_a_repair_whose_room_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=1, hosts=["b1"])
    world.make("other", nodes=1, hosts=["b2"])
    world.driver.placements.pop(("hello-0", "b1"))
    world.fabric.set_down("b1", True)
    put(world, "hello-0", state=NodeState.LOST)
    plan = planned(world, nodes=1)
    assert plan.steps[0].host == "a1"

    def strike(name: str) -> None:
        if name == "network_up":
            world.store.put_move(moving("other-0", "b2", "a1"))

    world.watch(strike)
    found = failure(lambda: world.clusters.apply(plan))
    assert found[2] == "hello-0: hello-0 no longer fits: host a1 has 0 CPUs left, the node needs 1"
    assert find_node(world.store, "hello-0").host == "b1"


def test_apply_asks_no_host_and_counts_no_move_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that does not answer would hold up all moves and clusters, whose room is taken under one lock."""
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=1, hosts=["b1"])
    world.make("other", nodes=1, hosts=["b2"])
    world.driver.placements.pop(("hello-0", "b1"))
    put(world, "hello-0", state=NodeState.LOST)
    world.fabric.set_down("b1", True)
    plan = planned(world, nodes=2)
    ended = {"phase": Phase.DONE, "ended": 1.0}
    world.store.put_move(moving("other-0", "b2", "a1").model_copy(update=ended))
    world.store.put_move(moving("other-0", "b2", "a2").model_copy(update={"id": "m2", **ended}))

    def reachable(host: str) -> bool:
        raise AssertionError(f"{host} is asked")

    monkeypatch.setattr(world.fabric, "reachable", reachable)
    world.clusters.apply(plan)
    assert [node.host for node in world.store.nodes("hello")] == ["a1", "a2"]


def test_down_is_told_and_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten, told = list[str](), list[str]()
    monkeypatch.setattr(world.driver, "forget", forgotten.append)
    world.make(nodes=2)
    world.make("other", nodes=1)
    world.store.set_host_flag("b1", f"{DRAINED_NODE}hello-0", True)
    world.store.set_host_flag("b1", f"{DRAINED_NODE}other-0", True)
    world.clusters.down("hello", told.append)
    assert sorted(forgotten) == ["hello-0", "hello-1"] and {text[:8] for text in told} == {"1 of 2: ", "2 of 2: "}
    assert world.store.host_flags("b1") == [f"{DRAINED_NODE}other-0"]
    assert world.fabric.networks == {find_cluster(world.store, "other").network}


def test_down_in_part_shows_three_errors(world: World) -> None:
    world.make()

    def strike(name: str) -> None:
        if name == "stop":
            raise Failed(Code.FAILED, "busy")

    world.watch(strike)
    code, what, why, remedy = failure(lambda: world.clusters.down("hello"))
    assert (code, what, remedy) == (Code.PARTLY_DONE, "cluster hello is removed in part", "wherry down hello")
    assert why == "hello-0: busy; hello-1: busy; hello-2: busy"
    assert find_cluster(world.store, "hello").reason == why


def test_down_under_a_move_tells_why_that_is_unfinished(world: World) -> None:
    world.make()
    world.store.put_move(moving("hello-0", "a1", "b1").model_copy(update={"error": {"why": "no host answers"}}))
    assert refusal(lambda: world.clusters.check_down("hello")) == (
        Code.WRONG_STATE, "the move of hello-0 from a1 to b1 is unfinished", "no host answers", "wherry status",
    )  # fmt: skip
    world.store.put_move(moving("hello-0", "a1", "b1").model_copy(update={"error": {}}))
    assert refusal(lambda: world.clusters.check_down("hello"))[2] == "move m is in phase transfer"


def test_nodes_of_a_cluster_that_is_gone(world: World) -> None:
    """Its rows were read, and then it was removed."""
    world.make(nodes=1)
    world.store.drop_cluster("hello")
    assert world.clusters.gone("hello") == []


def test_only_running_nodes_can_be_gone(world: World) -> None:
    world.make(nodes=3)
    world.driver.placements.clear()
    put(world, "hello-1", state=NodeState.MOVING)
    assert [node.name for node in world.clusters.gone("hello")] == ["hello-0", "hello-2"]
