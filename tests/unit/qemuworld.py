"""Hosts that run QEMU, for unit tests: a libvirt in memory, with machines, files and migrations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import SecretStr

from wherry.base.errors import Code, LostContact
from wherry.base.paths import Instance
from wherry.fabric.fake import FakeFabric
from wherry.model.libvirt_uri import parse_uri
from wherry.model.records import Node
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.node.protocol import Placement
from wherry.node.vm import driver_base, libvirt_client
from wherry.node.vm.image.catalog import VmImage
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real import qemu as real_qemu
from wherry.node.vm.real.qemu import QemuDriver

INSTANCE = Instance("tq")
HOSTS = [
    {"name": f"q{n}", "site": "a", "cores": 1, "memory": "1GiB", "uri": f"qemu+tls://10.0.0.{n}/system"} for n in (1, 2)
]
FABRIC: dict[str, Any] = {
    "kind": "fabric", "version": 1, "name": "qemu", "driver": "libvirt", "bridge": "lan0", "sites": [{"name": "a"}],
    "hosts": HOSTS,
}  # fmt: skip
KEY = "ab" * 32
RUNS, STANDS = (1, 0), (3, 1)
"""State and reason: running, and paused as was asked for."""
WAITS, FETCHED, FETCHES = (3, 2), (3, 12), (1, 10)
"""Paused while memory comes in; in post-copy mode paused as the rest is fetched from here, and running as it is."""
BROKEN, LACKS = (3, 13), (1, 11)
"""The same two when post-copy failed."""


class Error(Exception):
    """As libvirt's, with its number."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text or f"libvirt says {number}")
        self.number = number

    def get_error_code(self) -> int:
        return self.number


class World:
    """A module `libvirt`, and the contents of the hosts."""

    libvirtError = Error
    VIR_ERR_NO_DOMAIN, VIR_ERR_NO_STORAGE_POOL, VIR_ERR_NO_STORAGE_VOL = 42, 49, 50
    VIR_DOMAIN_RUNNING, VIR_DOMAIN_PAUSED, VIR_DOMAIN_SHUTOFF = 1, 3, 5
    VIR_DOMAIN_PAUSED_USER, VIR_DOMAIN_PAUSED_MIGRATION = 1, 2
    VIR_DOMAIN_PAUSED_POSTCOPY, VIR_DOMAIN_PAUSED_POSTCOPY_FAILED = 12, 13
    VIR_DOMAIN_RUNNING_POSTCOPY, VIR_DOMAIN_RUNNING_POSTCOPY_FAILED = 10, 11
    VIR_DOMAIN_START_PAUSED, VIR_DOMAIN_CONSOLE_FORCE, VIR_DOMAIN_JOB_NONE, VIR_STORAGE_POOL_CREATE_WITH_BUILD = range(
        4
    )
    VIR_MIGRATE_LIVE, VIR_MIGRATE_PEER2PEER, VIR_MIGRATE_PAUSED, VIR_MIGRATE_POSTCOPY = 1, 2, 32, 64
    VIR_MIGRATE_TLS = 65536
    VIR_MIGRATE_PARAM_BANDWIDTH, VIR_MIGRATE_PARAM_BANDWIDTH_POSTCOPY = "bandwidth", "bandwidth.postcopy"
    VIR_MIGRATE_PARAM_URI, VIR_MIGRATE_PARAM_DEST_XML = "uri", "xml"
    VIR_DOMAIN_XML_MIGRATABLE, VIR_CONNECT_BASELINE_CPU_MIGRATABLE = 8, 2
    VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE = 1
    VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_SUSPENDED, VIR_DOMAIN_EVENT_STOPPED = 0, 3, 5
    VIR_DOMAIN_JOB_STATS_COMPLETED, VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED, VIR_DOMAIN_JOB_DOWNTIME = 1, 2, "downtime"
    VIR_DOMAIN_JOB_MEMORY_ITERATION, VIR_DOMAIN_JOB_MEMORY_PROCESSED = "iteration", "processed"
    VIR_DOMAIN_JOB_MEMORY_REMAINING, VIR_DOMAIN_JOB_MEMORY_BPS = "remaining", "bps"
    VIR_DOMAIN_JOB_MEMORY_DIRTY_RATE, VIR_DOMAIN_JOB_MEMORY_PAGE_SIZE = "dirty", "page"
    VIR_STREAM_NONBLOCK, VIR_STREAM_EVENT_READABLE, VIR_STREAM_EVENT_ERROR, VIR_STREAM_EVENT_HANGUP = 1, 1, 4, 8

    def __init__(self) -> None:
        self.machines: dict[str, list[Machine]] = {"q1": [], "q2": []}
        self.files: dict[str, dict[str, bytes]] = {"q1": {}, "q2": {}}
        self.pools: set[str] = set()
        """Hosts whose libvirtd has our directory as a pool, until the host restarts."""
        self.strangers = False
        """Somebody else's agent answers at the node's address."""
        self.kinds = {"q1": "kvm", "q2": "kvm"}
        self.versions = {"q1": 10_000_002, "q2": 10_000_002}
        self.libvirts = {"q1": 9_000_000, "q2": 11_000_000}
        self.unfit = ""
        self.dead: set[str] = set()
        self.lost: set[str] = set()
        self.told: list[Callable[..., None]] = []
        """Callbacks for events."""
        self.breaks = False
        """The next migration fails when the source's CPUs have stopped."""
        self.params: dict[str, Any] = {}
        """Of the last migration."""
        self.severed = False
        """In post-copy mode the rest does not come."""
        self.uris = {str(host["name"]): str(host["uri"]) for host in HOSTS}

    def connect(self, host: str) -> Connection:
        """As `Reach` does."""
        if host in self.dead | self.lost:
            raise LostContact(Code.UNREACHABLE, f"no libvirtd answers at {host}")
        return Connection(self, host)

    open = connect

    def states(self) -> list[list[tuple[int, int]]]:
        """The states of the machines at each host."""
        return [[machine.now for machine in found] for found in self.machines.values()]

    def getVersion(self) -> int:
        """Of the library here."""
        return 11_000_000


