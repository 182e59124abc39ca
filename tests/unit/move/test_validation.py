"""Refused moves: each error word for word, and the properties that are compared between the two hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakeworld import World, fabric_spec
from rest_service import CLUSTER, Service

from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.base.two_kernels import SWITCH
from wherry.client import Client
from wherry.cluster.lookup import DRAINED, find_node
from wherry.cluster.placements import Placements
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.move_check import NodeCheck
from wherry.model.records import ClusterState, Host, HostFacts, Move, NodeState, Phase
from wherry.move.check import MoveChecks
from wherry.node.fake import FakeMover
from wherry.node.protocol import Measured

NODE, SOURCE, DESTINATION = "hello-2", "b1", "a2"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, rounds=True)
    world.make()
    return world


def refusal(act: Callable[[], object]) -> tuple[Code, str, str, str]:
    with pytest.raises(Refused) as caught:
        act()
    return caught.value.code, caught.value.what, caught.value.why, caught.value.next


def put(world: World, **changes: Any) -> None:
    world.store.put_node(find_node(world.store, NODE).model_copy(update=changes))


def put_spec(world: World, **changes: Any) -> None:
    cluster = world.store.cluster("hello")
    assert cluster
    world.store.put_cluster(cluster.model_copy(update={"spec": cluster.spec.model_copy(update=changes)}))


def facts_of(world: World, monkeypatch: pytest.MonkeyPatch, **by_host: dict[str, Any]) -> None:
    """Changes the facts that are found at hosts; None: none are."""
    found = {host.name: host for host in world.fabric.hosts()}

    def hosts() -> list[Host]:
        changed = []
        for name, host in found.items():
            changes = by_host.get(name, {})
            assert host.facts is not None
            facts = host.facts.model_copy(update=changes) if changes is not None else None
            changed.append(host.model_copy(update={"facts": facts}))
        return changed

    def facts(host: str) -> HostFacts | None:
        return next(h.facts for h in hosts() if h.name == host)

    monkeypatch.setattr(world.fabric, "hosts", hosts)
    monkeypatch.setattr(world.fabric, "facts", facts)


def test_a_node_that_is_there_already(world: World) -> None:
    assert refusal(lambda: world.moves.plan(NODE, SOURCE)) == (
        Code.WRONG_STATE, f"{NODE} is on {SOURCE} already", "", "other hosts: a1, a2, b2",
    )  # fmt: skip


@pytest.mark.parametrize("host", [SOURCE, DESTINATION])
def test_a_host_that_does_not_answer(world: World, host: str) -> None:
    world.fabric.set_down(host, True)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.HOST_DOWN, f"host {host} is down", "it does not answer", "wherry status",
    )  # fmt: skip


def test_other_hosts_are_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[str]()
    monkeypatch.setattr(world.fabric, "reachable", lambda host: asked.add(host) is None)
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION
    assert asked == {SOURCE, DESTINATION}


def test_a_drained_host(world: World) -> None:
    expected = (
        Code.WRONG_STATE, f"host {DESTINATION} is drained", "it takes no nodes", f"wherry host restore {DESTINATION}",
    )  # fmt: skip
    plan = world.moves.plan(NODE, DESTINATION)
    world.store.set_host_flag(DESTINATION, "drained", True)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == expected
    assert refusal(lambda: world.moves.apply(plan)) == expected


@pytest.mark.parametrize(
    ("state", "what", "why", "remedy"),
    [
        (NodeState.MOVING, f"{NODE} is being moved already", "", "wherry op list"),
        (NodeState.LOST, f"{NODE} does not run", "it is lost", "wherry up FILE repairs it"),
    ],
)
def test_a_node_that_does_not_run(world: World, state: NodeState, what: str, why: str, remedy: str) -> None:
    plan = world.moves.plan(NODE, DESTINATION)
    put(world, state=state)
    for act in (lambda: world.moves.plan(NODE, DESTINATION), lambda: world.moves.apply(plan)):
        assert refusal(act) == (Code.WRONG_STATE, what, why, remedy)


def test_a_cluster_that_is_being_removed(world: World) -> None:
    (cluster,) = world.store.clusters()
    world.store.put_cluster(cluster.model_copy(update={"state": ClusterState.REMOVING}))
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.WRONG_STATE, "cluster hello is being removed", "", "wherry op list",
    )  # fmt: skip


def test_a_host_without_room(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(memory="1GiB"))
    world.make(memory="600MiB")
    why = "host a2 has 424.0 MiB of memory left, the node needs 600.0 MiB"
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.NO_CAPACITY, f"{NODE} does not fit on a2", why, "wherry status",
    )  # fmt: skip


def test_cpus_are_counted_too(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=1))
    world.make(nodes=4, cpus=1.0)
    found = refusal(lambda: world.moves.plan(NODE, DESTINATION))
    assert (found[0], found[2]) == (Code.NO_CAPACITY, "host a2 has 0 CPUs left, the node needs 1")


def test_room_that_an_unfinished_move_takes_is_taken(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(memory="1GiB"))
    world.make(nodes=3, memory="600MiB")  # a1, a2, b1
    fields = {"id": "m", "node": "hello-0", "cluster": "hello", "source": "a1", "destination": "b2", "created": 0}
    move = Move.model_validate({**fields, "phase": Phase.TRANSFER})
    world.store.put_move(move)
    assert refusal(lambda: world.moves.plan(NODE, "b2"))[:2] == (Code.NO_CAPACITY, f"{NODE} does not fit on b2")
    world.store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": 1.0}))
    assert world.moves.plan(NODE, "b2").destination.name == "b2"


def test_files_that_the_destination_lacks(tmp_path: Path) -> None:
    files = [f"/opt/{number}" for number in range(7)]
    world = World(tmp_path, fabric_spec(a2={"without_files": files}))
    world.make(hosts=["b1"], nodes=3, needs=files)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.INCOMPATIBLE_HOST, f"{NODE} cannot run on a2", f"it lacks {', '.join(files[:5])}", "wherry status",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"architecture": "aarch64"}, "its architecture is aarch64, that of b1 is x86_64"),
        ({"kernel": "7"}, "its kernel is 7, that of b1 is 6.1.0-fake"),
        ({"criu": ""}, "it has no CRIU that works"),
        ({"criu": "fake 0.9"}, "its CRIU is fake 0.9, older than fake 1 of b1"),
        ({"runtime": "crun 1.8"}, "its runtime is crun, and fake at b1"),
        ({"runtime": ""}, "its runtime is none, and fake at b1"),
        (
            {"cpu_features": frozenset()},
            "its CPU lacks avx, avx2, sse2, sse4_2, xsave, which programs on b1 may use",
        ),
        (
            {"cpu_features": frozenset({"xsave", "avx512f"})},
            "its CPU lacks avx, avx2, sse2, sse4_2, which programs on b1 may use",
        ),
    ],
    ids=["architecture", "kernel", "criu", "older", "runtime", "no runtime", "all features", "some features"],
)
def test_a_host_that_is_not_alike(
    world: World, monkeypatch: pytest.MonkeyPatch, there: dict[str, Any], why: str
) -> None:
    facts_of(world, monkeypatch, a2=there)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.INCOMPATIBLE_HOST, f"{NODE} cannot run on a2", why, "wherry status",
    )  # fmt: skip


@pytest.mark.parametrize(
    "there", [{"criu": "fake 1.0.1"}, {"criu": "fake 10"}, {"runtime": "fake 2"}, {"bundle": "f" * 64}]
)
def test_a_host_may_be_newer(world: World, monkeypatch: pytest.MonkeyPatch, there: dict[str, Any]) -> None:
    facts_of(world, monkeypatch, a2=there)
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION


def test_another_kernel_is_let_in_by_the_daemons_switch_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of a processor that only one of two kernels reports are not instructions for programs."""
    here = {"cpu_features": frozenset({"sse2", "avx2", "pti", "rep_good", "ept"})}
    facts_of(world, monkeypatch, b1=here, a2={"kernel": "6.12.1-fake", "cpu_features": frozenset({"sse2", "avx2"})})
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION))[2].startswith("its kernel is 6.12.1-fake")
    monkeypatch.setenv(SWITCH, "1")
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION
    facts_of(world, monkeypatch, b1=here, a2={"kernel": "6.12.1-fake", "cpu_features": frozenset({"sse2"})})
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION))[2].startswith("its CPU lacks avx2, which")
    one_kernel = {"kernel": "6.1.0-fake", "cpu_features": frozenset({"sse2", "avx2"})}
    facts_of(world, monkeypatch, b1=here, a2=one_kernel)
    assert "its CPU lacks ept, pti, rep_good" in refusal(lambda: world.moves.plan(NODE, DESTINATION))[2]


