"""Two Xen hosts whose libvirt is in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
from wherry.node.vm import agent_liveness, driver_base, libvirt_client
from wherry.node.vm.image.catalog import VmImage
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real import xen_mover
from wherry.node.vm.real.xen import XenDriver

INSTANCE = Instance("tx")
HOSTS = [
    {"name": name, "site": "a", "cores": 1, "memory": "1GiB", "uri": f"xen+tcp://10.0.0.{n}/"}
    for n, name in ((1, "x1"), (2, "x2"))
]
FABRIC: dict[str, Any] = {
    "kind": "fabric", "version": 1, "name": "xen", "driver": "libvirt", "bridge": "lan0", "sites": [{"name": "a"}],
    "hosts": HOSTS,
}  # fmt: skip
KEY = "ab" * 32


class Error(Exception):
    """As libvirt's, with its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"libvirt says {number}")
        self.number = number

    def get_error_code(self) -> int:
        return self.number


class Domain:
    """A guest at a host."""

    def __init__(self, world: World, host: str, name: str, uuid: str, state: int) -> None:
        self.world, self.host, self._name, self._uuid, self.now = world, host, name, uuid, state
        self.cpu = 3_000_000_000

    def name(self) -> str:
        return self._name

    def UUIDString(self) -> str:
        return self._uuid

    def state(self) -> tuple[int, int]:
        return self.now, 0

    def info(self) -> list[int]:
        self.cpu += self.world.work
        return [self.now, 160 << 10, 150 << 10, 1, self.cpu]

    def jobInfo(self) -> list[int]:
        return [World.VIR_DOMAIN_JOB_NONE]

    def resume(self) -> None:
        self.now = World.VIR_DOMAIN_RUNNING

    def destroy(self) -> None:
        self.world.domains[self.host].remove(self)

    def connect(self) -> Any:
        return SimpleNamespace(newStream=lambda _flags: None)

    def openConsole(self, *_words: Any) -> None:
        raise Error(1)

    def migrateToURI3(self, peer: str, params: dict[str, str], flags: int) -> None:
        """As libvirt does: a paused copy at the other host, then the end of this one; or half of it."""
        there = next(host["name"] for host in HOSTS if host["uri"] == peer)
        assert params == {"uri": f"tcp://{parse_uri(peer).host}"} and flags == 1 | 2 | 32
        self.world.migrating.set()
        self.world.proceed.wait(60)
        self.world.domains[there].append(Domain(self.world, there, self._name, self._uuid, World.VIR_DOMAIN_PAUSED))
        if self.world.lose:
            raise Error(38)
        self.destroy()


class World:
    """A module `libvirt`, and the contents of the hosts."""

    libvirtError = Error
    VIR_ERR_NO_DOMAIN, VIR_ERR_NO_STORAGE_POOL, VIR_ERR_NO_STORAGE_VOL = 42, 49, 50
    VIR_DOMAIN_RUNNING, VIR_DOMAIN_PAUSED, VIR_DOMAIN_SHUTOFF = 1, 3, 5
    VIR_DOMAIN_START_PAUSED, VIR_DOMAIN_CONSOLE_FORCE, VIR_DOMAIN_JOB_NONE, VIR_STORAGE_POOL_CREATE_WITH_BUILD = range(
        4
    )
    VIR_MIGRATE_LIVE, VIR_MIGRATE_PEER2PEER, VIR_MIGRATE_PAUSED, VIR_MIGRATE_PARAM_URI = 1, 2, 32, "uri"
    VIR_STREAM_NONBLOCK = 1

    def __init__(self) -> None:
        self.domains: dict[str, list[Domain]] = {"x1": [], "x2": []}
        self.files: dict[str, dict[str, bytes]] = {"x1": {}, "x2": {}}
        self.dead: set[str] = set()
        self.described: list[str] = []
        self.lose = False
        self.work = 0
        self.migrating, self.proceed = threading.Event(), threading.Event()
        self.proceed.set()
        self.lost: set[str] = set()
        self.uris = {str(host["name"]): str(host["uri"]) for host in HOSTS}

    def connect(self, host: str) -> Any:
        """As `Reach` does."""
        if host in self.dead:
            raise LostContact(Code.UNREACHABLE, f"no libvirtd answers at {host}")
        return Connection(self, host)


