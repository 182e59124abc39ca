"""Obstacles that are named before any move begins: of a node, and of each host that it could go to."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeworld import World, fabric_spec
from rest_service import CLUSTER, Service

from wherry.base.errors import Refused
from wherry.client import Client
from wherry.cluster.lookup import DRAINED
from wherry.cluster.placements import Placements
from wherry.model.move_check import NodeCheck
from wherry.move.check import MoveChecks

NODE, SOURCE = "hello-2", "b1"


def check(world: World) -> NodeCheck:
    places = Placements(world.store, world.fabric)
    return MoveChecks(world.store, world.fabric, {"container": world.driver}, places).node(NODE)


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
