"""Links between sites: their figures, under jobs and moves; what dies is started anew, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator

import pytest
from realworld import World, eventually, world

from names import own_name
from wherry.base.paths import Instance
from wherry.client import Client
from wherry.fabric import namespaces
from wherry.fabric.default import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
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


@pytest.mark.skipif(shutil.which("openvpn") is None, reason="openvpn is not installed")
def test_a_job_goes_on_over_a_vpn_whose_gateway_dies(far: World) -> None:
    def act() -> None:
        before = repaired(far)
        far.json("site", "link", "set", "a", "b", "--latency", "1ms", "--overlay", "openvpn")
        gateways = processes(far, "openvpn")
        assert len(gateways) == 2
        os.kill(gateways[0], signal.SIGKILL)
        assert eventually(lambda: repaired(far) > before, True)
        assert len(processes(far, "openvpn")) == 2
        assert eventually(lambda: link(far)["latency"] is not None, True)
        far.json("site", "link", "set", "a", "b", "--overlay", "none")
        assert processes(far, "openvpn") == []

    far.under_a_ring("two", "openmpi", act, seconds=15, ranks=2)


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