class Machine:
    """At a host."""

    def __init__(self, world: World, host: str, description: str, now: tuple[int, int]) -> None:
        self.world, self.host, self.description, self.now = world, host, description, now
        root = ElementTree.fromstring(description)
        self.id, self._name = root.findtext("uuid") or "", root.findtext("name") or ""
        self.job = self.aborted = False
        self.stands = threading.Event()

    def name(self) -> str:
        return self._name

    def UUIDString(self) -> str:
        return self.id

    def state(self) -> tuple[int, int]:
        if self.host in self.world.dead:
            raise Error(38)
        return self.now

    def info(self) -> list[int]:
        return [self.now[0], 160 << 10, 160 << 10, 1, 3_000_000_000]

    def memoryStats(self) -> dict[str, int]:
        return {"rss": 150 << 10}

    def interfaceStats(self, device: str) -> tuple[int, ...]:
        assert device in self.description, "by its MAC"
        return (7000, 7, 0, 0, 3000, 3, 0, 0)

    def connect(self) -> Connection:
        return Connection(self.world, self.host)

    def XMLDesc(self, flags: int) -> str:
        assert flags == World.VIR_DOMAIN_XML_MIGRATABLE
        return self.description

    def openConsole(self, *_words: Any) -> None:
        raise Error(1)

    def resume(self) -> None:
        self.now = RUNS

    def suspend(self) -> None:
        self.now = STANDS
        self.stands.set()

    def destroy(self) -> None:
        self.world.machines[self.host].remove(self)

    def migrateSetMaxDowntime(self, milliseconds: int) -> None:
        assert milliseconds == 1

    def jobInfo(self) -> list[int]:
        return [1 if self.job else World.VIR_DOMAIN_JOB_NONE]

    def jobStats(self, flags: int = 0) -> dict[str, int]:
        """Two passes over the memory are made at once."""
        return {"downtime": 30, "processed": 900} if flags else {"iteration": 3, "processed": 800, "remaining": 70}

    def abortJob(self) -> None:
        self.aborted = True
        self.stands.set()

    def migrateStartPostCopy(self) -> None:
        (there,) = self.world.machines["q2"]
        self.now, there.now = FETCHED, FETCHES
        for told in self.world.told:
            told(None, self, World.VIR_DOMAIN_EVENT_SUSPENDED, 0, None)

    def migrateToURI3(self, peer: str, params: dict[str, str], flags: int) -> None:
        """As libvirt does: a copy that waits; when the source's CPUs stand it is whole, and the source's is ended."""
        self.world.params = params
        there = next(str(host["name"]) for host in HOSTS if host["uri"] == peer)
        assert params["uri"] == f"tcp://{parse_uri(peer).host}" and flags & 3 == 3
        assert (parse_uri(peer).transport == "tls") == bool(flags & World.VIR_MIGRATE_TLS)
        copy = Machine(self.world, there, params["xml"], WAITS)
        self.world.machines[there].append(copy)
        self.job = True
        try:
            if flags & World.VIR_MIGRATE_POSTCOPY:
                self.stands.wait(20)  # until the test sets it: all is fetched
                if self.world.severed:
                    self.now, copy.now = BROKEN, LACKS
                    raise Error(38, "the migration was broken")
                copy.now = RUNS
            else:
                assert flags & World.VIR_MIGRATE_PAUSED and self.stands.wait(20)
            if self.aborted or self.world.breaks:
                if there not in self.world.dead:
                    copy.destroy()
                raise Error(38, "the migration was ended")
            if copy.now == WAITS:
                copy.now = STANDS
            self.destroy()
        finally:
            self.job = False


