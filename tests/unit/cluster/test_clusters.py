"""Clusters over fakes: plan, apply, change, repair, down; and that a plan changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakeworld import OTHER, OWNER, World, fabric_spec

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.cluster.binds import binds_of
from wherry.cluster.clusters import Clusters
from wherry.cluster.lookup import find_cluster
from wherry.cluster.placements import secret_name
from wherry.cluster.plan import StepKind
from wherry.model.owner import Owner
from wherry.model.records import ClusterState, Job, JobState, Move, NodeState, Phase
from wherry.model.spec.cluster import ClusterSpec
from wherry.node.container.local_host import LocalHost
from wherry.node.fake import Copy, FakeDriver
from wherry.node.vm import driver_base
from wherry.schedule.placement import used_by


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refused(world: World, code: Code, words: str, owner: Owner = OWNER, **keys: object) -> None:
    """Planning is refused with the code, and changed nothing."""
    before = _everything(world)
    with pytest.raises(Refused) as caught:
        world.clusters.plan(ClusterSpec.model_validate({"name": "hello", "nodes": 4, **keys}), owner)
    assert caught.value.code == code
    assert words in f"{caught.value.what}: {caught.value.why}"
    assert _everything(world) == before


def _everything(world: World) -> object:
    store = world.store
    return (
        store.clusters(), store.nodes(), store.events(), dict(world.fabric.ports), set(world.fabric.networks),
        dict(world.driver.placements),
    )  # fmt: skip


def test_plan_changes_nothing_and_says_so(world: World) -> None:
    before = _everything(world)
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=8), OWNER)
    assert plan.text().splitlines()[0] == "create hello-0 on a1 (container, 1 CPU, 512.0 MiB): speed 1, 0 nodes there"
    assert plan.text().splitlines()[-1] == "8 to create, 0 to remove. Nothing was changed."
    assert not plan.empty and _everything(world) == before


def test_apply_makes_nodes_head_and_key(world: World) -> None:
    told: list[str] = []
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=4), OWNER)
    cluster = world.clusters.apply(plan, told.append)
    assert cluster.state == ClusterState.RUNNING and cluster == world.store.cluster("hello")
    assert [(n.name, n.host, n.address, n.state) for n in world.store.nodes("hello")] == [
        (f"hello-{i}", host, f"10.77.1.{i + 1}", "running") for i, host in enumerate(("a1", "a2", "b1", "b2"))
    ]
    assert world.fabric.plugged("hello-head") == ["a1"] and cluster.head_address == "10.77.1.254"
    assert len(bytes.fromhex(world.store.secret(secret_name("hello")))) == 32
    assert any("4 of 4" in text for text in told)


def test_apply_again_does_nothing(world: World) -> None:
    first = world.make()
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=4), OWNER)
    assert plan.empty and plan.text() == "0 to create, 0 to remove. Nothing was changed."
    calls = len(world.driver.calls)
    assert world.clusters.apply(plan) == first
    assert len(world.driver.calls) == calls


def test_grow_and_shrink(world: World) -> None:
    world.make(nodes=4)
    world.make(nodes=6)
    assert [n.name for n in world.store.nodes("hello")] == [f"hello-{i}" for i in range(6)]
    world.assert_one_copy("hello-5", "a2")
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=2), OWNER)
    assert [step.node for step in plan.of(StepKind.REMOVE)] == ["hello-5", "hello-4", "hello-3", "hello-2"]
    world.clusters.apply(plan)
    assert sorted(world.driver.placements) == [("hello-0", "a1"), ("hello-1", "a2")]
    assert [n.name for n in world.store.nodes("hello")] == ["hello-0", "hello-1"]


def test_no_shrinking_under_a_job(world: World) -> None:
    world.make()
    job = Job(
        id="job-1", cluster="hello", argv=("x",), ranks=4, mpi="openmpi", uid=1, gid=1, cwd="/", created=0,
        state=JobState.RUNNING,
    )  # fmt: skip
    world.store.put_job(job)
    refused(world, Code.WRONG_STATE, "while job job-1 runs", nodes=2)
    assert world.clusters.plan(ClusterSpec(name="hello", nodes=5), OWNER).of(StepKind.ADD)
    world.store.put_job(job.model_copy(update={"state": JobState.ENDED}))
    world.make(nodes=2)


def test_two_clusters_share_nothing(world: World) -> None:
    one, two = world.make("one"), world.make("two", owner=OTHER)
    assert one.network != two.network and one.subnet != two.subnet
    assert world.store.secret(secret_name("one")) != world.store.secret(secret_name("two"))
    world.clusters.down("one")
    assert [n.cluster for n in world.store.nodes()] == ["two"] * 4
    assert world.fabric.networks == {two.network}


def test_hosts_file_outlives_growth(world: World) -> None:
    cluster = world.make()
    node = world.store.nodes("hello")[0]
    text = world.moves._placements.placement(node).hosts_file
    assert "127.0.0.1 localhost\n" in text and "10.77.1.4 hello-3\n" in text
    assert f"{cluster.head_address} hello-head\n" in text
    world.make(nodes=6)
    assert world.moves._placements.placement(node).hosts_file == text


def test_refusals(world: World) -> None:
    refused(world, Code.NOT_FOUND, "known: a, b", sites=["west"])
    refused(world, Code.NOT_FOUND, "did you mean a1?", hosts=["a11"])
    refused(world, Code.NO_CAPACITY, "17 nodes are wanted and 16 fit", nodes=17)
    refused(world, Code.NO_CAPACITY, "0 fit", memory="5GiB")
    refused(world, Code.UNSUPPORTED, "'vm'", kind="vm")
    world.driver.cannot = "no container runtime"
    refused(world, Code.UNSUPPORTED, "no container runtime")
    world.fabric.down()
    refused(world, Code.WRONG_STATE, "no fabric is up")


def test_containers_and_virtual_machines_in_one_cluster(world: World) -> None:
    machines = FakeDriver("vm")
    clusters = Clusters(world.store, world.fabric, {"container": world.driver, "vm": machines})
    groups = [{"count": 2, "cpus": 0.5}, {"kind": "vm", "memory": "192MiB"}]
    plan = clusters.plan(ClusterSpec.model_validate({"name": "mixed", "nodes": groups}), OWNER)
    assert [step.text for step in plan.steps] == [
        "create mixed-0 on a1 (container, 0.5 CPUs, 512.0 MiB)",
        "create mixed-1 on a2 (container, 0.5 CPUs, 512.0 MiB)",
        "create mixed-2 on b1 (vm, 1 CPU, 192.0 MiB)",
    ]
    clusters.apply(plan)
    nodes = world.store.nodes("mixed")
    assert [(node.kind, node.cpus) for node in nodes] == [("container", 0.5), ("container", 0.5), ("vm", 1.0)]
    assert (sorted(world.driver.placements), list(machines.placements)) == (
        [("mixed-0", "a1"), ("mixed-1", "a2")],
        [("mixed-2", "b1")],
    )
    other = ClusterSpec.model_validate({"name": "mixed", "nodes": groups[::-1]})
    with pytest.raises(Refused, match="kind of a running cluster cannot be changed"):
        clusters.plan(other, OWNER)
    machines.placements.clear()
    assert [node.name for node in clusters.lose("mixed", clusters.gone("mixed"))] == ["mixed-2"]
    smaller = ClusterSpec.model_validate({"name": "mixed", "nodes": groups[:1]})
    clusters.apply(clusters.plan(smaller, OWNER))  # the machine that is no more is removed by its own driver
    assert [node.name for node in world.store.nodes("mixed")] == ["mixed-0", "mixed-1"]
    assert machines.calls[-1] == "stop" and "stop" not in world.driver.calls


def test_refusals_of_changes(world: World) -> None:
    world.make()
    refused(world, Code.NAME_TAKEN, "another user", owner=OTHER)
    refused(world, Code.WRONG_STATE, "cpus of a running cluster", cpus=2)
    refused(world, Code.WRONG_STATE, "memory of a running cluster", memory="1GiB")


def test_a_host_without_a_needed_file_is_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(a1={"without_files": ["/opt/x"]}))
    world.make(needs=["/opt/x"])
    assert "a1" not in {node.host for node in world.store.nodes()}
    refused(world, Code.INCOMPATIBLE_HOST, "host a1 lacks /opt/x", name="other", needs=["/opt/x"], hosts=["a1"])


def test_drained_and_down_hosts_get_nothing(world: World) -> None:
    world.store.set_host_flag("a1", "drained", True)
    world.fabric.set_down("b1", True)
    world.make()
    assert {node.host for node in world.store.nodes()} == {"a2", "b2"}


def test_partial_failure_is_repaired_by_up(world: World) -> None:
    world.driver.fail_at["start"] = "out of memory"
    with pytest.raises(Failed) as caught:
        world.make()
    assert caught.value.code == Code.PARTLY_DONE and "out of memory" in caught.value.why
    assert "wherry down hello" in caught.value.next
    cluster = world.store.cluster("hello")
    assert cluster and cluster.state == ClusterState.PARTLY and "out of memory" in cluster.reason
    assert len(world.driver.placements) == 3
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=4), OWNER)
    assert len(plan.of(StepKind.REPAIR)) == 1 and "1 to repair" in plan.text()
    assert world.clusters.apply(plan).state == ClusterState.RUNNING
    for node in world.store.nodes():
        world.assert_one_copy(node.name, node.host)


@pytest.mark.parametrize("call", ["network_up", "port_up", "port_plug", "start"])
def test_partial_failure_is_removed_by_down(world: World, call: str) -> None:
    (world.driver if call == "start" else world.fabric).fail_at[call] = "no"
    with pytest.raises(Failed):
        world.make()
    world.clusters.down("hello")
    _assert_nothing(world)


@pytest.mark.parametrize("call", ["stop", "port_down", "network_down"])
def test_failing_down_can_be_repeated(world: World, call: str) -> None:
    world.make()
    (world.driver if call == "stop" else world.fabric).fail_at[call] = "busy"
    with pytest.raises(Failed) as caught:
        world.clusters.down("hello")
    assert caught.value.code == Code.PARTLY_DONE and caught.value.next == "wherry down hello"
    refused(world, Code.WRONG_STATE, "is being removed")
    world.clusters.down("hello")
    _assert_nothing(world)
    with pytest.raises(Refused) as caught_again:
        world.clusters.down("hello")
    assert caught_again.value.code == Code.NOT_FOUND


def _assert_nothing(world: World) -> None:
    assert not world.store.clusters() and not world.store.nodes()
    assert not world.fabric.ports and not world.fabric.networks and not world.driver.placements
    with pytest.raises(Refused):
        world.store.secret(secret_name("hello"))


def test_cancel_leaves_a_cluster_that_up_repairs(world: World) -> None:
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=4), OWNER)
    with pytest.raises(Failed) as caught:
        world.clusters.apply(plan, cancelled=lambda: True)
    assert caught.value.code == Code.CANCELLED and not world.driver.placements
    assert world.make().state == ClusterState.RUNNING


def test_lost_node_is_found_and_started_elsewhere(world: World) -> None:
    world.make()
    del world.driver.placements[("hello-2", "b1")]
    assert [node.name for node in world.clusters.lose("hello", world.clusters.gone("hello"))] == ["hello-2"]
    assert [node.state for node in world.store.nodes("hello")][2] == NodeState.LOST
    assert world.store.cluster("hello").state == ClusterState.PARTLY  # type: ignore[union-attr]
    world.fabric.set_down("b1", True)
    world.make()
    world.assert_one_copy("hello-2", "a1")


def test_stale_plan_is_refused(world: World) -> None:
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=16), OWNER)
    world.make("other", nodes=2)
    with pytest.raises(Refused) as caught:
        world.clusters.apply(plan)
    assert caught.value.code == Code.NO_CAPACITY and world.store.cluster("hello") is None


@pytest.mark.parametrize(
    ("home", "cwd", "binds"),
    [
        ("/home/u", "/home/u/work", ("/home/u",)),
        ("/home/u/", "/srv/data", ("/home/u", "/srv/data")),
        ("/srv/u", "/", ("/srv/u",)),
        ("/", "/tmp", ()),
        ("/home/u", "/tmp/build", ("/home/u", "/tmp/build")),
        ("/home/u", "/home/user", ("/home/u", "/home/user")),
        ("/srv/x/u", "/srv/x", ("/srv/x",)),
        ("/home/u", "/proc/1", ("/home/u",)),
    ],
)
def test_binds(world: World, monkeypatch: pytest.MonkeyPatch, home: str, cwd: str, binds: tuple[str, ...]) -> None:
    """Of directories that are only imagined, so nobody can change their names."""
    monkeypatch.setattr("wherry.cluster.binds.trusted_path", lambda path, _: path)
    assert binds_of(world.fabric, world.fabric.hosts(), Owner(uid=1, gid=1, home=home, cwd=cwd)) == binds


def _taken(world: World, host: str) -> float:
    """CPUs that rows take of a host."""
    return used_by(world.store.nodes(), world.store.moves(unfinished=True))[host].cpus


def test_a_move_and_a_new_cluster_do_not_both_take_the_last_room_of_a_host(world: World) -> None:
    world.make("one", 1, hosts=["a1"], cpus=3)
    moving = world.moves.plan("one-0", "a2")
    plan = world.clusters.plan(ClusterSpec(name="two", nodes=1, hosts=("a2",), cpus=3), OWNER)
    refusals: list[Exception] = []

    def move() -> None:
        try:
            world.moves.apply(moving)
        except Exception as error:
            refusals.append(error)

    thread = threading.Thread(target=move)

    def between(name: str) -> None:
        if name == "put_node planned":  # the room was checked, the row that takes it is not written yet
            world.watch(None)
            thread.start()
            thread.join(0.3)

    world.watch(between)
    world.clusters.apply(plan)
    thread.join()
    assert [str(error) for error in refusals] and "does not fit on a2" in str(refusals[0])
    assert _taken(world, "a2") == 3 and world.driver.copies("one-0") == {"a1": Copy.RUNNING}


def test_a_node_is_repaired_where_another_one_is_removed(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=2, hosts=["a1", "a2"])
    world.fabric.set_down("a1", True)
    world.driver.placements.pop(("hello-0", "a1"))
    world.clusters.lose("hello", world.clusters.gone("hello"))
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=1, hosts=("a1", "a2")), OWNER)
    assert [(step.kind, step.node, step.host) for step in plan.steps] == [
        (StepKind.REPAIR, "hello-0", "a2"),
        (StepKind.REMOVE, "hello-1", "a2"),
    ]
    assert world.clusters.apply(plan).state == ClusterState.RUNNING
    world.assert_one_copy("hello-0", "a2")


def test_a_repair_elsewhere_does_not_overfill_the_host(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=1, hosts=["a1"])
    world.fabric.set_down("a1", True)
    world.driver.placements.pop(("hello-0", "a1"))
    world.clusters.lose("hello", world.clusters.gone("hello"))
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=1), OWNER)
    assert plan.steps[0].host == "a2"

    def meanwhile(name: str) -> None:
        if name == "network_up":  # the repair has passed its check, and its row names a1 still
            world.watch(None)
            world.make("other", 1, hosts=["a2"])

    world.watch(meanwhile)
    with pytest.raises(Failed, match="hello-0 no longer fits"):
        world.clusters.apply(plan)
    assert _taken(world, "a2") == 1 and world.driver.copies("hello-0") == {}
    assert world.clusters.apply(world.clusters.plan(ClusterSpec(name="hello", nodes=1), OWNER)).state == "running"


def test_a_head_is_moved_with_no_lock_held_and_before_the_row_names_its_new_host(world: World) -> None:
    world.make(nodes=2, hosts=["a1", "a2"])
    world.fabric.set_down("a1", True)
    world.driver.placements.pop(("hello-0", "a1"))
    world.clusters.lose("hello", world.clusters.gone("hello"))
    seen: list[tuple[bool, str]] = []

    def look(name: str) -> None:
        if name == "port_down":
            cluster = world.store.cluster("hello")
            seen.append((world.store.reserving.locked(), cluster.head_host if cluster else ""))

    world.watch(look)
    world.clusters.apply(world.clusters.plan(ClusterSpec(name="hello", nodes=2), OWNER))
    assert seen[0] == (False, "a1") and not any(locked for locked, _ in seen)
    assert world.fabric.plugged("hello-head") == ["b1"]


# Removing a cluster: not under a move of its own, and a removal in part is reported and can be tried again.


@pytest.fixture
def world_with_cluster(tmp_path: Path) -> World:
    world_with_cluster = World(tmp_path)
    world_with_cluster.make("hello", 2)
    return world_with_cluster


def moving(cluster: str) -> Move:
    return Move(
        id="m7", node=f"{cluster}-0", cluster=cluster, source="a1", destination="a2", phase=Phase.RESTORE, created=0
    )  # fmt: skip


def test_not_under_a_move_of_its_own(world_with_cluster: World) -> None:
    """It is as it was then; a move of another cluster does not matter."""
    before = find_cluster(world_with_cluster.store, "hello")
    world_with_cluster.store.put_move(moving("hello"))
    with pytest.raises(Refused) as refused:
        world_with_cluster.clusters.down("hello")
    error = refused.value
    assert (error.code, error.what) == (Code.WRONG_STATE, "the move of hello-0 from a1 to a2 is unfinished")
    assert error.why == "move m7 is in phase restore"
    assert error.next == "wherry status"
    assert (
        find_cluster(world_with_cluster.store, "hello") == before and len(world_with_cluster.store.nodes("hello")) == 2
    )
    world_with_cluster.store.put_move(moving("hello").model_copy(update={"cluster": "other", "node": "other-0"}))
    world_with_cluster.clusters.down("hello")
    assert world_with_cluster.store.cluster("hello") is None and world_with_cluster.store.nodes("hello") == []
    (event,) = [event for event in world_with_cluster.store.events() if event.kind == "cluster.down"]
    assert (event.target, event.text) == ("hello", "hello is removed")


def test_the_row_says_that_it_is_removed_before_anything_is(world_with_cluster: World) -> None:
    """And that a move which has ended is no reason to refuse."""
    world_with_cluster.store.put_move(moving("hello").model_copy(update={"phase": Phase.DONE, "ended": 1.0}))
    world_with_cluster.store.put_cluster(
        find_cluster(world_with_cluster.store, "hello").model_copy(update={"reason": "of before"})
    )
    seen = set[tuple[str, str]]()

    def look(_call: str) -> None:
        if row := world_with_cluster.store.cluster("hello"):
            seen.add((row.state, row.reason))

    world_with_cluster.watch(look)
    world_with_cluster.clusters.down("hello")
    assert seen == {(ClusterState.REMOVING, "")}


def test_what_stays_is_told_and_tried_again(world_with_cluster: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise Failed(Code.FAILED, "the bridge is busy", "")

        broken.setattr(world_with_cluster.fabric, "network_down", fail)
        with pytest.raises(Failed) as failed:
            world_with_cluster.clusters.down("hello")
    error, row = failed.value, find_cluster(world_with_cluster.store, "hello")
    assert (error.code, error.what) == (Code.PARTLY_DONE, "cluster hello is removed in part")
    assert error.why == "its network: the bridge is busy" and error.next == "wherry down hello"
    assert (row.state, row.reason) == (ClusterState.REMOVING, error.why)
    world_with_cluster.clusters.down("hello")
    assert world_with_cluster.store.cluster("hello") is None


# A node that boots for minutes, a virtual machine from a disk for instance: Ctrl-C at `wherry up` waits for none.


def test_up_is_cancelled_while_nodes_start(tmp_path: Path) -> None:
    world, cancelled = World(tmp_path), threading.Event()
    world.driver.on_call = lambda name: cancelled.set() if name == "start" else None
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=3), OWNER)
    with pytest.raises(Failed) as ended:
        world.clusters.apply(plan, cancelled=cancelled.is_set)
    assert ended.value.code is Code.CANCELLED
    assert Copy.RUNNING not in world.driver.placements.values()
    assert {node.state for node in world.store.nodes("hello")} == {NodeState.PLANNED}
    found = world.store.cluster("hello")
    assert found and found.state is ClusterState.PARTLY


class Machine(driver_base.VmDriverBase):
    instance = Instance("test")

    def alive(self, place: Any) -> bool:
        return True


class Cancelled(Exception):
    """The operation raises it."""


def at_the_third_look() -> Callable[[], None]:
    looks = count(1)

    def check() -> None:
        if next(looks) == 3:
            raise Cancelled

    return check


def test_a_machine_that_boots_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_base, "answers", lambda _place, _seconds: False)
    place = cast(Any, SimpleNamespace(node=SimpleNamespace(name="vm-0"), host="a1"))
    with pytest.raises(Cancelled):
        Machine().await_agent(place, 3600.0, at_the_third_look())


def test_a_container_that_does_not_listen_is_not_waited_for() -> None:
    node = SimpleNamespace(name="hello-0", address="127.0.0.1")
    place = cast(Any, SimpleNamespace(node=node, host="a1", netns="/proc/self/ns/net"))
    group = cast(Any, SimpleNamespace(pids=lambda: [1]))
    with pytest.raises(Cancelled):
        LocalHost._await_listening(cast(Any, None), place, group, at_the_third_look())
