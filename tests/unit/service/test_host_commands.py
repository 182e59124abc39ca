"""A host that is declared lost: moves are settled without it, clusters are removed, and it comes back with nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakeworld import OWNER
from qemuworld import FABRIC, RUNS, World, qemu_driver, qemu_world
from rest_service import CLUSTER, Service, ended

from wherry.base.errors import Code, LostContact, WherryError
from wherry.client import Client
from wherry.cluster.clusters import Clusters
from wherry.cluster.placements import Placements
from wherry.fabric.fake import FakeFabric
from wherry.model.records import Node, NodeState, Operation, Phase
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.move.moves import Moves
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real.qemu import QemuDriver
from wherry.store import Store


class Site:
    """One virtual machine at q1, and q2 beside it, with a libvirt in memory."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world, self.store = world, Store(directory / "wherry.db")
        self.fabric = FakeFabric(parse(FabricSpec, FABRIC, "FILE"))
        self.fabric.lost = world.lost
        self.fabric.up()
        self.driver: QemuDriver = qemu_driver(world)
        self.clusters = Clusters(self.store, self.fabric, {"vm": self.driver})
        self.moves = Moves(self.store, self.fabric, {"vm": self.driver}, Placements(self.store, self.fabric))
        spec = ClusterSpec(name="c", nodes=1, kind="vm", memory="160MiB", hosts=("q1",))
        self.clusters.apply(self.clusters.plan(spec, OWNER))

    @property
    def node(self) -> Node:
        node = self.store.node("c-0")
        assert node is not None
        return node

    def interrupted(self, phase: str, silent: str) -> None:
        """A move to q2 in which one host falls silent at the end of a phase, so that it is left unfinished."""
        store_move = self.store.put_move

        def put(move):  # type: ignore[no-untyped-def]
            store_move(move)
            if str(move.phase) == phase:
                self.world.dead.add(silent)

        self.store.put_move = put  # type: ignore[method-assign]
        with pytest.raises(WherryError):
            self.moves.run("c-0", "q2")
        self.store.put_move = store_move  # type: ignore[method-assign]
        if self.store.moves(unfinished=True):
            with pytest.raises(WherryError) as refused:
                self.clusters.down("c")
            assert refused.value.code == Code.WRONG_STATE and self.store.cluster("c")

    def lose(self, host: str) -> None:
        """As `wherry host lost`, and the recovery that follows by itself."""
        self.fabric.set_lost(host, True)
        self.store.set_host_flag(host, "lost", True)
        for move in self.moves.recoverable():
            self.moves.recover(only=move.id)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setattr("wherry.move.state_machine._PAUSE", 0.0)
    monkeypatch.setattr("wherry.cluster.binds.trusted_path", lambda path, _: path)
    with qemu_world(monkeypatch, tmp_path) as world:
        yield Site(world, tmp_path)


def test_the_destination_before_the_commit(site: Site) -> None:
    """The move is rolled back without another command, and the node runs; remains at the lost host are remembered."""
    site.interrupted("prepare", "q2")
    assert not site.store.moves(unfinished=True)
    site.lose("q2")
    assert site.store.moves()[0].phase == Phase.ROLLED_BACK
    assert (site.node.host, site.node.state) == ("q1", NodeState.RUNNING) and site.world.states()[0] == [RUNS]
    assert site.driver.orphans() == [("c-0", "q2")]
    site.clusters.down("c")
    assert site.store.cluster("c") is None and site.world.states()[0] == []


def test_the_source_before_the_commit(site: Site) -> None:
    """The destination's copy is not whole: the node is lost, and can be restarted there."""
    site.interrupted("prepare", "q1")
    assert site.store.moves(unfinished=True)
    site.lose("q1")
    (move,) = site.store.moves()
    assert move.ended and move.error and site.node.state == NodeState.LOST
    assert site.world.states()[1] == []
    site.clusters.down("c")
    assert site.store.cluster("c") is None and ("c-0", "q1") in site.driver.orphans()


def test_the_source_after_the_commit(site: Site) -> None:
    """The destination's copy is the node: it runs there without the source."""
    site.interrupted("commit", "q1")
    assert site.store.moves(unfinished=True)
    site.lose("q1")
    assert site.store.moves()[0].phase == Phase.DONE
    assert (site.node.host, site.node.state) == ("q2", NodeState.RUNNING) and site.world.states()[1] == [RUNS]


def test_the_destination_after_the_commit(site: Site) -> None:
    """The copy that counts is gone with its host."""
    site.interrupted("commit", "q2")
    assert site.store.moves(unfinished=True)
    site.lose("q2")
    (move,) = site.store.moves()
    assert move.phase == Phase.DONE and move.error and site.node.state == NodeState.LOST
    assert site.world.states()[0] == []
    site.clusters.down("c")


