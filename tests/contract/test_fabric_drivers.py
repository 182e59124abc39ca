"""Contract of wherry.fabric.protocol.Fabric, for all fabric drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract_names import MISSING

from wherry.base.errors import Code, Refused
from wherry.fabric.protocol import Fabric
from wherry.model.network import ClusterNetwork, Port, address_of, mac_of


def port(network: ClusterNetwork, index: int = 0, host: str = "a1") -> Port:
    return Port(
        owner=f"c-{index}",
        index=index,
        host=host,
        network=network,
        address=address_of(network, index),
        mac=mac_of(network, index),
    )


def test_fabric_has_the_declared_hosts(fabric: Fabric) -> None:
    fabric.up()
    assert fabric.is_up()
    assert [(h.name, h.site, h.cores, h.down) for h in fabric.hosts()] == [
        ("a1", "a", 1, False),
        ("a2", "a", 1, False),
        ("b1", "b", 1, False),
    ]
    for host in fabric.hosts():
        assert host.facts == fabric.facts(host.name)
        assert host.facts and host.facts.kernel and host.facts.architecture and host.facts.memory > 0


def test_hosts_have_separate_addresses_and_namespaces(fabric: Fabric) -> None:
    names = [host.name for host in fabric.hosts()]
    for what in (fabric.host_netns, fabric.host_address, fabric.cgroup):
        assert len({what(name) for name in names}) == len(names)


@pytest.mark.parametrize("method", ["facts", "host_netns", "host_address", "reachable"])
def test_unknown_host_is_refused(fabric: Fabric, method: str) -> None:
    call: Callable[[str], Any] = getattr(fabric, method)
    with pytest.raises(Refused) as caught:
        call("mars")
    assert caught.value.code == Code.NOT_FOUND


def test_missing_files_of_a_host_are_named(fabric: Fabric) -> None:
    assert fabric.missing_files("a1", [MISSING]) == []
    assert fabric.missing_files("b1", ["/", MISSING]) == [MISSING]


def test_a_host_goes_down_and_comes_back(fabric: Fabric) -> None:
    for _ in range(2):
        fabric.set_down("a2", True)
    assert not fabric.reachable("a2") and fabric.reachable("a1")
    assert not any(host.down for host in fabric.hosts())  # does not contact the hosts
    fabric.set_down("a2", False)
    assert fabric.reachable("a2")


def test_calls_are_idempotent(fabric: Fabric, network: ClusterNetwork) -> None:
    one = port(network)
    fabric.network_up(network)
    for call in (
        fabric.port_up,
        fabric.port_plug,
        fabric.port_plug,
        fabric.port_unplug,
        fabric.port_unplug,
        fabric.port_up,
        fabric.port_plug,
        fabric.port_down,
        fabric.port_down,
        fabric.port_unplug,
    ):
        call(one)
    fabric.network_down(network)
    fabric.network_down(network)


def test_a_port_is_made_at_two_hosts_and_plugged_at_one(fabric: Fabric, network: ClusterNetwork) -> None:
    source, destination = port(network), port(network, host="b1")
    assert (
        fabric.port_up(source)
        == fabric.port_netns(source)
        != fabric.port_up(destination)
        == fabric.port_netns(destination)
    )
    for plugged, other in ((source, destination), (destination, source)):
        fabric.port_plug(plugged)
        hold = fabric.hold(other)
        hold.divert()
        fabric.port_unplug(plugged)
        report = hold.release()
        assert report.held is not None and report.held >= 0 and report.frames >= 0
        fabric.port_unplug(other)
    fabric.port_down(source)
    fabric.port_down(destination)


def test_hold_can_be_dropped_at_any_time(fabric: Fabric, network: ClusterNetwork) -> None:
    source, destination = port(network), port(network, host="a2")
    fabric.port_up(source)
    fabric.port_plug(source)
    fabric.port_up(destination)
    for diverted in (False, True):
        hold = fabric.hold(destination)
        if diverted:
            hold.divert()
            fabric.port_unplug(source)
        hold.drop()
        hold.drop()
        fabric.port_plug(source)
    fabric.port_down(destination)
    fabric.port_down(source)


def test_half_made_port_cannot_be_plugged(fabric: Fabric, network: ClusterNetwork) -> None:
    with pytest.raises(Exception):  # noqa: B017 - which error is the driver's
        fabric.port_plug(port(network, 9))
    fabric.port_down(port(network, 9))