class Connection:
    """To one host; also its only storage pool."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host

    def isAlive(self) -> bool:
        return self.host not in self.world.dead

    def close(self) -> None:
        """Nothing is kept open."""

    def domainEventRegisterAny(self, _domain: Machine, _id: int, told: Callable[..., None], _opaque: None) -> int:
        self.world.told.append(told)
        return 1

    def domainEventDeregisterAny(self, _number: int) -> None:
        """The next move is another object's."""

    def lookupByUUIDString(self, uuid: str) -> Machine:
        if self.host in self.world.dead:
            raise Error(38)
        for machine in self.world.machines[self.host]:
            if machine.id == uuid:
                return machine
        raise Error(World.VIR_ERR_NO_DOMAIN)

    def listAllDomains(self) -> list[Machine]:
        return list(self.world.machines[self.host])

    def getVersion(self) -> int:
        return self.world.versions[self.host]

    def getLibVersion(self) -> int:
        return self.world.libvirts[self.host]

    def getInfo(self) -> list[Any]:
        return ["x86_64", 8192, 2]

    def getCapabilities(self) -> str:
        return "<capabilities><host><cpu><model>EPYC</model><feature name='avx'/></cpu></host></capabilities>"

    def getDomainCapabilities(self, _path: None, _arch: str, machine: str, kind: str | None, _flags: int) -> str:
        own = self.world.kinds[self.host]
        if (kind == "kvm" and own == "qemu") or machine == "pc-q35-99":
            raise Error(8, f"no {machine} with {kind} here")
        cpu = "<mode name='host-model' supported='yes'><model fallback='forbid'>EPYC</model></mode>"
        return f"<domainCapabilities><domain>{own}</domain><cpu>{cpu}</cpu></domainCapabilities>"

    def baselineHypervisorCPU(
        self, _path: None, _arch: str, _machine: str, _kind: str, cpus: list[str], _f: int
    ) -> str:
        assert all(ElementTree.fromstring(cpu).attrib == {} for cpu in cpus)
        return f"<cpu mode='custom' match='exact'><model>for{len(cpus)}</model></cpu>"

    def compareHypervisorCPU(self, *_words: Any) -> int:
        if self.world.unfit:
            raise Error(60, self.world.unfit)
        return 2

    def createXML(self, text: str, _flags: int) -> Any:
        root, files = ElementTree.fromstring(text), self.world.files[self.host]
        if root.tag == "volume":
            assert root.findtext("target/permissions/mode") == ("0600" if "initrd" in text else "0644")
            return SimpleNamespace(upload=lambda stream, _at, _size, _flags: stream.to(root.findtext("name")))
        assert {Path(root.findtext(f"os/{tag}") or "").name for tag in ("kernel", "initrd")} <= set(files)
        machine = Machine(self.world, self.host, text, STANDS)
        if machine.name() in [other.name() for other in self.world.machines[self.host]]:
            raise Error(1, f"operation failed: domain '{machine.name()}' already exists")
        self.world.machines[self.host].append(machine)
        return machine

    def storagePoolLookupByName(self, _name: str) -> Connection:
        if self.host not in self.world.pools:
            raise Error(World.VIR_ERR_NO_STORAGE_POOL)
        return self

    def storagePoolCreateXML(self, text: str, _flags: int) -> Connection:
        assert ElementTree.fromstring(text).findtext("target/path") == "/var/lib/libvirt/wherry"
        self.world.pools.add(self.host)
        return self

    def listVolumes(self) -> list[str]:
        return list(self.world.files[self.host])

    def storageVolLookupByName(self, name: str) -> Any:
        if name not in self.world.files[self.host]:
            raise Error(World.VIR_ERR_NO_STORAGE_VOL)
        return SimpleNamespace(delete=lambda _flags: self.world.files[self.host].pop(name))

    def newStream(self, _flags: int) -> Any:
        stream = SimpleNamespace(name="", finish=lambda: None)
        stream.to = lambda name: setattr(stream, "name", name)
        files = self.world.files[self.host]
        stream.sendAll = lambda more, _opaque: files.update(
            {stream.name: b"".join(iter(lambda: more(stream, 7, None), b""))}
        )
        return stream


