"""Placement: never over capacity, never on a host that is down or drained, the same every time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.model.records import Host, Move, Node, NodeState, Phase, Prediction
from wherry.model.spec.cluster import PlacementSpec
from wherry.model.spec.fabric import LinkSpec
from wherry.schedule.cost import downtime
from wherry.schedule.placement import NodeNeed, Used, choose_host, choose_places, shortage, used_by
from wherry.schedule.routes import SHARE, Routes
from wherry.schedule.step_model import World
from wherry.schedule.tentative_placement import TentativePlacement

GIB = 2**30
NEED = NodeNeed(1.0, GIB)


def place_nodes(*args: Any, **more: Any) -> list[str]:
    return [place.host for place in choose_places(*args, **more)]


def hosts(*names: str, cores: float = 2, memory: int = 4 * GIB) -> list[Host]:
    return [Host(name=name, site=name[0], cores=cores, memory=memory) for name in names]


def node(name: str, host: str, cpus: float = 1, memory: int = GIB) -> Node:
    running = NodeState.RUNNING
    return Node(name=name, cluster="c", index=0, host=host, address="", mac="", cpus=cpus, memory=memory, state=running)


def test_spread_over_hosts_in_declared_order() -> None:
    assert place_nodes([NEED] * 6, hosts("a1", "a2", "b1"), {}, PlacementSpec()) == ["a1", "a2", "b1", "a1", "a2", "b1"]


def test_spread_prefers_hosts_with_fewer_nodes() -> None:
    used = {"a1": Used(1, GIB, 1)}
    assert place_nodes([NEED] * 2, hosts("a1", "a2", "b1"), used, PlacementSpec()) == ["a2", "b1"]


def test_pack_fills_a_host_first() -> None:
    assert place_nodes([NEED] * 3, hosts("a1", "a2"), {}, PlacementSpec(spread="pack")) == ["a1", "a1", "a2"]


def test_sites_share_evenly_and_neighbours_are_at_one_site() -> None:
    chosen = place_nodes([NEED] * 4, hosts("a1", "a2", "b1", "b2"), {}, PlacementSpec(spread="site"))
    assert chosen == ["a1", "a2", "b1", "b2"]
    assert place_nodes([NEED] * 3, hosts("a1", "b1", "b2"), {}, PlacementSpec(spread="site")) == ["a1", "b1", "b2"]
    chosen = place_nodes([NEED] * 4, hosts("b1", "b2", "a1", "a2"), {}, PlacementSpec(spread="site"))
    assert chosen == ["b1", "b2", "a1", "a2"], "sites in declared order, not by name"
    chosen = place_nodes([NEED], hosts("a1", "a2", "b1"), {}, PlacementSpec(spread="site"), own={"a1": 1})
    assert chosen == ["b1"], "the cluster has nothing at site b yet"


def test_max_per_host_counts_what_the_cluster_has() -> None:
    spec = PlacementSpec(spread="pack", max_per_host=1)
    assert place_nodes([NEED], hosts("a1", "a2"), {}, spec, own={"a1": 1}) == ["a2"]
    with pytest.raises(Refused, match="2 nodes are wanted and 1 fit") as caught:
        place_nodes([NEED] * 2, hosts("a1", "a2"), {}, spec, own={"a1": 1})
    assert caught.value.why.count("has 1 nodes already (placement.max_per_host)") == 2
    spec = PlacementSpec(spread="pack", max_per_host=2)
    assert place_nodes([NEED] * 3, hosts("a1", "a2", cores=4), {}, spec) == ["a1", "a1", "a2"]


def test_pack_knows_how_many_a_site_takes_with_max_per_host() -> None:
    one, two = (PlacementSpec(spread="pack", max_per_host=most) for most in (1, 2))
    assert place_nodes([NEED] * 2, hosts("a1", "b1", "b2"), {}, one) == ["b1", "b2"], "site a takes one of the two"
    assert place_nodes([NEED] * 2, hosts("a1", "b1", "b2"), {}, two) == ["a1", "a1"], "both sites take both"
    chosen = place_nodes([NEED] * 3, hosts("a1", "b1", "b2", cores=4), {}, two)
    assert chosen == ["b1", "b1", "b2"], "site a takes two of the three"


def test_sites_and_hosts_limit() -> None:
    assert place_nodes([NEED], hosts("a1", "b1"), {}, PlacementSpec(), sites=["b"]) == ["b1"]
    assert place_nodes([NEED], hosts("a1", "b1", "b2"), {}, PlacementSpec(), only_hosts=["b2"]) == ["b2"]


def test_too_many_says_how_many_fit_and_why() -> None:
    with pytest.raises(Refused) as caught:
        place_nodes([NEED] * 9, hosts("a1", "a2"), {}, PlacementSpec())
    assert caught.value.code == Code.NO_CAPACITY and caught.value.what == "9 nodes are wanted and 4 fit"
    each = [f"host {name} has 0 CPUs left, the node needs 1" for name in ("a1", "a2")]
    assert caught.value.why == "; ".join(each)
    assert caught.value.next.endswith("see what is taken: wherry status")
    with pytest.raises(Refused) as caught:
        place_nodes([NEED] * 9, hosts(*(f"a{n}" for n in range(4))), {}, PlacementSpec())
    assert "more hosts" not in caught.value.why
    with pytest.raises(Refused) as caught:
        place_nodes([NEED] * 11, hosts(*(f"a{n}" for n in range(5))), {}, PlacementSpec())
    assert caught.value.why.endswith("host a3 has 0 CPUs left, the node needs 1; and 1 more hosts")
    with pytest.raises(Refused) as caught:
        place_nodes([NEED] * 13, hosts(*(f"a{n}" for n in range(6))), {}, PlacementSpec())
    assert caught.value.why.count("; ") == 4 and caught.value.why.endswith("; and 2 more hosts")
    with pytest.raises(Refused) as caught:
        place_nodes([NEED], hosts("a1"), {}, PlacementSpec(), sites=["b"])
    assert caught.value.why == "no host is allowed by the file's sites and hosts"


def test_tenths_of_a_cpu_add_up() -> None:
    assert len(place_nodes([NodeNeed(0.1, 1)] * 10, hosts("a1", cores=1), {}, PlacementSpec())) == 10


def test_memory_that_is_left() -> None:
    (host,) = hosts("a1")
    told = "host a1 has {} of memory left, the node needs 1.0 GiB"
    assert shortage(host, Used(1, 3 * GIB + 2**20, 1), NEED) == told.format("1023.0 MiB")
    assert shortage(host, Used(1, 5 * GIB, 1), NEED) == told.format("0 B"), "it was found to have less than declared"
    assert shortage(host, Used(1, 3 * GIB, 1), NEED) == ""


def test_choose_for_a_drain() -> None:
    used = {"a2": Used(1, GIB, 1)}
    assert choose_host(node("c-0", "a1"), hosts("a1", "a2", "b1"), used) == "b1"
    with pytest.raises(Refused, match="no host can take c-0") as caught:
        choose_host(node("c-0", "a1", memory=5 * GIB), hosts("a1", "a2"), {})
    why = "host a2 has 4.0 GiB of memory left, the node needs 5.0 GiB"
    assert (caught.value.code, caught.value.why, caught.value.next) == (Code.NO_CAPACITY, why, "wherry status")


def test_a_moving_node_takes_both_hosts() -> None:
    move = Move(id="m", node="c-0", cluster="c", source="a1", destination="a2", phase=Phase.RESTORE, created=0)
    used = used_by([node("c-0", "a1"), node("c-1", "a1")], [move])
    assert used == {"a1": Used(2, 2 * GIB, 2), "a2": Used(1, GIB, 1)}


names = st.text("abcdef", min_size=1, max_size=3)
a_host = st.builds(
    Host,
    name=names,
    site=st.sampled_from(["x", "y"]),
    cores=st.sampled_from([0.5, 1, 2, 4]),
    memory=st.integers(1, 8).map(lambda n: n * GIB),
    drained=st.booleans(),
    down=st.booleans(),
)
needs = st.lists(st.builds(NodeNeed, st.sampled_from([0.1, 0.5, 1.0, 3.0]), st.integers(1, 3 * GIB)), max_size=12)
spreads = st.sampled_from(["host", "site", "pack"])
specs = st.builds(PlacementSpec, spread=spreads, max_per_host=st.none() | st.integers(1, 3))


@given(
    wanted=needs,
    hosts=st.lists(a_host, max_size=6, unique_by=lambda h: h.name),
    taken=st.dictionaries(names, st.builds(Used, st.floats(0, 4), st.integers(0, 8 * GIB))),
    spec=specs,
)
def test_never_over_capacity(
    wanted: list[NodeNeed], hosts: list[Host], taken: dict[str, Used], spec: PlacementSpec
) -> None:
    try:
        chosen = place_nodes(wanted, hosts, taken, spec)
    except Refused as error:
        assert error.code == Code.NO_CAPACITY
        return
    assert chosen == place_nodes(wanted, hosts, taken, spec)
    assert len(chosen) == len(wanted)
    by_name, used = {host.name: host for host in hosts}, dict(taken)
    for need, name in zip(wanted, chosen, strict=True):
        assert shortage(by_name[name], used.get(name, Used()), need) == ""
        assert not by_name[name].down and not by_name[name].drained
        used[name] = used.get(name, Used()).plus(need)
        assert used[name].memory <= by_name[name].memory and used[name].cpus <= by_name[name].cores + 1e-6
        assert spec.max_per_host is None or chosen.count(name) <= spec.max_per_host


def test_pack_takes_the_site_that_has_room_for_all() -> None:
    used, spec = {"a1": Used(2, GIB, 2)}, PlacementSpec(spread="pack")
    assert place_nodes([NEED] * 4, hosts("a1", "a2", "b1", "b2"), used, spec) == ["b1", "b1", "b2", "b2"]
    assert place_nodes([NEED] * 2, hosts("a1", "b1", "a2", "b2"), used, spec) == ["a2", "a2"]
    assert place_nodes([NEED] * 3, hosts("a1", "b1", "a2", "b2"), {}, spec) == ["a1", "a1", "a2"]
    assert place_nodes([NEED] * 2, hosts("a1", "b1", "a2", "b2"), {}, spec, own={"b1": 1}) == ["b1", "b1"]


def test_the_faster_host_is_chosen_where_the_file_leaves_it_open() -> None:
    slow, fast = hosts("a1", "b1", cores=4)
    slow = slow.model_copy(update={"speed": 0.5})
    places = choose_places([NEED] * 3, [slow, fast], {}, PlacementSpec())
    assert [place.host for place in places] == ["b1", "b1", "b1"]
    assert places[0].why == "speed 1, 0 nodes there" and places[2].why == "speed 1, 2 nodes there"


def test_who_asks_for_a_spread_gets_it_and_of_equal_hosts_the_faster() -> None:
    slow, fast, other = hosts("a1", "a2", "b1", cores=4)
    machines = [slow.model_copy(update={"speed": 0.5}), fast, other]
    assert place_nodes([NEED] * 4, machines, {}, PlacementSpec(spread="host")) == ["a2", "b1", "a1", "a2"]
    assert place_nodes([NEED] * 3, machines, {}, PlacementSpec(spread="site")) == ["a2", "a2", "b1"]
    assert place_nodes([NEED] * 2, machines, {}, PlacementSpec(spread="pack")) == ["a2", "a2"]


def test_a_host_on_which_others_compute_is_left_out_while_there_are_idle_ones() -> None:
    places = choose_places([NEED] * 3, hosts("a1", "a2"), {}, PlacementSpec(), loads={"a1": 1.5, "a2": 0.01})
    assert [place.host for place in places] == ["a2", "a2", "a1"]
    assert places[0].why == "speed 1, 0.0 of 2 CPUs in use, 0 nodes there"
    assert places[2].why == "speed 1, 1.5 of 2 CPUs in use, 0 nodes there, leaves 0.50 for each CPU"


def test_a_load_that_leaves_cpus_to_spare_changes_nothing() -> None:
    loads = {"a1": 0.6, "a2": 0.0}
    assert place_nodes([NEED] * 2, hosts("a1", "a2"), {}, PlacementSpec(), loads=loads) == ["a1", "a2"]


# A placement that is tried move by move, and how long a node that is moved over a link is frozen.


ROADS = Routes([LinkSpec.model_validate({"between": ("a", "b"), "latency": "10ms", "bandwidth": "80Mbit/s"})])


def host(name: str, cores: float = 4) -> Host:
    return Host(name=name, site=name[0], cores=cores, memory=4 * GIB)


def node_at(number: int, where: str, cpus: float = 1) -> Node:
    return Node(
        name=f"c-{number}", cluster="c", index=number, host=where, address="", mac="", cpus=cpus, memory=GIB,
        state=NodeState.RUNNING,
    )  # fmt: skip


def trial(*nodes: Node, most: int | None = None) -> TentativePlacement:
    hosts = {name: host(name, 3) for name in ("a1", "a2", "b1")}
    return TentativePlacement(nodes, World(hosts, ROADS, {}, {}), used_by(nodes), most=most)


def test_a_move_takes_its_cpus_along() -> None:
    """Of a host with 3 cores, 2 + 2 CPUs get three quarters each, and 2 alone get all that they ask for."""
    first, second, third = nodes = node_at(0, "a1", 2), node_at(1, "a1", 2), node_at(2, "a2", 2)
    tried = trial(*nodes)
    assert tried.cpu_share(first, "a1") == 0.75 and tried.cpu_share(third, "a2") == 1
    tried.move(first, "a2")
    assert tried.where == {"c-0": "a2", "c-1": "a1", "c-2": "a2"}
    assert tried.cpu_share(second, "a1") == 1 and tried.cpu_share(third, "a2") == tried.cpu_share(first, "a2") == 0.75
    tried.move(third, "b1")
    assert tried.cpu_share(first, "a2") == 1 and tried.cpu_share(third, "b1") == 1


def test_a_host_that_is_left_counts_as_taken() -> None:
    """Both by the room of its nodes, until the move is done, and by how many of them it may have."""
    first, second = nodes = node_at(0, "a1", 3), node_at(1, "a2", 1)
    tried = trial(*nodes)
    assert not tried.fits(second, "a1") and tried.fits(second, "b1")
    tried.move(first, "b1")
    assert not tried.fits(second, "a1"), "the copy there goes when the move is over"
    assert not tried.fits(second, "b1")
    nodes = node_at(0, "a1"), node_at(1, "a2"), node_at(2, "a2")
    tried = trial(*nodes, most=2)
    assert tried.fits(nodes[1], "a1") and not tried.fits(nodes[0], "a2")
    tried.move(nodes[1], "a1")
    assert not tried.fits(nodes[2], "a1")


def test_several_nodes_come_and_go() -> None:
    """Of a host with 3 cores; nodes that leave and nodes that arrive are counted one by one."""
    nodes = node_at(0, "a1", 2), node_at(1, "a1", 1), node_at(2, "a2", 1), node_at(3, "b1", 1)
    tried = trial(*nodes, most=4)
    tried.move(nodes[0], "a2")
    assert tried.cpu_share(node_at(1, "a1", 1), "a1") == 1 and tried.cpu_share(nodes[2], "a2") == 1
    assert not tried.fits(nodes[3], "a2"), "3 CPUs are taken"
    three = node_at(0, "a1", 1), node_at(1, "a1", 2), node_at(2, "a1", 2)
    tried = trial(*three)
    tried.move(three[0], "a2")
    assert tried.cpu_share(three[1], "a1") == 0.75, "4 CPUs of 3 cores are left"
    small = node_at(0, "a1", 1), node_at(1, "a1", 0.5), node_at(2, "b1", 1.5), node_at(3, "b1", 1)
    tried = trial(*small)
    tried.move(small[0], "a2")
    tried.move(small[1], "a2")
    assert tried.fits(small[2], "a2") and not tried.fits(node_at(2, "b1", 1.6), "a2")
    tried = trial(node_at(0, "a1"), node_at(1, "b1"), most=2)
    tried.move(node_at(1, "b1"), "a2")
    assert tried.fits(node_at(0, "a1"), "a2"), "one is there, and two may be"
    assert not tried.copy().with_nodes([node_at(0, "a1")], {"c-0": "a2"}).fits(node_at(2, "a1"), "a2")


def test_a_copy_goes_its_own_way() -> None:
    nodes = node_at(0, "a1", 2), node_at(1, "a1", 2)
    tried = trial(*nodes)
    other = tried.with_nodes(nodes, {"c-0": "a2", "c-1": "a1"})
    assert other.where["c-0"] == "a2" and other.cpu_share(nodes[1], "a1") == 1
    assert tried.where["c-0"] == "a1" and tried.cpu_share(nodes[1], "a1") == 0.75


@pytest.mark.parametrize(("rounds", "frozen"), [(0, 11e6), (3, 1e6)])
def test_how_long_a_node_is_frozen(rounds: int, frozen: float) -> None:
    """Its downtime within a site; over a link ten more round trips, and the bytes sent while it is frozen."""
    predicted = Prediction(
        bytes=11_000_000, rounds=rounds, seconds=2, downtime=0.25, basis="", frozen=1_000_000 if rounds else None
    )
    assert downtime(predicted, host("a1"), host("a2"), ROADS) == 0.25
    expected = 0.25 + 10 * 2 * 0.01 + frozen / 10e6 / SHARE
    assert downtime(predicted, host("a1"), host("b1"), ROADS) == pytest.approx(expected)
