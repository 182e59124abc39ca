"""Links between sites: their figures, under jobs and moves; what dies is started anew, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from realworld import World, eventually, world

from names import own_name
from wherry.base.paths import Instance
from wherry.client import Client
from wherry.fabric import namespaces, wireguard
from wherry.fabric.default import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.fabric.overlay import lacks
from wherry.model.objects import Move, Phase
from wherry.model.spec import LinkSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
INSTANCE = Instance(own_name("tlkf"))
FABRIC = """\
kind: fabric
version: 1
name: far
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 2, memory: 2GiB}
  - {name: b1, site: b, cores: 2, memory: 2GiB}
  - {name: b2, site: b, cores: 2, memory: 2GiB}
links:
  - {between: [a, b], latency: 10ms, bandwidth: 1Gbit/s}
"""


@pytest.fixture(scope="module")
def far() -> Iterator[World]:
    """Two sites 10 ms apart with a node at each; after the tests there is nothing of it."""
    with world("tlnk") as made:
        before = made.everything()
        made.json("fabric", "up", made.file("far.yaml", FABRIC))
        made.up("two", 2, more="placement: {spread: site}\n")
        yield made
        assert made("down", "--all").returncode == 0
        assert eventually(made.everything, before) == before


def processes(made: World, program: str) -> list[int]:
    return [pid for pid, words in made.processes().items() if words.startswith(program) or f"/{program} " in words]


def link(made: World) -> dict[str, float]:
    """The measured latency, and what was lost there."""
    (found,) = made.json("site", "link")["links"]
    return {"latency": found["measured"]["latency"], "lost": found["there"]["lost"] + found["back"]["lost"]}


def repaired(made: World) -> int:
    with Client(made.instance) as client:
        return sum(event.kind == "fabric.repaired" for event in client.events())


def test_a_job_goes_on_over_a_link_that_changes_fails_and_dies(far: World) -> None:
    assert set(far.hosts_of("two").values()) == {"a1", "b1"}
    assert 0.0095 < link(far)["latency"] < 0.1

    def act() -> None:
        before = repaired(far)
        far.move("two-0", "b2")
        far.move("two-0", "a1")
        far.json("site", "link", "set", "a", "b", "--loss", "100%")
        time.sleep(5)
        far.json("site", "link", "set", "a", "b", "--loss", "0%", "--latency", "2ms", "--jitter", "1ms")
        assert link(far)["lost"] > 0
        (emulator,) = processes(far, "wherry-link")
        far.kill_daemon()
        assert far("site", "link").returncode == 0
        assert processes(far, "wherry-link") == [emulator], "a new daemon finds it"
        os.kill(emulator, signal.SIGKILL)
        assert eventually(lambda: repaired(far) > before, True)
        assert len(processes(far, "wherry-link")) == 1
        assert 0.0005 < link(far)["latency"] < 0.1

    far.under_a_ring("two", "openmpi", act, seconds=25, ranks=2)
    far.assert_one_copy("two")


@pytest.mark.parametrize(
    ("overlay", "program"),
    [
        pytest.param(kind, program, marks=pytest.mark.skipif(bool(lacks(kind)), reason=f"{lacks(kind)}: not installed"))
        for kind, program in (("openvpn", "openvpn"), ("wireguard", "wireguard-go"))
    ],
)
def test_a_job_goes_on_over_a_vpn_whose_gateway_dies(far: World, overlay: str, program: str) -> None:
    if overlay == "wireguard" and wireguard.kernel():
        pytest.skip("the kernel's WireGuard has no process that could die")

    def act() -> None:
        before = repaired(far)
        far.json("site", "link", "set", "a", "b", "--latency", "1ms", "--overlay", overlay)
        gateways = processes(far, program)
        assert len(gateways) == 2
        os.kill(gateways[0], signal.SIGKILL)
        assert eventually(lambda: repaired(far) > before, True)
        assert len(processes(far, program)) == 2
        assert eventually(lambda: link(far)["latency"] is not None, True)
        keys = list((far.instance.run / "links").glob(f"*.{overlay}/*.key"))
        assert len(keys) == 2 and all(key.stat().st_mode & 0o077 == 0 for key in keys)
        assert not any(key.read_text().strip() in words for key in keys for words in far.processes().values())
        far.json("site", "link", "set", "a", "b", "--overlay", "none")
        assert processes(far, program) == [] and not list((far.instance.run / "links").glob("*.*/*.key"))

    far.under_a_ring("two", "openmpi", act, seconds=15, ranks=2)


def test_whatever_fails_while_a_node_crosses_there_is_one_copy_of_it(far: World) -> None:
    """Link, emulator, daemon and gateway, each while the node's memory is on its way, which takes some seconds."""

    def lost() -> None:
        change(far, loss="100%")
        time.sleep(5)
        change(far, loss="0%")

    def kill(program: str) -> None:
        os.kill(processes(far, program)[-1], signal.SIGKILL)

    def daemon() -> None:
        far.kill_daemon()
        assert far("status").returncode == 0  # another one starts

    overlay = "none" if lacks("openvpn") else "openvpn"
    faults = [lost, lambda: kill("wherry-link"), daemon]
    faults += [] if overlay == "none" else [lambda: kill("openvpn")]

    def act() -> None:
        change(far, latency="5ms", jitter="0ms", bandwidth="40Mbit/s", overlay=overlay)
        for fail in faults:
            with Client(far.instance) as client:
                (home,) = (node.host for node in client.nodes("two") if node.name == "two-0")
                move = client.begin_move("two-0", "b2" if home == "a1" else "a1").id
                while client.operation(move).ended is None and Phase.FREEZE not in [m.phase for m in client.moves()]:
                    time.sleep(0.02)
                assert client.operation(move).ended is None, "it is on its way"
            fail()
            assert eventually(lambda: all(one.ended for one in moves(far)), True)
        change(far, bandwidth="1Gbit/s", overlay="none")

    before = len(moves(far))
    far.under_a_ring("two", "openmpi", act, seconds=35, ranks=2)
    far.assert_one_copy("two")
    assert len(moves(far)) % len(faults) == before % len(faults), "nobody has moved it but we"