class Connection:
    """To one host; its only storage pool, and its volumes and streams."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host

    def lookupByUUIDString(self, uuid: str) -> Domain:
        for domain in self.world.domains[self.host]:
            if domain.UUIDString() == uuid:
                return domain
        raise Error(World.VIR_ERR_NO_DOMAIN)

    def createXML(self, text: str, _flags: int) -> Any:
        root = ElementTree.fromstring(text)
        if root.tag == "volume":
            name = root.findtext("name") or ""
            return SimpleNamespace(upload=lambda stream, _at, size, _flags: stream.to(name, size))
        self.world.described.append(text)
        names = self.world.files[self.host]
        assert {Path(root.findtext(f"os/{tag}") or "").name for tag in ("kernel", "initrd")} <= set(names)
        name, uuid = root.findtext("name") or "", root.findtext("uuid") or ""
        domain = Domain(self.world, self.host, name, uuid, World.VIR_DOMAIN_PAUSED)
        self.world.domains[self.host].append(domain)
        return domain

    def storagePoolLookupByName(self, _name: str) -> Any:
        raise Error(World.VIR_ERR_NO_STORAGE_POOL)

    def storagePoolCreateXML(self, text: str, _flags: int) -> Any:
        assert ElementTree.fromstring(text).findtext("target/permissions/mode") == "0711"
        return self

    def listVolumes(self) -> list[str]:
        return list(self.world.files[self.host])

    def storageVolLookupByName(self, name: str) -> Any:
        if name not in self.world.files[self.host]:
            raise Error(World.VIR_ERR_NO_STORAGE_VOL)
        return SimpleNamespace(delete=lambda _flags: self.world.files[self.host].pop(name))

    def newStream(self, _flags: int) -> Stream:
        return Stream(self.world.files[self.host])


class Stream:
    """A stream into a file."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.name, self.size = files, "", 0

    def to(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def sendAll(self, more: Any, opaque: None) -> None:
        self.files[self.name] = b"".join(iter(lambda: more(self, 7, opaque), b""))

    def finish(self) -> None:
        assert len(self.files[self.name]) == self.size


def place(host: str, **more: Any) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, cpus=1.5, memory=160 << 20, address="10.77.1.1",
        mac="02:77:00:00:01:00",
    )  # fmt: skip
    words = {"netns": "/head", "cgroup": "c", "key": SecretStr(KEY), "user": "1000:1000:", "device": "xenbr0"}
    return Placement(node=node, host=host, hosts_file="127.0.0.1 localhost\n", **(words | more))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """A libvirt in memory, an image, agents that answer where a guest runs."""
    made = World()
    image = VmImage(tmp_path / "kernel", tmp_path / "initrd.img", "default", "0")
    image.kernel.write_bytes(b"a kernel")
    image.initrd.write_bytes(b"a RAM disk")

    def answers(where: Placement, _seconds: float) -> bool:
        return any(domain.now == World.VIR_DOMAIN_RUNNING for domain in made.domains[where.host])

    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(libvirt_client, "load", lambda: made)
    monkeypatch.setattr(real_driver, "find_image", lambda _name: image)
    for module in (agent_liveness, driver_base, real_driver, xen_mover):
        monkeypatch.setattr(module, "answers", answers)
    yield made
    made.proceed.set()


@pytest.fixture
def driver(world: World) -> XenDriver:
    fabric = FakeFabric(parse(FabricSpec, FABRIC, "FILE"))
    return XenDriver(INSTANCE, fabric, world)  # type: ignore[arg-type]


def states(world: World) -> dict[str, list[int]]:
    """The state of each guest at each host."""
    return {host: [domain.now for domain in found] for host, found in world.domains.items()}


RUNS_AT_1 = {"x1": [World.VIR_DOMAIN_RUNNING], "x2": list[int]()}
RUNS_AT_2 = {"x1": list[int](), "x2": [World.VIR_DOMAIN_RUNNING]}