def test_nodes_of_a_lost_host_are_lost_and_its_cluster_can_be_removed(site: Site) -> None:
    site.world.dead.add("q1")
    assert site.clusters.gone("c") == []  # silent is not lost
    site.lose("q1")
    assert [node.name for node in site.clusters.lose("c", site.clusters.gone("c"))] == ["c-0"]
    site.clusters.down("c")
    assert site.store.cluster("c") is None and site.driver.orphans() == [("c-0", "q1")]
    site.world.dead.clear()
    site.fabric.set_lost("q1", False)
    site.driver.end_orphan("c-0", "q1")  # as the restore of the host does first
    assert site.world.states()[0] == [] and site.driver.orphans() == []


def test_declaring_and_restoring(service: Service) -> None:
    managers = service.context.require_managers()
    with Client(service.place, start=False) as client:
        client.wait(client.up(CLUSTER, "FILE").id)
        with pytest.raises(WherryError) as caught:
            client.declare_lost("a1")
        assert caught.value.code == Code.WRONG_STATE and "answers" in caught.value.what
        managers.fabric.set_down("a1", True)
        nodes = (client.wait(client.declare_lost("a1").id).result or {})["nodes"]
        assert nodes and {host.name: host.lost for host in client.hosts()} == {"a1": True, "a2": False, "b1": False}
        with pytest.raises(WherryError) as caught:
            client.wait(client.restore("a1").id)
        assert caught.value.code == Code.HOST_DOWN and client.hosts()[0].lost
        assert service.context.make_managers(managers.fabric).fabric.lost == {"a1"}  # type: ignore[attr-defined]
        fake, ended = managers.drivers["container"], list[tuple[str, str]]()
        fake.left = [("gone-1", "a1"), ("gone-1", "b1")]  # type: ignore[attr-defined]
        fake.end_orphan = lambda node, host: ended.append((node, host))  # type: ignore[method-assign]
        managers.fabric.set_down("a1", False)
        client.wait(client.restore("a1").id)
        assert ended == [("gone-1", "a1")] and not client.hosts()[0].lost


def test_a_host_that_answers_again_before_the_claim_is_not_lost(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric, operations = service.context.require_managers().fabric, service.context.operations
    start = operations.start

    def late(*arguments: Any, **claims: Any) -> Operation:
        fabric.set_down("a1", False)  # type: ignore[attr-defined]
        return start(*arguments, **claims)

    monkeypatch.setattr(operations, "start", late)
    with Client(service.place, start=False) as client:
        fabric.set_down("a1", True)  # type: ignore[attr-defined]
        with pytest.raises(WherryError) as caught:
            client.wait(client.declare_lost("a1").id)
        assert caught.value.code == Code.WRONG_STATE and "answers" in caught.value.what
        assert not client.hosts()[0].lost


def test_a_copy_that_cannot_be_ended_keeps_its_host_out(service: Service) -> None:
    managers = service.context.require_managers()
    with Client(service.place, start=False) as client:
        managers.fabric.set_down("a1", True)
        client.wait(client.declare_lost("a1").id)
        managers.fabric.set_down("a1", False)

        def fails(node: str, host: str) -> None:
            raise LostContact(Code.UNREACHABLE, f"{host} fell silent again")

        fake = managers.drivers["container"]
        fake.left = [("gone-1", "a1")]  # type: ignore[attr-defined]
        fake.end_orphan = fails  # type: ignore[method-assign]
        with pytest.raises(WherryError):
            client.wait(client.restore("a1").id)
        assert client.hosts()[0].lost


def test_the_uri_of_a_used_host_is_never_half_written(site: Site) -> None:
    """A sweep that read an empty one would look for the nodes on this machine, and forget the host."""
    site.driver.note("q1")
    ended = threading.Event()

    def note() -> None:
        while not ended.is_set():
            site.driver.note("q1")

    writers = [threading.Thread(target=note) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen = {tuple(real_driver.hosts_used(site.driver.instance).items()) for _ in range(3000)}
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    assert seen == {(("q1", site.world.uris["q1"]),)}


# A fabric that has a row and is not on the machine, as after a reboot: command errors, and how it is made again.


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(service.place.socket)), base_url="http://wherryd", timeout=60
    ) as client:
        assert ended(client, client.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
        yield client


def fabric_of(service: Service) -> FakeFabric:
    assert service.context.managers
    fabric: Any = service.context.managers.fabric
    return fabric


def test_up_makes_the_fabric_again(http: httpx.Client, service: Service) -> None:
    fabric = fabric_of(service)
    fabric.down()
    refused = http.post("/v1/moves", json={"node": "hello-0", "host": "a2"}).json()
    assert refused["code"] == "WRONG_STATE" and refused["next"] == "wherry up FILE, or: wherry fabric up FILE"
    planned = http.post("/v1/clusters", json={"spec": CLUSTER, "dry_run": True})
    assert planned.status_code == 200 and not fabric.is_up()
    assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
    assert fabric_of(service) is fabric and fabric.is_up()
    assert fabric.networks and http.get("/v1/clusters").json()[0]["state"] == "running"


def test_one_that_cannot_be_made_says_why(http: httpx.Client, service: Service) -> None:
    fabric = fabric_of(service)
    fabric.down()
    fabric.fail_at["up"] = "no such device"
    found = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert found["state"] == "failed" and found["error"]["why"] == "no such device"