def place(host: str, **more: Any) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, cpus=1.5, memory=160 << 20, address="10.77.1.1",
        mac="02:77:00:00:01:00",
    )  # fmt: skip
    words = {"netns": "/head", "cgroup": "c", "key": SecretStr(KEY), "user": "1000:1000:", "device": f"br-{host}"}
    return Placement(node=node, host=host, hosts_file="127.0.0.1 localhost\n", **(words | more))


@contextmanager
def qemu_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """A libvirt in memory, an image, agents that answer where a machine runs."""
    made = World()
    image = VmImage(tmp_path / "kernel", tmp_path / "initrd.img", "default", "0")
    image.kernel.write_bytes(b"a kernel")
    image.initrd.write_bytes(b"a RAM disk")
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(libvirt_client, "load", lambda: made)
    for module in (real_driver, real_qemu):
        monkeypatch.setattr(module, "find_image", lambda _name: image)

    def answers(where: Placement, _seconds: float) -> bool:
        return made.strangers or RUNS in [machine.now for machine in made.machines[where.host]]

    for module in (driver_base, real_driver):
        monkeypatch.setattr(module, "answers", answers)
    monkeypatch.setattr(real_qemu, "await_answer", lambda _where, _words: 0.1)
    yield made
    for machine in [machine for found in made.machines.values() for machine in found]:
        machine.abortJob()


def qemu_driver(world: World) -> QemuDriver:
    """Of nodes in that world."""
    return QemuDriver(INSTANCE, FakeFabric(parse(FabricSpec, FABRIC, "FILE")), world)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with qemu_world(monkeypatch, tmp_path) as made:
        yield made


@pytest.fixture
def driver(world: World) -> QemuDriver:
    return qemu_driver(world)
