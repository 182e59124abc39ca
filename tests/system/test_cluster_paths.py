"""The paths between ports on this machine: past the bridges, with large packets within a site."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from pathlib import Path

import pytest
from fabricports import INSTANCE, connect, listen, ping, plugged

from wherry.base.errors import Code, Refused
from wherry.fabric import direct_forwarding, named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netlink import Switch, change_host_routes, set_neighbours
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.fabric.traffic_matrix import TrafficMatrix
from wherry.model.network import ClusterNetwork, Port, network_of
from wherry.model.spec.fabric import LARGEST_MTU, SiteSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")


FORWARDS = pytest.mark.skipif(bool(direct_forwarding.obstacle()), reason="no BPF: frames take bridges")


def bridges(up: bool) -> None:
    """Takes the cluster's bridges at site a and its hosts up or down: bridges that are down carry no frame."""
    for name in ("a1", "a2", "site-a"):
        with contextlib.closing(Switch(named_netns.path(f"{INSTANCE.prefix}-{name}"))) as switch:
            switch.set_up("c1", up)


def test_packets_within_a_site_are_large(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    assert ping(fabric, one, other.address, "-M", "do", "-s", "1472"), "small ones at once"
    fabric.update_paths()
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
    fabric.update_paths()
    assert ping(fabric, far, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28)), "now they share a site"
    assert not ping(fabric, one, other.address, "-M", "do", "-s", "1473")


def received(fabric: NetnsFabric, port: Port) -> tuple[int, int]:
    """Bytes and packets that the node's interface received."""

    def read() -> tuple[int, int]:
        (line,) = (line for line in Path("/proc/thread-self/net/dev").read_text().splitlines() if "eth0:" in line)
        size, packets = line.split(":")[1].split()[:2]
        return int(size), int(packets)

    return named_netns.inside(fabric.port_netns(port), read)


def test_tcp_gives_half_a_megabyte_at_once_to_a_site_and_what_a_vxlan_takes_whole_to_another(
    fabric: NetnsFabric, network: ClusterNetwork
) -> None:
    one, near, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    fabric.update_paths()
    data = os.urandom(32 << 20)
    largest = {}
    for name, other in ("near", near), ("far", far):
        with listen(fabric, other) as server, connect(fabric, one, other) as client, server.accept()[0] as accepted:
            before = received(fabric, other)
            sender = threading.Thread(target=client.sendall, args=(data,))
            sender.start()
            assert accepted.recv(len(data), socket.MSG_WAITALL) == data
            sender.join()
            size, packets = (now - then for now, then in zip(received(fabric, other), before, strict=True))
            largest[name] = size / packets
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 3):
        assert largest["near"] > 65536
    assert largest["far"] < 65536


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
        fabric.update_paths()
        assert ping(fabric, one, other.address, "-M", "do", "-s", str(mtu - 28))
        assert not ping(fabric, one, other.address, "-M", "do", "-s", str(mtu - 27))
    finally:
        fabric.down()


@FORWARDS
def test_frames_pass_the_bridges_by_except_those_of_a_port_that_moves(
    fabric: NetnsFabric, network: ClusterNetwork
) -> None:
    """Bridges that are down carry no frame; those of hosts and sites are taken down in turn."""
    here, near, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    neighbour = plugged(fabric, network, 3, "a1")
    fabric.update_paths()

    bridges(False)
    for peer in (near, far, neighbour):
        assert ping(fabric, here, peer.address)
    fabric.hold(near.model_copy(update={"host": "b2"})).drop()
    assert not ping(fabric, here, near.address), "near takes the bridges until it is plugged"
    fabric.port_plug(near)
    fabric.update_paths()
    assert ping(fabric, here, near.address)
    fabric.port_unplug(near)
    assert not ping(fabric, here, near.address)
    assert not ping(fabric, near, here.address), "nothing comes out of an unplugged port"
    bridges(True)
    fabric.port_plug(near)
    fabric.update_paths()
    assert ping(fabric, here, near.address)