def moves(made: World) -> list[Move]:
    with Client(made.instance) as client:
        return client.moves()


def change(made: World, **figures: str) -> None:
    """As `wherry site link set a b` does."""
    with Client(made.instance) as client:
        client.wait(client.set_link("a", "b", figures).id)


@pytest.fixture
def fabric() -> Iterator[NetnsFabric]:
    sweep(INSTANCE)
    made = NetnsFabric(default_fabric(), INSTANCE)
    made.up()
    yield made
    made.down()
    assert namespaces.names(INSTANCE.prefix) == [] and not INSTANCE.run.exists()


def test_figures_are_kept_in_each_direction_and_found_again(fabric: NetnsFabric) -> None:
    """Wide limits: this says that the figures take effect; wherry.lab.linkbench measures how exactly."""
    (plain,) = fabric.links()
    assert plain.emulation == "none" and (fabric.measure_link(plain.link, False).latency or 1) < 0.02
    slow = {"between": ("a", "b"), "latency": "20ms", "bandwidth": "40Mbit/s", "reverse": {"bandwidth": "5Mbit/s"}}
    fabric.set_link(LinkSpec.model_validate(slow))
    found = fabric.measure_link(fabric.spec.joins()[0], True)
    assert found.latency and found.there and found.back
    assert 0.019 < found.latency < 0.2
    assert 1e6 < found.there < 46e6 and 1e6 < found.back < 6e6
    later = NetnsFabric(fabric.spec, INSTANCE)
    (state,) = later.links()
    assert state.emulation == "wherry-link" and state.there and state.there.bytes > 1e6 and later.tend() == []
    fabric.set_link(LinkSpec(between=("a", "b")))
    assert fabric.links()[0].emulation == "none" and (fabric.measure_link(plain.link, False).latency or 1) < 0.02
