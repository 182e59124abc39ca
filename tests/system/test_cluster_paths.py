"""The paths between ports on this machine: past the bridges, with large packets within a site."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest
from fabricports import INSTANCE, ping, plugged

from wherry.base.errors import Code, Refused
from wherry.fabric import direct_forwarding, named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netlink import Switch
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.fabric.nft import nft
from wherry.model.network import ClusterNetwork, network_of
from wherry.model.spec.fabric import LARGEST_MTU, SiteSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")


def forwarded(netns: str, cluster: int = 1) -> str:
    """What a namespace knows of the cluster: its map of links and its set of moving MACs."""
    return nft(netns, "list", "map", "netdev", "wherry", f"c{cluster}") + nft(
        netns, "list", "set", "netdev", "wherry", f"m{cluster}"
    )


def test_packets_within_a_site_are_large(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    assert ping(fabric, one, other.address, "-M", "do", "-s", "1472"), "small ones at once"
    fabric.settle()
    assert ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28))
    assert not ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 27))
    assert not ping(fabric, one, far.address, "-M", "do", "-s", "1473")

    arriving = other.model_copy(update={"host": "b2"})
    fabric.port_up(arriving)
    hold = fabric.hold(arriving)
    assert not ping(fabric, one, other.address, "-M", "do", "-s", "1473"), "before it leaves the site"
    assert ping(fabric, one, other.address, "-s", "1472")
    hold.divert()
    fabric.port_unplug(other)
    hold.release()
    fabric.port_plug(arriving)
    fabric.port_down(other)
    fabric.settle()
    assert ping(fabric, far, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28)), "now they share a site"
    assert not ping(fabric, one, other.address, "-M", "do", "-s", "1473")


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_a_site_may_declare_its_mtu(mtu: int) -> None:
    sweep(INSTANCE)
    spec = default_fabric()
    fabric = NetnsFabric(spec.model_copy(update={"sites": (SiteSpec(name="a", mtu=mtu), spec.sites[1])}), INSTANCE)
    fabric.up()
    try:
        network = network_of(fabric.spec.pool, 1)
        fabric.network_up(network)
        one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
        fabric.settle()
        assert ping(fabric, one, other.address, "-M", "do", "-s", str(mtu - 28))
        assert not ping(fabric, one, other.address, "-M", "do", "-s", str(mtu - 27))
    finally:
        fabric.down()


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_frames_pass_the_bridges_by_except_those_of_a_port_that_moves(
    fabric: NetnsFabric, network: ClusterNetwork
) -> None:
    """Bridges that are down carry no frame; those of hosts and sites are taken down in turn."""
    here, near, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    neighbour = plugged(fabric, network, 3, "a1")
    fabric.settle()

    def bridges(up: bool) -> None:
        for name in ("a1", "a2", "site-a"):
            netns = named_netns.path(f"{INSTANCE.prefix}-{name}")
            with contextlib.closing(Switch(netns)) as switch:
                switch.set_up("c1", up)

    bridges(False)
    for peer in (near, far, neighbour):
        assert ping(fabric, here, peer.address)
    fabric.hold(near.model_copy(update={"host": "b2"})).drop()
    assert not ping(fabric, here, near.address), "near takes the bridges until it is plugged"
    fabric.port_plug(near)
    fabric.settle()
    assert ping(fabric, here, near.address)
    fabric.port_unplug(near)
    assert not ping(fabric, here, near.address)
    assert not ping(fabric, near, here.address), "nothing comes out of an unplugged port"
    bridges(True)
    fabric.port_plug(near)
    fabric.settle()
    assert ping(fabric, here, near.address)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_a_new_driver_reads_where_ports_are(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """A restarted daemon keeps the paths of ports that another one plugged, and adds its own."""
    one, other, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    fabric.settle()
    again = NetnsFabric(fabric.spec, INSTANCE)
    added = plugged(again, network, 3, "a2")
    again.settle()
    for name, links in (("a1", ("p1.0", "u1", "u1", "u1")), ("site-a", ("d0.1", "d1.1", "x1", "d1.1"))):
        found = forwarded(named_netns.path(f"{INSTANCE.prefix}-{name}"))
        for port, link in zip((one, other, far, added), links, strict=True):
            assert f'{port.mac} : "{link}"' in found
    assert ping(again, other, added.address, "-M", "do", "-s", str(LARGEST_MTU - 28))
    again.network_down(network)
    assert "c1" not in nft(again.host_netns("a1"), "list", "maps")


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_an_aborted_move_leaves_the_paths_as_they_were(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    fabric.settle()
    before = [forwarded(fabric.host_netns(host)) for host in ("a1", "a2", "b1")]
    arriving = other.model_copy(update={"host": "b1"})
    fabric.port_up(arriving)
    hold = fabric.hold(arriving)
    assert [forwarded(fabric.host_netns(host)) for host in ("a1", "a2", "b1")] != before
    hold.drop()
    fabric.port_down(arriving)
    fabric.settle()
    assert [forwarded(fabric.host_netns(host)) for host in ("a1", "a2", "b1")] == before
    assert ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28))


def test_without_rules_the_bridges_carry_everything(fabric: NetnsFabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_forwarding, "obstacle", lambda netns: "no nftables")
    network = network_of(fabric.spec.pool, 1)
    fabric.network_up(network)
    one, other, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    fabric.settle()
    assert ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28)) and ping(fabric, one, far.address)
    arriving = other.model_copy(update={"host": "b2"})
    fabric.port_up(arriving)
    hold = fabric.hold(arriving)
    hold.divert()
    fabric.port_unplug(other)
    hold.release()
    fabric.port_plug(arriving)
    fabric.settle()
    assert ping(fabric, one, other.address) and ping(fabric, far, other.address, "-M", "do", "-s", "9000")
    fabric.network_down(network)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_a_move_whose_frames_cannot_be_drawn_to_the_bridges_is_refused(
    fabric: NetnsFabric, network: ClusterNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    fabric.settle()
    arriving = other.model_copy(update={"host": "b1"})
    fabric.port_up(arriving)
    with monkeypatch.context() as broken:
        broken.setattr(direct_forwarding, "nft", failing)
        with pytest.raises(Refused, match="no rules today"):
            fabric.hold(arriving)
    fabric.port_down(arriving)
    fabric.settle()
    assert ping(fabric, one, other.address)
    fabric.port_up(arriving)
    fabric.hold(arriving).drop()


def failing(netns: str, *words: str, text: str = "") -> str:
    raise Refused(Code.UNSUPPORTED, "no rules today", "", "")


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_a_port_that_was_just_plugged_is_unplugged_all_the_same(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a1")
    fabric.settle()
    for _ in range(3):
        fabric.port_unplug(other)
        fabric.port_plug(other)
    fabric.port_unplug(other)
    fabric.settle()
    assert not ping(fabric, one, other.address)
