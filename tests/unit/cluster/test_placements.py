"""Ports, placements and keys of nodes, and the states of hosts: all from rows and the fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import OWNER, World, fabric_spec

from wherry.cluster.clusters import Clusters
from wherry.cluster.lookup import find_node, known_hosts
from wherry.cluster.placements import Placements, head_name, hosts_file, secret_name
from wherry.model.spec.cluster import ClusterSpec
from wherry.node.fake import FakeDriver


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_ports_and_placements(world: World) -> None:
    cluster = world.make(nodes=2)
    placements, node = Placements(world.store, world.fabric), find_node(world.store, "hello-1")
    port = placements.port(node)
    assert (port.owner, port.index, port.host, port.address, port.mac) == ("hello-1", 1, "a2", node.address, node.mac)
    assert (port.tap, port.queues, port.network.number, placements.port(node, "b2").host) == (False, 1, 1, "b2")
    head = placements.head_port(cluster)
    assert (head.owner, head.host, head.address, head.mac) == (
        "hello-head", "a1", "10.77.1.254", "02:77:0a:4d:01:fe",
    )  # fmt: skip
    assert head.index == 254 and head.network == port.network and head_name("hello") == "hello-head"
    place = placements.placement(node, "b1")
    assert (place.node, place.host, place.netns) == (node, "b1", "/fake/netns/b1/hello-1")
    assert (place.cgroup, place.user, place.device) == ("fake/b1/hello-1", "1000:1000:", "p1.1")
    assert (place.binds, place.image, place.guest, place.speed) == (cluster.binds, "default", "pvh", 1.0)
    assert placements.placement(node).host == "a2" and place.hosts_file == hosts_file(cluster)
    lines = hosts_file(cluster).splitlines()
    assert lines[:3] == ["127.0.0.1 localhost", "10.77.1.254 hello-head", "10.77.1.1 hello-0"]
    assert lines[-1] == "10.77.1.250 hello-249" and len(lines) == 252 and hosts_file(cluster).endswith("\n")


def test_virtual_machines_have_a_tap_in_the_network_of_the_head(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.cluster.binds.trusted_path", lambda path, _: path)
    groups = [{"kind": "vm", "memory": "192MiB", "cpus": 2, "nic": {"queues": 2}, "image": "big", "guest": "pv"}]
    clusters = Clusters(world.store, world.fabric, {"vm": FakeDriver("vm")})
    owner = OWNER.model_copy(update={"groups": (4, 5)})
    clusters.apply(clusters.plan(ClusterSpec.model_validate({"name": "hello", "nodes": groups}), owner))
    placements, node = Placements(world.store, world.fabric), find_node(world.store, "hello-0")
    assert (placements.port(node).tap, placements.port(node).queues) == (True, 2)
    place = placements.placement(node)
    assert (place.image, place.guest, place.binds) == ("big", "pv", ("/home/user",))
    assert (place.netns, place.user, place.nic.queues) == ("/fake/netns/a1/hello-head", "1000:1000:4,5", 2)


def test_each_node_has_a_key_of_its_own(world: World) -> None:
    world.make(nodes=2)
    world.store.put_secret(secret_name("hello"), "secret")
    keys = [Placements(world.store, world.fabric).key(node).get_secret_value() for node in world.store.nodes()]
    assert keys[0] == "a15b774bc59a4d32a1ef36e06e2e99886a5728bd852b98c4f7fbb32774ae9997", "openssl dgst -sha256 -hmac"
    assert keys[1] != keys[0] and len(bytes.fromhex(keys[1])) == 32


def test_what_is_known_of_hosts(tmp_path: Path) -> None:
    """Flags of all hosts; facts and whether a host answers only of hosts that are asked."""
    world = World(tmp_path, fabric_spec(b2={"memory": "1GiB"}))
    world.store.set_host_flag("a1", "drained", True)
    world.store.set_host_flag("a2", "lost", True)
    world.fabric.set_down("b1", True)
    by_name = {host.name: host for host in known_hosts(world.store, world.fabric)}
    states = {name: (host.drained, host.down, host.lost) for name, host in by_name.items()}
    assert states == {
        "a1": (True, False, False), "a2": (False, True, True), "b1": (False, True, False), "b2": (False, False, False),
    }  # fmt: skip
    assert by_name["b2"].memory == 2**30
    unasked = {host.name: host.down for host in known_hosts(world.store, world.fabric, ("a1",))}
    assert unasked == {"a1": False, "a2": True, "b1": False, "b2": False}
