"""Pins: their words in a file, the CPUs that nodes get, and their changes by a move."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import OWNER, World, fabric_spec

from wherry.base.cpu_list import format_cpu_list, parse_cpu_list
from wherry.base.errors import Code, Failed, Refused
from wherry.cluster.plan import need_of
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.fake import FakeFabric
from wherry.model.records import Host, HostFacts, Move, Node, NodeState, Phase, Pin
from wherry.model.spec.cluster import ClusterSpec, PinSpec
from wherry.model.spec.parse import parse
from wherry.node.container.host import ThreadAttributes
from wherry.node.container.thread_attributes import translated
from wherry.schedule.pinning import pin_after_move, pin_at_start, pinned_count, taken_on
from wherry.schedule.placement import NodeNeed, Used, choose_host, choose_places, shortage, used_by
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import World as StepWorld
from wherry.schedule.tentative_placement import TentativePlacement
from wherry.store import codec


def spec(**keys: object) -> ClusterSpec:
    return parse(ClusterSpec, {"name": "c", "nodes": 2, **keys}, "the file")


def host(cpus: int = 4, numa: int = 2) -> Host:
    each = cpus // numa
    facts = HostFacts(
        kernel="6",
        architecture="x",
        cpu_model="m",
        cpu_features=frozenset(),
        memory=1,
        runtime="",
        criu="1",
        cpus=tuple(range(cpus)),
        numa={number: tuple(range(number * each, number * each + each)) for number in range(numa)},
    )
    return Host(name="a1", site="a", cores=cpus, memory=1 << 40, facts=facts)


def node(name: str, pin: Pin | None, at: str = "a1") -> Node:
    return Node(name=name, cluster="c", index=0, host=at, address="10.0.0.1", mac="m", cpus=1, memory=1, pin=pin)


@pytest.mark.parametrize("text, cpus", [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3,1,1", (1, 3)), ("0 , 2", (0, 2))])
def test_lists_of_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus and parse_cpu_list(format_cpu_list(cpus)) == cpus
    assert format_cpu_list((0, 1, 2, 5)) == "0-2,5"


@pytest.mark.parametrize("text", ["", "a", "1-", "2-1", "-1", "99999", "1;2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpu_list(text)


def test_a_file_says_which_cpus() -> None:
    assert spec().flavor(0).pin is None and pinned_count(spec().flavor(0)) == 0
    assert (
        spec(pin="cores", cpus=1.5).flavor(1).pin == PinSpec()
        and pinned_count(spec(pin="cores", cpus=1.5).flavor(0)) == 2
    )
    assert spec(pin={"cpus": "0-1", "memory": 0}).flavor(0).pin == PinSpec(cpus=(0, 1), memory=0)
    stored = spec(pin={"cpus": "0-1", "memory": 0}, memory="64MiB")
    assert codec.load(ClusterSpec, codec.dump(stored)) == stored
    assert spec(pin={"cpus": 1}).flavor(0).pin == PinSpec(cpus=(1,))
    assert spec(pin={"cpus": [1, 0, 1]}).flavor(0).pin == PinSpec(cpus=(0, 1))
    groups = [{"pin": {"cpus": 0}}, {"count": 2}]
    assert [spec(nodes=groups, pin="cores").flavor(i).pin for i in range(2)] == [PinSpec(cpus=(0,)), PinSpec()]


@pytest.mark.parametrize(
    "pin, cpus, said",
    [
        ("all", 1, "write cores"),
        ({"cpus": "x"}, 1, "no list"),
        ({"cpus": 0}, 2, "fewer"),
        ({"cpus": [0, 0]}, 2, "fewer"),
        ({"core": 1}, 1, "cpus"),
    ],
)
def test_bad_pins_are_named(pin: object, cpus: int, said: str) -> None:
    with pytest.raises(Refused) as refused:
        spec(pin=pin, cpus=cpus)
    assert said in f"{refused.value} {refused.value.why}"


def test_nodes_get_free_cpus_of_one_numa_node() -> None:
    flavor, there = spec(pin="cores", cpus=2).flavor(0), host()
    assert pin_at_start("c-0", flavor, there, {}) == Pin(cpus=(0, 1))
    assert pin_at_start("c-1", flavor, there, {0: "c-0"}) == Pin(cpus=(2, 3))
    assert pin_at_start("c-1", flavor, there, {0: "c-0", 2: "d-0"}) == Pin(cpus=(1, 3)), (
        "of two, if there is no other way"
    )
    bound = spec(pin={"memory": 1}, cpus=2).flavor(0)
    assert pin_at_start("c-0", bound, there, {}) == Pin(cpus=(2, 3), memory=1)
    for full in ({1: "c-0", 2: "d-0", 3: "e-0"}, {2: "d-0"}):
        with pytest.raises(Refused) as refused:
            pin_at_start("c-1", flavor if len(full) == 3 else bound, there, full)
        assert refused.value.code is Code.NO_CAPACITY and "d-0 has 2" in refused.value.why


def test_named_cpus_are_these_or_none() -> None:
    flavor = spec(pin={"cpus": "2-3", "memory": 1}, cpus=2).flavor(0)
    assert pin_at_start("c-0", flavor, host(), {}) == Pin(cpus=(2, 3), memory=1)
    for there, taken, why in ((host(2), {}, "no NUMA node|no CPU 2-3"), (host(), {3: "d-1"}, "CPU 3 is d-1's")):
        with pytest.raises(Refused) as refused:
            pin_at_start("c-0", flavor, there, taken)
        assert any(part in refused.value.why for part in why.split("|"))
    unknown = host().model_copy(update={"facts": None})
    with pytest.raises(Refused) as refused:
        pin_at_start("c-0", flavor, unknown, {})
    assert refused.value.code is Code.UNSUPPORTED


def test_a_move_keeps_the_cpus_or_takes_as_many_others() -> None:
    pinned = node("c-0", Pin(cpus=(2, 3), memory=1), "b1")
    want = PinSpec(cpus=(2, 3), memory=1)
    assert pin_after_move(pinned, want, host(), {}) == pinned.pin
    assert pin_after_move(pinned, want, host(), {2: "d-0"}) == Pin(cpus=(0, 1), memory=0)
    assert pin_after_move(node("c-1", None, "b1"), None, host(), {}) is None
    with pytest.raises(Refused) as refused:
        pin_after_move(pinned, want, host(), {2: "d-0", 0: "d-1"})
    assert "needs 2 of one NUMA node" in refused.value.why
    free = node("c-0", Pin(cpus=(0, 1)), "b1")
    assert pin_after_move(free, PinSpec(), host(), {2: "d-0", 0: "d-1"}) == Pin(cpus=(1, 3))


def test_who_has_which_cpu() -> None:
    move = Move(
        id="mv",
        node="e-0",
        cluster="e",
        source="b1",
        destination="a1",
        phase=Phase.ROUNDS,
        created=0,
        pin=Pin(cpus=(3,)),
    )
    nodes = [node("c-0", Pin(cpus=(0,))), node("d-0", Pin(cpus=(1,)), "b1"), node("d-1", None)]
    assert taken_on("a1", nodes, [move]) == {0: "c-0", 3: "e-0"}


def test_room_is_counted_in_whole_cpus_for_pinned_nodes() -> None:
    assert not shortage(host(2, 1), Used(1.0, 0, 1, 1), NodeNeed(0.5, 0, 1))
    assert "left to pin" in shortage(host(2, 1), Used(1.0, 0, 1, 1), NodeNeed(0.5, 0, 2))
    assert not shortage(host(2, 1), Used(1.0, 0, 1, 1), NodeNeed(0.5, 0)), "others run anywhere"


def test_hosts_in_memory_tell_their_cpus() -> None:
    facts = FakeFabric(default_fabric()).facts("a1")
    assert facts.cpus == (0, 1) and facts.numa == {0: (0,), 1: (1,)}


def test_pins_are_in_rows_and_move_along(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    plan = world.clusters.plan(ClusterSpec(name="c", nodes=2, cpus=0.5, pin=PinSpec(), hosts=("a1", "a2")), OWNER)
    assert [step.pin for step in plan.steps] == [Pin(cpus=(0,))] * 2 and "pinned to CPUs 0" in plan.text()
    world.clusters.apply(plan)
    world.make("d", 1, cpus=0.5, pin=PinSpec(cpus=(0,)), hosts=("b1",))
    move = world.moves.run("c-1", "b1")
    moved = world.store.node("c-1")
    assert move.pin == Pin(cpus=(1,)) and moved and (moved.host, moved.pin) == ("b1", Pin(cpus=(1,)))
    with pytest.raises(Refused) as refused:
        world.moves.plan("c-0", "b1")
    assert refused.value.code is Code.NO_CAPACITY and "to pin nodes to" in refused.value.why
    with pytest.raises(Refused) as refused:
        world.clusters.plan(ClusterSpec(name="e", nodes=1, cpus=0.5, pin=PinSpec(cpus=(0,)), hosts=("a1",)), OWNER)
    assert "CPU 0 is c-0's" in refused.value.why
    with pytest.raises(Refused) as refused:
        world.clusters.plan(ClusterSpec(name="c", nodes=2, cpus=0.5, hosts=("a1", "a2")), OWNER)
    assert "pin of a running cluster" in refused.value.what


def test_a_move_that_is_rolled_back_leaves_the_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("c", 1, pin=PinSpec(), hosts=("a1",))
    world.make("d", 1, pin=PinSpec(), hosts=("b1",))
    with pytest.raises(Failed):
        world.moves.run("c-0", "b1", fault="restore:fail")
    node = world.store.node("c-0")
    assert node and (node.host, node.pin) == ("a1", Pin(cpus=(0,)))


def test_threads_keep_their_place_among_the_cpus_of_their_node() -> None:
    threads = {1: ThreadAttributes(frozenset({2}), 0, 50000), 2: ThreadAttributes(frozenset({2, 3}), 0, 50000)}
    moved = translated(threads, Pin(cpus=(2, 3)), Pin(cpus=(0, 5)))
    assert {one: set(about.cpus) for one, about in moved.items()} == {1: {0}, 2: {0, 5}}
    assert translated(threads, None, None) is threads


def lost(world: World, *pins: tuple[int, ...]) -> None:
    """The nodes of cluster c are lost; their rows have these pins."""
    for row, cpus in zip(world.store.nodes("c"), pins, strict=True):
        world.driver.placements.pop((row.name, row.host))
        world.store.put_node(row.model_copy(update={"state": NodeState.LOST, "pin": Pin(cpus=cpus)}))


def test_repaired_nodes_may_exchange_their_cpus(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("c", 2, pin=PinSpec(), hosts=("a1",))
    lost(world, (1,), (0,))
    world.make("c", 2, pin=PinSpec(), hosts=("a1",))
    assert [row.pin for row in world.store.nodes("c")] == [Pin(cpus=(0,)), Pin(cpus=(1,))]


def test_a_repaired_node_takes_no_cpu_that_another_got_meanwhile(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("c", 1, pin=PinSpec(), hosts=("a1",))
    lost(world, (0,))

    def take(name: str) -> None:
        if name == "stop" and world.store.node("d-0") is None:
            world.store.put_node(node("d-0", Pin(cpus=(0,))).model_copy(update={"cluster": "d"}))

    world.watch(take)
    with pytest.raises(Failed, match="CPU 0 of host a1 is another node's by now"):
        world.make("c", 1, pin=PinSpec(), hosts=("a1",))


def test_a_node_that_is_removed_leaves_its_cpus(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("c", 2, cpus=0.5, pin=PinSpec(), hosts=("a1",))
    lost(world, (0,), (1,))
    world.store.put_node(node("d-0", Pin(cpus=(0,))).model_copy(update={"cluster": "d", "cpus": 0.5}))
    plan = world.clusters.plan(ClusterSpec(name="c", nodes=1, cpus=0.5, pin=PinSpec(), hosts=("a1",)), OWNER)
    assert plan.steps[0].pin == Pin(cpus=(1,))


def on(name: str, cpus: int = 4, numa: int = 2, speed: float = 1.0) -> Host:
    return host(cpus, numa).model_copy(update={"name": name, "site": name[0], "speed": speed})


def chosen(cluster: ClusterSpec, hosts: list[Host], used: dict[str, Used]) -> list[str]:
    needs = [need_of(cluster, index) for index in range(cluster.size)]
    return [place.host for place in choose_places(needs, hosts, used, cluster.placement)]


@pytest.mark.parametrize(
    ("pin", "cpus", "host_of_it"),
    [
        ({"cpus": "4-5"}, 2, "b1"),
        ({"cpus": "0"}, 1, "b1"),
        ({"memory": 3}, 1, "b1"),
        ({"memory": 0}, 2, "b1"),
        ("cores", 3, "b1"),
        ("cores", 2, "a1"),
    ],
)
def test_a_new_node_goes_where_its_cpus_are(pin: object, cpus: int, host_of_it: str) -> None:
    """The fastest host has CPUs 0 to 3 on two NUMA nodes, 0 and 2 are another's; the slow one has 8 on four."""
    others = [node("d-0", Pin(cpus=(0, 2)), "a1")]
    hosts = [on("a1", speed=2.0), on("a2").model_copy(update={"facts": None}), on("b1", 8, 4, speed=0.5)]
    assert chosen(spec(pin=pin, cpus=cpus, nodes=1), hosts, used_by(others)) == [host_of_it]


