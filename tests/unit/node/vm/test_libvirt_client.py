"""Answers of libvirt that come at a bad moment: a connection that breaks, a domain or a file that is gone by then."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from qemuworld import INSTANCE, RUNS, Connection, Error, Machine, World, driver, place, qemu_driver, world

import waiting
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.fake import FakeFabric
from wherry.node.vm import domain_names, libvirt_client, migration_job
from wherry.node.vm.emulated.driver import VmDriver
from wherry.node.vm.host_connections import HostConnections
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real import remote_storage
from wherry.node.vm.real.qemu import QemuDriver
from wherry.service import purge

__all__ = ["driver", "world"]  # fixtures


def broken(*_words: Any) -> None:
    raise Error(38, "client socket is closed")


def test_two_machines_with_instances_of_one_name_share_hosts(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver.start(place("q1"))
    first = world.machines["q1"][0].id
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "other machine"))
    other = qemu_driver(world)
    other.stop(place("q1"))
    with pytest.raises(Failed, match="already exists"):
        other.start(place("q1"))
    assert not other.alive(place("q1"))
    assert [machine.id for machine in world.machines["q1"]] == [first] and world.states()[0] == [RUNS]
    monkeypatch.setattr(real_driver, "HostConnections", lambda uris: SimpleNamespace(connect=world.connect))
    other.sweep()
    assert world.states()[0] == [RUNS]


def test_an_instance_has_one_identity_whoever_makes_it(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:

        def start(_number: int) -> str:
            domain_names.make_identity(INSTANCE)
            return domain_names.remote_domain_id(INSTANCE, "c-0")

        assert len(set(pool.map(start, range(64)))) == 1
    assert [path.name for path in domain_names.notes(INSTANCE).iterdir()] == [".identity"]
    assert domain_names.remote_domain_id(INSTANCE, "c-0") != domain_names.domain_id(INSTANCE, "c-0")


def test_an_instance_that_has_nodes_keeps_their_ids(world: World, driver: QemuDriver) -> None:
    """The ids of nodes that an earlier version, without identities, started."""
    driver.note("q1")
    driver.start(place("q1"))
    assert world.machines["q1"][0].id == domain_names.domain_id(INSTANCE, "c-0")


def test_a_copy_that_dies_on_arrival_is_not_committed(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    mover.freeze()
    mover.transfer()
    world.machines["q2"].clear()
    with pytest.raises(Failed, match="did not survive its arrival") as told:
        mover.restore()
    assert told.value.code == Code.MOVE_FAILED
    assert migration_job.cost(None) == (0, None)


def test_a_migration_is_given_up_at_once_when_the_connection_breaks(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pause: the node may be stopped, and the next attempt has a new connection."""
    driver.start(place("q1"))
    (domain,) = world.machines["q1"]
    monkeypatch.setattr(Machine, "jobInfo", broken)
    monkeypatch.setattr(Connection, "isAlive", broken)
    monkeypatch.setattr(migration_job, "time", SimpleNamespace(monotonic=lambda: 0.0))
    with pytest.raises(LostContact, match="client socket is closed"):
        migration_job.abort(domain)


def test_a_machine_that_is_named_twice_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move to its other name would begin by ending the node as a leftover at the destination."""
    uuids = {"q1": "4c4c4544-1", "q2": "4c4c4544-1"}
    hosts = HostConnections(world.uris)
    monkeypatch.setattr(hosts, "connect", world.connect)
    monkeypatch.setattr(
        Connection,
        "getCapabilities",
        lambda one: f"<capabilities><host><uuid>{uuids[one.host]}</uuid></host></capabilities>",
    )
    for _ in range(2):
        assert hosts.facts("q1").architecture == "x86_64"
    with pytest.raises(Refused, match="hosts q1 and q2 are the same machine") as told:
        hosts.facts("q2")
    assert told.value.code == Code.INVALID_FILE and "host_uuid" in told.value.next
    uuids["q2"] = "4c4c4544-2"
    hosts.facts("q2")


def test_events_that_cannot_be_had_are_an_error_of_ours(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    monkeypatch.setattr(Connection, "domainEventRegisterAny", broken)
    with pytest.raises(Failed, match="the migration was not started: client socket is closed"):
        mover.round(1)


def test_hosts_that_stand_are_waited_for_together(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after the other; the error names the hosts that do not answer in time, with the reason."""
    both, ended = threading.Barrier(2), threading.Event()

    def connect(host: str) -> Any:
        both.wait()
        if host == "q2":
            ended.wait()
        raise LostContact(Code.UNREACHABLE, f"no libvirtd answers at {host}", "Connection refused")

    driver.note("q1")
    driver.note("q2")
    monkeypatch.setattr(real_driver, "HostConnections", lambda uris: SimpleNamespace(connect=connect))
    monkeypatch.setattr(real_driver, "_SWEEP", 3600.0)
    times = iter([0.0, 0.0, 3600.0])  # of the beginning, and before the wait for each
    monkeypatch.setattr(real_driver, "time", SimpleNamespace(monotonic=lambda: next(times)))
    try:
        left = real_driver.sweep(INSTANCE)
    finally:
        ended.set()
    assert left == {"q1": "Connection refused", "q2": "it did not answer within 3600 s"}
    assert set(real_driver.hosts_used(INSTANCE)) == {"q1", "q2"}
    error = purge._in_part(INSTANCE, {"hosts": ["q1 (x)", "q2 (x)"], "cgroups": ["a"], "tiles": []}, left, "")
    assert error.code == Code.PARTLY_DONE and error.next == "wherry down --all, once they answer"
    assert error.why == (
        "not removed: cgroups: a; objects on host q1 (x): Connection refused; "
        "objects on host q2 (x): it did not answer within 3600 s"
    )