def test_other_cgroups_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(world, monkeypatch, b1={"cgroups": "v1"}, a2={"cgroups": "v2"})
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION))[2] == "its cgroups are v2, and v1 at b1"


def test_features_that_ranks_do_without_may_be_lacking(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(world, monkeypatch, a2={"cpu_features": frozenset({"sse2", "sse4_2", "xsave", "avx"})})
    put_spec(world, without_cpu_features=("avx2",))
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION
    put_spec(world, without_cpu_features=("avx",))
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION))[2].startswith("its CPU lacks avx2, which")


def test_many_lacking_features_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(world, monkeypatch, b1={"cpu_features": frozenset(f"f{number}" for number in range(7))})
    why = "its CPU lacks f0, f1, f2, f3, f4 and 2 more, which programs on b1 may use"
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION))[2] == why


def test_a_virtual_machine_brings_its_kernel_and_needs_no_criu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    facts_of(world, monkeypatch, a2={"kernel": "7", "criu": ""})
    world.moves._drivers["vm"] = world.driver
    put(world, kind="vm")
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION


@pytest.mark.parametrize("host", [SOURCE, DESTINATION])
def test_without_facts_nothing_is_compared(world: World, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    facts_of(world, monkeypatch, **{"a2": {"kernel": "7"}, host: None})  # type: ignore[arg-type]
    assert world.moves.plan(NODE, DESTINATION).destination.name == DESTINATION


def test_what_the_driver_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[str, str, str]]()

    def obstacle(source: Any, destination: Any) -> str:
        seen.append((source.node.name, source.host, destination.host))
        return "CRIU cannot dump another user's processes"

    def holds(place: Any) -> None:
        raise Refused(Code.UNSUPPORTED, "the node holds an object", f"a queue at {place.host}", "end that program")

    options = MoveOptions(parameters=MigrationParameters(mode="hybrid"))
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION, options)) == (
        Code.UNSUPPORTED, f"{NODE} cannot be moved with these options",
        "nodes in memory have no migration parameters", f"wherry move {NODE} --to HOST",
    )  # fmt: skip
    monkeypatch.setattr(world.driver, "require_movable", holds)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.UNSUPPORTED, "the node holds an object", f"a queue at {SOURCE}", "end that program",
    )  # fmt: skip
    monkeypatch.setattr(world.driver, "move_obstacle", obstacle)
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION)) == (
        Code.UNSUPPORTED, f"{NODE} cannot be moved", "CRIU cannot dump another user's processes", "wherry doctor",
    )  # fmt: skip
    assert seen == [(NODE, SOURCE, DESTINATION)]