@FORWARDS
def test_a_new_driver_reads_where_ports_are(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """A restarted daemon forwards between ports that another one plugged, also of other clusters, and its own."""
    second = network_of(fabric.spec.pool, 2)
    fabric.network_up(second)
    others = [plugged(fabric, second, index, host) for index, host in ((10, "a1"), (11, "a2"))]
    ports = [plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1"))]
    fabric.update_paths()
    again = NetnsFabric(fabric.spec, INSTANCE)
    ports.append(plugged(again, network, 3, "a2"))
    again.update_paths()
    bridges(False)
    assert all(ping(again, ports[0], port.address) for port in ports[1:])
    with contextlib.closing(Switch(again.host_netns("a1"))) as switch:
        switch.set_up("c2", False)
    assert ping(again, others[0], others[1].address)
    assert ping(again, ports[1], ports[3].address, "-M", "do", "-s", str(LARGEST_MTU - 28))
    again.network_down(network)


@FORWARDS
def test_an_aborted_move_leaves_the_paths_as_they_were(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    fabric.update_paths()
    arriving = other.model_copy(update={"host": "b1"})
    fabric.port_up(arriving)
    hold = fabric.hold(arriving)
    bridges(False)
    assert not ping(fabric, one, other.address)
    hold.drop()
    fabric.port_down(arriving)
    fabric.update_paths()
    assert ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28))


@FORWARDS
def test_clusters_do_not_share_their_maps(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """A node that sends to a MAC of another cluster, which root in it can, reaches nobody."""
    second = network_of(fabric.spec.pool, 2)
    fabric.network_up(second)
    one, alien = plugged(fabric, network, 0, "a1"), plugged(fabric, second, 1, "a1")
    fabric.update_paths()
    set_neighbours(fabric.port_netns(one), "eth0", {alien.address: alien.mac})
    change_host_routes(fabric.port_netns(one), "eth0", 1500, {alien.address}, set())
    change_host_routes(fabric.port_netns(alien), "eth0", 1500, {one.address}, set())
    set_neighbours(fabric.port_netns(alien), "eth0", {one.address: one.mac})
    assert not ping(fabric, one, alien.address)


@FORWARDS
def test_frames_take_the_bridges_of_a_host_while_they_are_counted(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    fabric.update_paths()
    here = fabric.host_netns("a1")
    bridges(False)
    assert ping(fabric, one, other.address)
    with contextlib.closing(TrafficMatrix(fabric.take_bridges)) as counters:
        counters.read({here: frozenset()})
        assert not ping(fabric, one, other.address)
        fabric.port_plug(one)
        fabric.update_paths()
        assert not ping(fabric, one, other.address), "nor does a change of ports end that"
        bridges(True)
        with listen(fabric, other) as server, connect(fabric, one, other) as client, server.accept()[0] as accepted:
            client.sendall(b"counted")
            assert accepted.recv(100) == b"counted"
        assert counters.read({here: frozenset()})[one.mac, other.mac].frames == 2, "its SYN, and the data"
    bridges(False)
    assert ping(fabric, one, other.address)


@FORWARDS
def test_a_bridge_that_floods_gets_no_frame_back(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """A site's program has the MACs that the bridge of a host, through which frames go again, must learn. That bridge
    learnt its own nodes at its trunk, by frames that the site sent back, and lost the frames for them."""
    one, neighbour, other = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a1", "a2")))
    fabric.update_paths()
    for first, second in ((one, neighbour), (neighbour, one)):
        with contextlib.closing(TrafficMatrix(fabric.take_bridges)) as counters:
            bridges(False)
            bridges(True)  # which know no MAC now
            counters.read({fabric.host_netns("a1"): frozenset()})
            assert ping(fabric, first, second.address)
            assert ping(fabric, other, first.address)
            assert ping(fabric, second, first.address)


def test_without_bpf_the_bridges_carry_everything(fabric: NetnsFabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_forwarding, "obstacle", lambda: "no libbpf")
    network = network_of(fabric.spec.pool, 1)
    fabric.network_up(network)
    one, other, far = (plugged(fabric, network, index, host) for index, host in enumerate(("a1", "a2", "b1")))
    fabric.update_paths()
    assert ping(fabric, one, other.address, "-M", "do", "-s", str(LARGEST_MTU - 28)) and ping(fabric, one, far.address)
    arriving = other.model_copy(update={"host": "b2"})
    fabric.port_up(arriving)
    hold = fabric.hold(arriving)
    hold.divert()
    fabric.port_unplug(other)
    hold.release()
    fabric.port_plug(arriving)
    fabric.update_paths()
    assert ping(fabric, one, other.address) and ping(fabric, far, other.address, "-M", "do", "-s", "9000")
    fabric.network_down(network)


@FORWARDS
def test_a_move_whose_frames_cannot_be_drawn_to_the_bridges_is_refused(
    fabric: NetnsFabric, network: ClusterNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    fabric.update_paths()
    arriving = other.model_copy(update={"host": "b1"})
    fabric.port_up(arriving)
    with monkeypatch.context() as broken:
        broken.setattr(direct_forwarding.Forwarder, "write", failing)
        with pytest.raises(Refused, match="no maps today"):
            fabric.hold(arriving)
    fabric.port_down(arriving)
    fabric.update_paths()
    assert ping(fabric, one, other.address)
    fabric.port_up(arriving)
    fabric.hold(arriving).drop()


def failing(*given: object) -> None:
    raise Refused(Code.UNSUPPORTED, "no maps today", "", "")


@FORWARDS
def test_a_port_that_was_just_plugged_is_unplugged_all_the_same(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a1")
    fabric.update_paths()
    for _ in range(3):
        fabric.port_unplug(other)
        fabric.port_plug(other)
    fabric.port_unplug(other)
    fabric.update_paths()
    assert not ping(fabric, one, other.address)
