"""The step model in numbers: CPU shares, routes, the parts of a step, and the cost of moves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wherry.model.profile import Flow, NodeLoad, Profile
from wherry.model.records import Host, Node, Prediction
from wherry.model.spec.fabric import LinkSpec
from wherry.schedule.cost import cost, downtime
from wherry.schedule.routes import SHARE, Route, Routes
from wherry.schedule.step_model import Step, StepModel, World

LINKS = (
    {"between": ("a", "b"), "latency": "10ms", "bandwidth": "80Mbit/s"},
    {"between": ("c", "b"), "latency": "20ms", "reverse": {"latency": "5ms", "bandwidth": "8Mbit/s"}},
    {"between": ("b", "d")},
    {"between": ("e", "f"), "latency": "1ms"},
)


def made() -> Routes:
    """Routes that nobody has searched yet."""
    return Routes(LinkSpec.model_validate(link) for link in LINKS)


def host(name: str, speed: float = 1.0, cores: float = 1.0) -> Host:
    return Host(name=name, site=name[0], cores=cores, memory=2**30, speed=speed)


def world(*hosts: Host, foreign: dict[str, float] | None = None, busy: dict[str, float] | None = None) -> World:
    known = hosts or (host("a1"), host("a2"), host("b1"), host("c1"))
    return World({host.name: host for host in known}, made(), foreign or {}, busy or {})


def node(name: str, where: str, cpus: float = 1.0) -> Node:
    return Node(name=name, cluster="x", index=0, host=where, address="", mac="", cpus=cpus, memory=1)


def load(name: str, computing: float, waiting: float) -> NodeLoad:
    return NodeLoad(node=name, host="", ranks=1, cpu=1, computing=computing, waiting=waiting)


def flow(source: str, target: str, turns: float, size: float) -> Flow:
    return Flow(source=source, target=target, messages=0, bytes=size, turns=turns)


def profile(*loads: NodeLoad, flows: tuple[Flow, ...] | None = ()) -> Profile:
    fields: dict[str, Any] = {"cluster": "x", "jobs": ("j",), "time": 0, "seconds": 5, "ran": 1, "remaining": 1}
    return Profile(**fields, basis="", nodes=loads, flows=flows)


def close(step: Step, *figures: Any) -> None:
    found = (step.total, step.computing, step.link, step.busiest, step.crossing, step.turns)
    assert found[3] == figures[3]
    assert found[:3] + found[4:] == pytest.approx(figures[:3] + figures[4:])


def test_routes_over_links() -> None:
    routes = made()
    assert routes.route("a", "a") == Route(0.0, ())
    assert routes.route("a", "b") == Route(0.01, (("a", "b"),))
    far, back = routes.route("a", "c"), routes.route("c", "a")
    assert far.hops == (("a", "b"), ("b", "c")) and far.latency == pytest.approx(0.015)
    assert back.hops == (("c", "b"), ("b", "a")) and back.latency == pytest.approx(0.03)
    assert routes.route("a", "d") == Route(0.01, (("a", "b"), ("b", "d"))), "an undeclared latency is none"
    assert routes.route("d", "c").hops == (("d", "b"), ("b", "c"))
    assert routes.route("f", "e") == Route(0.001, (("f", "e"),))
    assert routes.route("a", "f") == routes.route("a", "nowhere") == Route(3600.0, ())
    assert routes.route("a", "c") is far, "a search for each pair of nodes would take the most of a plan"


def test_bandwidths_of_links() -> None:
    routes = made()
    assert routes.bandwidth["a", "b"] == routes.bandwidth["b", "a"] == 10e6
    assert routes.bandwidth["b", "c"] == 1e6 and math.isinf(routes.bandwidth["c", "b"])
    assert routes.seconds({("a", "b"): 5e6, ("b", "c"): 2e6, ("c", "b"): 9e9}) == 2.0
    assert routes.seconds({}) == 0.0
    assert routes.seconds_for_moves({("a", "b"): 9e6}) == pytest.approx(1.0)


def test_cpu_shares() -> None:
    """Two cores of half the speed, of which other processes use a fifth of a fast core."""
    slow = host("a1", speed=0.5, cores=2)
    assert world(slow).cpu_share("a1", 0) == world(slow).cpu_share("a1", 2) == 0.5
    assert world(slow).cpu_share("a1", 4) == 0.25
    assert world(slow, foreign={"a1": 0.2}).cpu_share("a1", 2) == pytest.approx(0.4)
    assert world(slow, foreign={"a1": 0.2}, busy={"a1": 1.0}).cpu_share("a1", 1) == pytest.approx(0.4)
    assert world(slow, foreign={"a1": 9.0}).cpu_share("a1", 1) == pytest.approx(0.5 * 0.04 / 0.5)
    assert world(slow, busy={"a1": 4.0}).cpu_share("a1", 0) == 0.25, "its share beside them"
    assert world(host("a1", cores=0.5)).cpu_share("a1", 0.25) == 1.0


def model(*more: Flow) -> StepModel:
    """x-0 at a waits for a tenth of the time that its messages take, x-1 at b for half."""
    flows = (flow("x-0", "x-1", 20, 1e6), flow("x-1", "x-0", 10, 2e6), flow("x-0", "y-0", 99, 9e9), *more)
    loads = load("x-0", 0.6, 0.03), load("x-1", 0.4, 0.2), load("y-0", 9.0, 0.0)
    return StepModel(profile(*loads, flows=flows), [node("x-0", "a1"), node("x-1", "b1")], world())


def test_the_present_placement() -> None:
    """Links take 20 or 10 turns of 10 ms, and 0.2 s for the more loaded direction: 0.4 s and 0.3 s."""
    found = model()
    assert found.now == {"x-0": "a1", "x-1": "b1"}
    close(found.step(found.now), 1.0, 0.6, 0.2, "x-0", 3e6, 30)
    assert (found.computing("x-0"), found.computing("x-1"), found.computing("y-0")) == (0.6, 0.4, 0.0)


def test_a_placement_at_one_site() -> None:
    close(model().step({"x-0": "a1", "x-1": "a2"}), 0.6 + 0.5 * 20 * 1e-4 + 0.2, 0.6, 0.0, "x-0", 0, 0)


def test_a_placement_on_one_host() -> None:
    """Of one core each gets a half."""
    close(model().step({"x-0": "a1", "x-1": "a1"}), 1.2 + 0.001 + 0.2, 1.2, 0.0, "x-0", 0, 0)


def test_a_placement_over_two_links() -> None:
    """To c 20 turns of 15 ms, from there 10 of 30 ms; the slowest link needs a second for the megabyte."""
    far = 0.5 * (20 * 0.015 + 1.0)
    close(model().step({"x-0": "a1", "x-1": "c1"}), 0.6 + far + 0.2, 0.6, far, "x-0", 3e6, 30)


def test_messages_near_and_far_add_up() -> None:
    nodes = [node("x-0", "a1"), node("x-1", "b1"), node("x-2", "a2")]
    flows = flow("x-1", "x-0", 10, 0), flow("x-2", "x-0", 1000, 0), flow("x-0", "x-2", 500, 9e9)
    loads = load("x-0", 0.2, 0.1), load("x-1", 0.5, 0.0), load("x-2", 0.1, 0.025)
    found = StepModel(profile(*loads, flows=flows), nodes, world())
    close(found.step(found.now), 1.0, 0.5, 0.05, "x-1", 0, 10)
    together = {"x-0": "a1", "x-1": "a2", "x-2": "a2"}
    messages = 0.5 * (10 * 1e-4 + 1000 * 1e-4)
    close(found.step(together), 2 * 0.5 + messages + 0.4, 1.0, 0.0, "x-1", 0, 0)


def test_a_node_waits_no_longer_than_its_messages_take() -> None:
    """x-0 waits for something else; x-1 had no message on its way, and is assumed to wait for each."""
    flows = flow("x-1", "x-0", 10, 0), flow("x-0", "x-1", 0, 5e6)
    loads = load("x-0", 0.2, 0.7), load("x-1", 0.3, 0.7)
    found = StepModel(profile(*loads, flows=flows), [node("x-0", "a1"), node("x-1", "a2")], world())
    close(found.step(found.now), 1.0, 0.3, 0.0, "x-1", 0, 0)
    rest = 1 - 0.3 - 0.001
    close(found.step({"x-0": "a1", "x-1": "b1"}), 0.3 + 0.1 + 0.5 + rest, 0.3, 0.6, "x-1", 5e6, 10)


def test_a_node_that_only_sends_waits_for_the_link() -> None:
    flows = (flow("x-1", "x-0", 0, 5e6),)
    loads = load("x-0", 0.2, 0.0), load("x-1", 0.3, 0.0)
    found = StepModel(profile(*loads, flows=flows), [node("x-0", "a1"), node("x-1", "a2")], world())
    close(found.step({"x-0": "a1", "x-1": "b1"}), 0.3 + 0.5 + 0.7, 0.3, 0.5, "x-1", 5e6, 0)


def test_flows_over_one_link_add_up() -> None:
    """x-2 waits 0.3 s for turns, and as long for the link; x-3 has messages from its own site only."""
    flows = flow("x-0", "x-2", 10, 1e6), flow("x-1", "x-2", 20, 2e6), flow("x-0", "x-3", 500, 9e9)
    loads = load("x-0", 0.2, 0), load("x-1", 0.2, 0), load("x-2", 0.2, 0.6), load("x-3", 0.2, 0.05)
    nodes = [node(f"x-{number}", where, 0.25) for number, where in enumerate(("a1", "a2", "b1", "a2"))]
    found = StepModel(profile(*loads, flows=flows), nodes, world())
    close(found.step(found.now), 1.0, 0.2, 0.6, "x-3", 3e6, 30)
    close(found.step({**found.now, "x-2": "a1"}), 0.2 + 0.05 + 0.2, 0.2, 0.0, "x-3", 0, 0)


def test_parts_that_overlap_are_scaled() -> None:
    """Ranks that compute while messages are under way."""
    loads, flows = (load("x-0", 0.9, 0.5), load("x-1", 0.1, 0.3)), (flow("x-0", "x-1", 30, 0),)
    found = StepModel(profile(*loads, flows=flows), [node("x-0", "a1"), node("x-1", "b1")], world())
    close(found.step(found.now), 1.0, 0.75, 0.25, "x-0", 0, 30)
    close(found.step({"x-0": "b1", "x-1": "b1"}), (1.8 + 0.003) / 1.2, 1.5, 0.0, "x-0", 0, 0)


def test_a_faster_host() -> None:
    hosts = host("a1", speed=0.5), host("a2", speed=0.5), host("b1")
    nodes = [node("x-0", "a1"), node("x-1", "a2"), node("x-9", "b1", cpus=0.5)]
    found = StepModel(profile(load("x-0", 0.6, 0.1), load("x-1", 0.4, 0.3)), nodes, world(*hosts))
    here = {"x-1": "a2", "x-9": "a1"}
    close(found.step({**here, "x-0": "b1"}), 0.4 + 0.4, 0.4, 0.0, "x-1", 0, 0)
    shared = {"x-0": "b1", "x-1": "a2", "x-9": "b1"}  # 1.5 CPUs of one core
    close(found.step(shared), 0.45 + 0.4, 0.45, 0.0, "x-0", 0, 0)


def test_without_loads_nothing_is_known() -> None:
    found = StepModel(profile(flows=None), [node("x-0", "a1")], world())
    close(found.step(found.now), 1.0, 0.0, 0.0, "", 0, 0)
    assert found.most_loaded(found.now, ()) == ""


def test_the_most_loaded_node() -> None:
    """Within a thousandth nodes are tied, and the largest share and then the last name of those left comes first."""
    loads = load("x-0", 0.5995, 0), load("x-1", 0.6, 0), load("x-2", 0.6, 0), load("x-3", 0.599, 0)
    nodes = [node(f"x-{number}", "b1", 0.1) for number in range(4)]
    found = StepModel(profile(*loads), nodes, world())
    order, done = list[str](), set[str]()
    while name := found.most_loaded(found.now, done):
        order.append(name)
        done.add(name)
    assert order == ["x-2", "x-1", "x-0"]


def test_the_cost_of_moves() -> None:
    """A job stops during a freeze; while memory is copied, by four moves at once, it loses a fifth."""
    routes = made()
    hosts = {name: host(name) for name in ("a1", "a2", "b1", "c1")}
    plain = Prediction(bytes=9_000_000, rounds=0, seconds=2.0, downtime=0.25, basis="")
    rounds = Prediction(bytes=11_000_000, rounds=3, seconds=6.0, downtime=0.5, basis="", frozen=1_000_000)
    costs = {"x-0": plain, "x-1": rounds}
    assert cost([], costs, hosts, routes) == 0.0
    near = [("x-0", "a1", "a2"), ("x-1", "a2", "a1")]
    assert cost(near, costs, hosts, routes) == pytest.approx(0.75 + 0.2 * 8 / 4)
    assert downtime(plain, hosts["a1"], hosts["b1"], routes) == pytest.approx(0.25 + 0.2 + 1.0)
    assert downtime(rounds, hosts["a1"], hosts["b1"], routes) == pytest.approx(0.5 + 0.2 + 0.1 / SHARE)
    far = [("x-0", "a1", "b1"), ("x-1", "a2", "b1")]
    stands = 0.25 + 0.2 + 1.0 + 0.5 + 0.2 + 0.1 / SHARE
    assert cost(far, costs, hosts, routes) == pytest.approx(stands + 0.2 * 2.0 / SHARE), "20 MB over one link"
    beyond = cost([("x-0", "b1", "c1")], costs, hosts, routes)
    assert beyond == pytest.approx(0.25 + 0.1 + 10.0 + 0.2 * 10.0)


def test_nodes_that_never_wait_are_as_slow_as_their_hosts() -> None:
    """No measurement shows which of them is behind: with equal work, the node with the smallest CPU share is."""
    crowded = world(foreign={"a1": 0.8})
    model = StepModel(
        profile(load("x-0", 1, 0), load("x-1", 0.99, 0.01)), [node("x-0", "a1"), node("x-1", "b1")], crowded
    )
    assert model.most_loaded(model.now, ()) == "x-0" and model.most_loaded(model.now, {"x-0"}) == ""
    assert model.step(model.now).total == 1.0
    assert model.step({"x-0": "a2", "x-1": "b1"}).total == pytest.approx(0.2)
    waits = StepModel(
        profile(load("x-0", 1, 0), load("x-1", 0.9, 0.1)), [node("x-0", "a1"), node("x-1", "b1")], crowded
    )
    assert waits.step({"x-0": "a2", "x-1": "b1"}).total == pytest.approx(0.9), "x-1 would be waited for"