@pytest.mark.parametrize(
    ("bandwidth", "remedy"),
    [(7 * 2**20, "give a larger --bandwidth"), (None, "give the link a larger bandwidth")],
)
def test_a_rate_below_what_the_mover_can_keep_to(tmp_path: Path, bandwidth: int | None, remedy: str) -> None:
    spec = fabric_spec()
    slow = spec.effective_links()[0].model_copy(update={"bandwidth": 8_000_000})
    world = World(tmp_path, spec.model_copy(update={"links": (slow,)}))
    world.make()
    world.driver.kind = "vm"
    rate = "7.34 Mbit/s" if bandwidth else "7.2 Mbit/s"
    why = "libvirt limits the rate in whole MiB/s: 8.39 Mbit/s is the least for a virtual machine"
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION, MoveOptions(bandwidth=bandwidth))) == (
        Code.UNSUPPORTED, f"the move of {NODE} cannot be limited to {rate}", why, remedy,
    )  # fmt: skip
    path = world.moves.plan(NODE, "b2").path
    assert path.rate is None and not path.budgets, "nothing limits it within a site"


def test_a_downtime_that_connections_do_not_survive(world: World) -> None:
    remedy = "give a larger --bandwidth, or the link a larger bandwidth"
    assert refusal(lambda: world.moves.check_standing(NODE, 300.1)) == (
        Code.UNSUPPORTED, f"node {NODE} would have a downtime of 300.1 s",
        "its connections survive at most 300.0 s", remedy,
    )  # fmt: skip
    world.moves.check_standing(NODE, 300.0)
    standing = MoveOptions(max_rounds=0, bandwidth=200_000)
    assert (
        refusal(lambda: world.moves.plan(NODE, DESTINATION, standing))[1]
        == f"node {NODE} would have a downtime of 335.6 s"
    )
    world.driver.parameters_obstacle = lambda _: ""  # type: ignore[method-assign]
    post_copy = standing.model_copy(update={"parameters": MigrationParameters(mode="post-copy")})
    assert world.moves.plan(NODE, DESTINATION, post_copy).predicted, "it runs on there, whatever is still missing"