def test_a_libvirtd_that_stands_keeps_no_removal_for_long(world: World) -> None:
    """It is killed, as a node's removal needs nothing of it but that it forgets the node."""
    waits, ends = list[float](), list[str]()

    class Standing:
        host = "a1"

        def connect(self, seconds: float) -> Any:
            waits.append(seconds)
            raise LostContact(Code.UNREACHABLE, "no libvirtd answers", f"waited {seconds:.0f} s")

        def stop(self) -> None:
            ends.append(self.host)

        def qemu(self, name: str) -> int | None:
            return None

    driver = VmDriver(INSTANCE, FakeFabric(default_fabric()))
    driver._await_forgotten(Standing(), "c-0")  # type: ignore[arg-type]
    assert ends == ["a1"] and 20 < waits[0] <= 30, "a host that is only busy may take 20 s"


def test_a_machine_that_stays_is_given_up(world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.start(place("q1"))
    monkeypatch.setattr(real_driver, "_GONE_TIMEOUT", 0.02)
    monkeypatch.setattr(Machine, "destroy", lambda _machine: None)
    with pytest.raises(Failed, match="could not be destroyed: libvirt still lists it") as told:
        driver.stop(place("q1"))
    assert told.value.code == Code.TIMED_OUT and "virsh destroy wherry-tq-c-0" in told.value.next


def test_a_file_that_another_caller_removes_meanwhile(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start(place("q1"))
    monkeypatch.setattr(Connection, "listVolumes", lambda _connection: ["wherry-tq-c-0.initrd"])
    driver.stop(place("q1"))
    assert world.states()[0] == []


def test_events_go_on_after_an_error() -> None:
    turns = iter([broken, lambda: None, broken])

    def turn() -> None:
        next(turns, sys.exit)()

    with pytest.raises(SystemExit):
        libvirt_client._run_events(SimpleNamespace(virEventRunDefaultImpl=turn, libvirtError=Error))
    assert next(turns, None) is None


def test_a_libvirtd_that_hangs_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, opened = threading.Event(), list[str]()

    def hang(uri: str) -> Any:
        opened.append(uri)
        answer.wait()
        return SimpleNamespace(setKeepAlive=lambda _interval, _count: None)

    monkeypatch.setattr(libvirt_client, "load", lambda: SimpleNamespace(open=hang, libvirtError=Error))
    for _ in range(5):
        with pytest.raises(LostContact, match="no libvirtd answers at qemu://hangs"):
            libvirt_client.connect("qemu://hangs", 0.01)
    waiting.until(lambda: opened, "the first")
    assert len(opened) == 1
    answer.set()
    assert libvirt_client.connect("qemu://hangs", waiting.bound()) and len(opened) == 2


# The directory of files on a real host, with libvirt's own test driver.


class Late:
    """A connection on which another instance creates the pool just after it was looked up in vain."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._looked = connection, False

    def storagePoolLookupByName(self, name: str) -> Any:  # noqa: N802 - libvirt's name
        try:
            return self._connection.storagePoolLookupByName(name)
        finally:
            if not self._looked:
                self._looked = True
                remote_storage._find_pool(self)

    def storagePoolCreateXML(self, xml: str, _flags: int) -> Any:  # noqa: N802 - libvirt's name
        return self._connection.storagePoolCreateXML(xml, 0)  # the test driver builds no directory


def test_a_pool_that_another_instance_creates_meanwhile_is_used() -> None:
    pytest.importorskip("libvirt")
    connection = libvirt_client.load().open("test:///default")
    pool = remote_storage._find_pool(Late(connection))
    try:
        assert pool.name() == "wherry"
    finally:
        pool.destroy()
        connection.close()