def test_who_names_cpus_is_placed_before_who_wants_any(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("d", 3, cpus=0.5, pin=PinSpec(cpus=(1,)), hosts=("a2", "b1", "b2"))
    groups = [{"pin": "cores", "cpus": 1}, {"pin": {"cpus": "0-1"}, "cpus": 2}]
    plan = world.clusters.plan(spec(nodes=groups), OWNER)
    assert [(step.host, step.pin) for step in plan.steps] == [("a2", Pin(cpus=(0,))), ("a1", Pin(cpus=(0, 1)))]


def test_nodes_of_one_file_are_placed_with_each_others_cpus_in_mind(tmp_path: Path) -> None:
    """Each names CPU 0, so each has a host of its own; a fifth has none, and the refusal has the reason."""
    world = World(tmp_path, fabric_spec(cores=2))
    plan = world.clusters.plan(spec(nodes=4, cpus=0.5, pin={"cpus": 0}, placement="pack"), OWNER)
    assert sorted(step.host for step in plan.steps) == ["a1", "a2", "b1", "b2"]
    with pytest.raises(Refused) as refused:
        world.clusters.plan(spec(nodes=5, cpus=0.5, pin={"cpus": 0}), OWNER)
    assert refused.value.code is Code.NO_CAPACITY and "5 nodes are wanted and 4 fit" in refused.value.what
    assert "on host a1 CPU 0 is another new node's" in refused.value.why


def test_hosts_that_pin_nothing_are_told_from_full_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    facts = world.fabric.facts("a1").model_copy(update={"cpus": (), "numa": {}})
    monkeypatch.setattr(world.fabric, "facts", lambda _host: facts)
    with pytest.raises(Refused) as refused:
        world.clusters.plan(spec(nodes=1, pin="cores"), OWNER)
    assert refused.value.code is Code.UNSUPPORTED and "leave pin out" in refused.value.next


def test_a_lost_node_is_repaired_where_its_cpus_are_free(tmp_path: Path) -> None:
    world = World(tmp_path, fabric_spec(cores=2))
    world.make("c", 1, cpus=0.5, pin=PinSpec(cpus=(0,)), hosts=("a1", "b1"))
    lost(world, (0,))
    world.store.put_node(node("d-0", Pin(cpus=(0,))).model_copy(update={"cluster": "d", "cpus": 0.5}))
    world.make("c", 1, cpus=0.5, pin=PinSpec(cpus=(0,)), hosts=("a1", "b1"))
    row = world.store.node("c-0")
    assert row and (row.host, row.pin) == ("b1", Pin(cpus=(0,)))


def test_a_lost_node_gets_the_cpus_that_its_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where these are of two NUMA nodes: a node that moves would want as many of one, for its bound memory."""
    world = World(tmp_path, fabric_spec(cores=2))
    facts = world.fabric.facts("a1").model_copy(update={"cpus": (0, 1), "numa": {0: (0,), 1: (1,)}})
    monkeypatch.setattr(world.fabric, "facts", lambda _host: facts)
    pin = PinSpec(cpus=(0, 1), memory=0)
    world.make("c", 1, cpus=2, pin=pin, hosts=("a1", "b1"))
    row = world.store.node("c-0")
    assert row and (row.host, row.pin) == ("a1", Pin(cpus=(0, 1), memory=0))
    lost(world, (0, 1))
    world.store.put_node(row.model_copy(update={"state": NodeState.LOST}))
    world.store.put_node(node("d-0", Pin(cpus=(0,))).model_copy(update={"cluster": "d", "cpus": 0.5}))
    world.make("c", 1, cpus=2, pin=pin, hosts=("a1", "b1"))
    row = world.store.node("c-0")
    assert row and (row.host, row.pin) == ("b1", Pin(cpus=(0, 1), memory=0))


def test_a_drain_looks_for_cpus_of_one_numa_node_for_bound_memory() -> None:
    bound = node("c-0", Pin(cpus=(0, 1), memory=0), "a1")
    others = [
        *(node(f"d-{cpu}", Pin(cpus=(cpu,)), "a2") for cpu in (0, 2)),
        *(node(f"e-{number}", None, "b1") for number in range(3)),
    ]
    hosts = [on(name) for name in ("a1", "a2", "b1")]
    assert choose_host(bound, hosts, used_by(others)) == "b1", "a2 has fewer nodes, but no two CPUs of one NUMA node"
    assert choose_host(bound.model_copy(update={"pin": Pin(cpus=(0, 1))}), hosts, used_by(others)) == "a2"
    with pytest.raises(Refused) as refused:
        choose_host(bound, hosts[:2], used_by(others))
    assert "host a2 has 1 CPUs of one NUMA node left to pin nodes to, the node needs 2" in refused.value.why


def test_balancing_proposes_no_host_without_the_cpus() -> None:
    bound = node("c-0", Pin(cpus=(0, 1), memory=0), "a1")
    others = [node(f"d-{cpu}", Pin(cpus=(cpu,)), "a2") for cpu in (0, 2)]
    hosts = {name: on(name) for name in ("a1", "a2", "b1")}
    tried = TentativePlacement([bound], StepWorld(hosts, Routes([]), {}, {}), used_by([bound, *others]))
    assert not tried.fits(bound, "a2") and tried.fits(bound, "b1")
    tried.move(bound, "b1")
    again = node("c-1", Pin(cpus=(0, 1, 2)), "a1")
    assert not tried.fits(again, "b1"), "planned moves count too"


def test_a_moving_node_holds_its_cpus_at_both_ends() -> None:
    moving = node("c-0", Pin(cpus=(1,)))
    way = {"source": "a1", "destination": "b1", "pin": Pin(cpus=(3,))}
    move = Move(id="m", node="c-0", cluster="c", phase=Phase.ROUNDS, created=0, **way)
    used = used_by([moving], [move])
    assert used["a1"].held == {1: "c-0"} and used["b1"].held == {3: "c-0"} and used["b1"].pinned == 1