def test_only_the_pager_compresses(world: World) -> None:
    world.driver.parameters_obstacle = lambda _: ""  # type: ignore[method-assign]
    options = MoveOptions(parameters=MigrationParameters(compress="on"))
    world.driver.engine = "criu"
    assert refusal(lambda: world.moves.plan(NODE, DESTINATION, options)) == (
        Code.UNSUPPORTED, f"{NODE} cannot be moved with --compress on",
        "the pager does not carry its memory here", "leave --compress out; wherry doctor shows what is missing",
    )  # fmt: skip
    world.driver.engine = "pager"
    assert world.moves.plan(NODE, DESTINATION, options).predicted


@pytest.mark.parametrize("error", [Failed(Code.FAILED, "no size"), LostContact(Code.UNREACHABLE, "silent")])
def test_a_node_that_cannot_be_measured_may_move(
    world: World, monkeypatch: pytest.MonkeyPatch, error: WherryError
) -> None:
    def predict(_mover: FakeMover, _seconds: float) -> Measured:
        raise error

    monkeypatch.setattr(FakeMover, "predict", predict)
    options = MoveOptions(max_rounds=3)
    plan = world.moves.plan(NODE, DESTINATION, options)
    assert (plan.node.name, plan.destination.name, plan.options) == (NODE, DESTINATION, options)
    assert plan.predicted is None and plan.unpredicted is error
    assert world.moves.apply(plan).predicted is None


def test_a_plan_that_the_node_outran(world: World) -> None:
    plan = world.moves.plan(NODE, DESTINATION)
    world.moves.run(NODE, "b2")
    assert refusal(lambda: world.moves.apply(plan)) == (
        Code.WRONG_STATE, f"{NODE} is on b2 now", "it was moved after this was planned", "repeat the command",
    )  # fmt: skip
    assert len(world.store.moves()) == 1


def test_a_move_that_cannot_be_made_after_its_rows_were_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.moves.plan(NODE, DESTINATION)

    def mover(*_: object) -> FakeMover:
        raise OSError("no file descriptors")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no file descriptors"):
        patched.setattr(world.driver, "mover", mover)
        world.moves.apply(plan)
    world.assert_one_copy(NODE, SOURCE)
    assert [move.phase for move in world.store.moves()] == [Phase.ROLLED_BACK]
    assert world.moves.apply(plan).phase == Phase.DONE


def test_a_move_reads_each_row_once_to_be_planned_and_once_to_be_admitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Counter[str]()

    def counted(name: str) -> None:
        read = getattr(world.store, name)

        def counting(*words: Any, **more: Any) -> Any:
            reads[name] += 1
            return read(*words, **more)

        monkeypatch.setattr(world.store, name, counting)

    for name in ("node", "cluster", "moves"):
        counted(name)
    plan = world.moves.plan(NODE, DESTINATION)
    assert reads == {"node": 1, "cluster": 1, "moves": 1}
    world.moves.apply(plan)
    assert reads == {"node": 2, "cluster": 2, "moves": 2}


# Obstacles that are named before any move begins: of a node, and of each host that it could go to.


def check(world: World) -> NodeCheck:
    placements = Placements(world.store, world.fabric)
    return MoveChecks(world.store, world.fabric, {"container": world.driver}, placements).node(NODE)


def test_each_other_host_has_its_own_reason(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(b2={"without_cpu_features": ["avx"]}))
    world.make()
    world.store.set_host_flag("a1", DRAINED, True)
    world.fabric.set_down("a2", True)
    found = check(world)
    assert (found.node, found.host, found.hindrances) == (NODE, SOURCE, ())
    reasons = {host.host: host.obstacle for host in found.hosts}
    assert set(reasons) == {"a1", "a2", "b2"}
    assert "a1 is drained" in reasons["a1"] and "a2 is down" in reasons["a2"], reasons


def test_what_the_node_itself_holds_is_told_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make()
    world.driver.immovable = "process 7 (server) holds an io_uring"
    found = check(world)
    (one,) = found.hindrances
    assert one.prevents and one.text == world.driver.immovable
    assert {host.obstacle for host in found.hosts} == {""}
    with pytest.raises(Refused) as caught:
        world.moves.plan(NODE, "a1")
    assert caught.value.why == one.text


def test_it_is_asked_over_rest(service: Service) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        node = client.nodes("hello")[0]
        found = client.check_node(node.name)
        assert found.host == node.host and {host.host for host in found.hosts} == {"a1", "a2", "b1"} - {node.host}
        with pytest.raises(Refused, match="no node is named"):
            client.check_node("none-1")
        with pytest.raises(Refused, match="there is no job"):
            client.check_job("none")
        job = client.run("hello", ["/bin/true"], 2)
        assert {one.node for one in client.check_job(job.id).nodes} <= {one.name for one in client.nodes("hello")}
