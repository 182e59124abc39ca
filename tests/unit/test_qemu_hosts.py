"""Nodes on real hosts that run QEMU: what libvirt is told, and a move's steps and faults with a libvirt in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import SecretStr

from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.paths import Instance
from wherry.fabric.fake import FakeFabric
from wherry.model.objects import Node
from wherry.model.owner import Owner
from wherry.model.spec import ClusterSpec, FabricSpec, NicSpec, parse, parse_yaml
from wherry.model.uri import parse_uri
from wherry.model.way import Way
from wherry.node.protocol import Place
from wherry.node.vm import live, remote, remote_qemu, virt
from wherry.node.vm.console import Consoles
from wherry.node.vm.image import VmImage
from wherry.node.vm.names import domain_id
from wherry.node.vm.reach import Reach
from wherry.node.vm.remote_qemu import QemuDriver, QemuMover, elsewhere

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
WAITS, FETCHED = (3, 2), (3, 8)
"""Paused while memory comes in, and paused as the rest is fetched from here (post-copy)."""


class Error(Exception):
    """As libvirt's, with its number."""

    def __init__(self, number: int, text: str = "") -> None:
        super().__init__(text or f"libvirt says {number}")
        self.number = number

    def get_error_code(self) -> int:
        return self.number


class World:
    """A module `libvirt`, and what is at the hosts."""

    libvirtError = Error
    VIR_ERR_NO_DOMAIN, VIR_ERR_NO_STORAGE_POOL, VIR_ERR_NO_STORAGE_VOL = 42, 49, 50
    VIR_DOMAIN_RUNNING, VIR_DOMAIN_PAUSED, VIR_DOMAIN_SHUTOFF = 1, 3, 5
    VIR_DOMAIN_PAUSED_USER, VIR_DOMAIN_PAUSED_MIGRATION = 1, 2
    VIR_DOMAIN_PAUSED_POSTCOPY, VIR_DOMAIN_PAUSED_POSTCOPY_FAILED = 8, 9
    VIR_DOMAIN_START_PAUSED, VIR_DOMAIN_CONSOLE_FORCE, VIR_DOMAIN_JOB_NONE, VIR_STORAGE_POOL_CREATE_WITH_BUILD = range(
        4
    )
    VIR_MIGRATE_LIVE, VIR_MIGRATE_PEER2PEER, VIR_MIGRATE_PAUSED, VIR_MIGRATE_POSTCOPY = 1, 2, 32, 64
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
        self.kinds = {"q1": "kvm", "q2": "kvm"}
        self.versions = {"q1": 10_000_002, "q2": 10_000_002}
        self.libvirts = {"q1": 9_000_000, "q2": 11_000_000}
        self.unfit = ""
        self.dead: set[str] = set()
        self.told: list[Callable[..., None]] = []
        """Who wants to hear of events."""
        self.breaks = False
        """The next migration ends badly when the source's CPUs stand."""
        self.uris = {str(host["name"]): str(host["uri"]) for host in HOSTS}

    def connect(self, host: str) -> Connection:
        """As `Reach` does."""
        if host in self.dead:
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
        self.now, there.now = FETCHED, RUNS

    def migrateToURI3(self, peer: str, params: dict[str, str], flags: int) -> None:
        """As libvirt does: a copy that waits; when the source's CPUs stand it is whole, and the source's is ended."""
        there = next(str(host["name"]) for host in HOSTS if host["uri"] == peer)
        assert params["uri"] == f"tcp://{parse_uri(peer).host}" and flags & 3 == 3
        copy = Machine(self.world, there, params["xml"], WAITS)
        self.world.machines[there].append(copy)
        self.job = True
        try:
            if flags & World.VIR_MIGRATE_POSTCOPY:
                self.stands.wait(20)  # until the test says that all is fetched
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
        self.world.machines[self.host].append(machine)
        return machine

    def storagePoolLookupByName(self, _name: str) -> Connection:
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


def place(host: str, **more: Any) -> Place:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, cpus=1.5, memory=160 << 20, address="10.77.1.1",
        mac="02:77:00:00:01:00",
    )  # fmt: skip
    words = {"netns": "/head", "cgroup": "c", "key": SecretStr(KEY), "user": "1000:1000:", "device": f"br-{host}"}
    return Place(node=node, host=host, hosts_file="127.0.0.1 localhost\n", **(words | more))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """A libvirt in memory, an image, agents that answer where a machine runs."""
    made = World()
    image = VmImage(tmp_path / "kernel", tmp_path / "initrd.img", "default", "0")
    image.kernel.write_bytes(b"a kernel")
    image.initrd.write_bytes(b"a RAM disk")
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(virt, "load", lambda: made)
    for module in (remote, remote_qemu):
        monkeypatch.setattr(module, "find_image", lambda _name: image)
    monkeypatch.setattr(remote, "answers", lambda where, _seconds: RUNS in [m.now for m in made.machines[where.host]])
    monkeypatch.setattr(remote_qemu, "await_answer", lambda _where, _words: 0.1)
    yield made
    for machine in [machine for found in made.machines.values() for machine in found]:
        machine.abortJob()


@pytest.fixture
def driver(world: World) -> QemuDriver:
    return QemuDriver(INSTANCE, FakeFabric(parse(FabricSpec, FABRIC, "FILE")), world)  # type: ignore[arg-type]


def described(driver: QemuDriver, **more: Any) -> ElementTree.Element:
    return ElementTree.fromstring(driver.describe(place("q1", **more), "/k", "/i"))


def until(look: Callable[[], bool]) -> None:
    """The migration runs in a thread of its own."""
    deadline = time.monotonic() + 10
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Files.


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("qemu+ssh://root@h1:2222/system", "qemu+ssh://root@h1:2222/system"),
        ("qemu+tls://h1", "qemu+tls://h1/system"),
        ("qemu+tcp://10.0.0.1/", "qemu+tcp://10.0.0.1/system"),
    ],
)
def test_good_uris(text: str, canonical: str) -> None:
    assert str(parse_uri(text)) == canonical and parse_uri(canonical) == parse_uri(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("qemu:///system", "does not say how the host is reached"),
        ("qemu+tls://h/session", "the path of a QEMU host is /system"),
        ("qemu+tls://h/system?pkipath=/tmp", "parameters are not taken"),
        ("qemu+tcp://root@h/system", "for qemu\\+ssh only"),
        ("lxc+ssh://h/", "run QEMU or Xen"),
    ],
)
def test_bad_uris(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_uri(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [HOSTS[0], HOSTS[1] | {"uri": "xen+tls://10.0.0.2/"}]}, "host q2 runs xen and host q1 qemu"),
        ({"hosts": [HOSTS[0] | {"shadow_paging": True}]}, "host q1 does not run Xen"),
        ({"hosts": [HOSTS[0], HOSTS[1] | {"uri": "qemu+tls://10.0.0.1"}]}, "two hosts have the same uri"),
    ],
)
def test_bad_fabrics(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(FabricSpec, FABRIC | change, "FILE")
    assert caught.value.code == Code.INVALID_FILE and words in caught.value.why


def test_the_example() -> None:
    file = Path(__file__).parents[2] / "examples" / "qemu-hosts.yaml"
    spec = parse_yaml(FabricSpec, file.read_text(), file.name)
    assert spec.hypervisor == "qemu" and [host.plug for host in spec.hosts] == ["br0", "br1"]


def test_the_bridge_that_nodes_are_at() -> None:
    xen = HOSTS[0] | {"uri": "xen+tls://10.0.0.1/"}
    hosts = [parse(FabricSpec, FABRIC | {"hosts": [host]}, "FILE").hosts[0] for host in (HOSTS[0], xen)]
    assert [host.plug for host in hosts] == ["br0", "xenbr0"]
    assert parse(FabricSpec, FABRIC | {"hosts": [HOSTS[0] | {"bridge": "br7"}]}, "FILE").hosts[0].plug == "br7"


# Descriptions.


def test_a_machine_with_kvm(driver: QemuDriver) -> None:
    root = described(driver)
    assert root.get("type") == "kvm" and root.findtext("name") == "wherry-tq-c-0"
    assert root.findtext("uuid") == domain_id(INSTANCE, "c-0") and root.findtext("vcpu") == "2"
    kind, serial, nic = (root.find(path) for path in ("os/type", "devices/serial", "devices/interface"))
    assert kind is not None and (kind.text, kind.get("machine")) == ("hvm", "q35")
    assert (root.findtext("os/kernel"), root.findtext("os/initrd")) == ("/k", "/i")
    assert root.findtext("cpu/model") == "for3"  # its own host's, and what both offer
    assert serial is not None and serial.get("type") == "pty"
    assert nic is not None and nic.get("type") == "bridge" and root.find("devices/interface/driver") is not None
    source, driven = root.find("devices/interface/source"), root.find("devices/interface/driver")
    assert source is not None and source.get("bridge") == "br-q1" and driven is not None and driven.attrib == {}
    line = root.findtext("os/cmdline") or ""
    assert {"console=ttyS0", "wherry.name=c-0", "wherry.address=10.77.1.1/24"} <= set(
        line.split()
    ) and "tsc=" not in line
    assert KEY not in ElementTree.tostring(root, "unicode")


def test_a_machine_that_is_emulated(world: World, driver: QemuDriver) -> None:
    world.kinds["q1"] = "qemu"
    root = described(driver)
    driven = root.find("devices/interface/driver")
    assert root.get("type") == "qemu" and "tsc=unstable" in (root.findtext("os/cmdline") or "").split()
    assert driven is not None and driven.attrib == {"name": "qemu"}
    assert root.findtext("cpu/model") == "for2"  # q2's is another kind's


def test_a_processor_that_libvirt_cannot_name(driver: QemuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_words: Any) -> str:
        raise Error(1)

    monkeypatch.setattr(Connection, "baselineHypervisorCPU", fail)
    cpu = described(driver).find("cpu")
    assert cpu is not None and cpu.attrib == {"mode": "host-model"}


def test_adapters(driver: QemuDriver) -> None:
    nic = NicSpec(queues=2, vhost=True, checksum_offload=False)
    driven = described(driver, nic=nic).find("devices/interface/driver")
    assert driven is not None and driven.attrib == {"name": "vhost", "queues": "2"}
    assert {child.tag: child.get("csum") for child in driven} == {"host": "off", "guest": "off"}
    for model in ("e1000", "e1000e", "rtl8139"):
        devices = described(driver, nic=NicSpec(model=model)).find("devices/interface")  # type: ignore[arg-type]
        assert devices is not None and devices.find("driver") is None
        assert [child.get("type") for child in devices.findall("model")] == [model]


def test_elsewhere_it_has_no_ram_disk(driver: QemuDriver) -> None:
    there = ElementTree.fromstring(elsewhere(driver.describe(place("q1"), "/k", "/i"), "/other", "br7"))
    source = there.find("devices/interface/source")
    assert there.find("os/initrd") is None and there.findtext("os/kernel") == "/other"
    assert source is not None and source.get("bridge") == "br7"


def test_what_is_refused(world: World, driver: QemuDriver) -> None:
    world.kinds["q2"] = "qemu"
    others: list[tuple[dict[str, Any], str]] = [
        ({"nic": NicSpec(vhost=True)}, "host q2 cannot"),
        ({"guest": "pv"}, "no guests of kind pv"),
        ({"image": "/srv/x.qcow2"}, "a disk"),
    ]
    for keys, words in others:
        spec = ClusterSpec(kind="vm", name="c", nodes=1, **keys)
        with pytest.raises(Refused, match=words):
            driver.check(spec.flavor(0), Owner(uid=0, gid=0, home="/", cwd="/"))
    zstd = Way(connections=2, zstd=True)
    assert "libvirt 9.0 cannot" in driver.refused(zstd) and driver.refused(Way(mode="post-copy", connections=0)) == ""
    world.libvirts["q1"] = 11_000_000
    assert driver.refused(zstd) == ""


def test_moves_that_cannot_be_are_refused_before(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    (machine,) = world.machines["q1"]
    here, there = place("q1"), place("q2")
    assert driver.unmovable(here, there) == ""
    world.unfit = "the CPU is incompatible: avx512f"
    assert "host q2: the CPU is incompatible" in driver.unmovable(here, there)
    world.unfit, world.kinds["q2"] = "", "qemu"
    assert "no q35 with kvm here" in driver.unmovable(here, there)
    machine.description = machine.description.replace('machine="q35"', 'machine="pc-q35-99"')
    world.kinds["q2"] = "kvm"
    assert "no pc-q35-99" in driver.unmovable(here, there)


@pytest.mark.parametrize("old", ["q1", "q2"])
def test_emulated_machines_stay_where_qemu_is_old(world: World, driver: QemuDriver, old: str) -> None:
    world.kinds = {"q1": "qemu", "q2": "qemu"}
    driver.start(place("q1"))
    assert driver.unmovable(place("q1"), place("q2")) == ""
    world.versions[old] = 7_002_000
    assert f"host {old}: QEMU 7.2 can lose" in driver.unmovable(place("q1"), place("q2"))


# Life.


def test_start_and_stop(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    assert world.states() == [[RUNS], []] and driver.alive(place("q1"))
    assert driver.usage(place("q1")).memory == 150 << 20
    assert not [name for name in world.files["q1"] if name.endswith("initrd")]  # which has the key
    driver.stop(place("q1"))
    assert world.states() == [[], []]


def test_a_host_that_answers_nobody_delays_no_other(world: World, driver: QemuDriver) -> None:
    world.dead.add("q2")
    driver.start(place("q1"))
    assert world.states()[0] == [RUNS]


def test_the_sweep_ends_machines_and_removes_ram_disks(world: World, driver: QemuDriver, monkeypatch: Any) -> None:
    driver.start(place("q1"))
    foreign = Machine(world, "q1", "<domain><uuid>5b6f8f0e</uuid><name>wherry-tq-c-0</name></domain>", RUNS)
    world.machines["q1"].append(foreign)
    world.files["q1"] |= {"wherry-tq-c-0.initrd": b"a key", "wherry-tqx-c-0.initrd": b"another's", "kernel-1": b""}
    monkeypatch.setattr(remote, "Reach", lambda uris: SimpleNamespace(connect=world.connect))
    driver.sweep()
    assert world.machines["q1"] == [foreign]
    assert "wherry-tqx-c-0.initrd" in world.files["q1"] and "wherry-tq-c-0.initrd" not in world.files["q1"]
    assert remote.hosts_used(INSTANCE) == {}


def test_facts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reach = Reach(world.uris)
    monkeypatch.setattr(reach, "connect", world.connect)
    facts = reach.facts("q1")
    assert (facts.kernel, facts.cpu_model, facts.cpu_features) == ("QEMU 10.0.2 with KVM", "EPYC", frozenset())


# Moves.


def moved(driver: QemuDriver, way: Way | None = None) -> QemuMover:
    """A mover that has done everything before the commit."""
    mover = driver.mover(place("q1"), place("q2"), way)
    mover.pace(None)
    mover.prepare()
    first = mover.round(1)
    assert first.bytes == 800 and first.dirty == 70
    mover.freeze()
    assert mover.transfer().bytes == 100 and mover.restore() == 0.03
    return mover


def test_a_move(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = moved(driver)
    (there,) = world.machines["q2"]
    assert there.now == STANDS and "br-q2" in there.description and "initrd" not in there.description
    until(lambda: not world.machines["q1"])
    assert mover.switched()
    for _ in range(2):
        mover.release()
        mover.thaw()
    assert mover.ran_again() == 0.1
    mover.close()
    assert world.states() == [[], [RUNS]] and not [name for name in world.files["q2"] if name.endswith("initrd")]
    back = driver.mover(place("q2"), place("q1"))
    back.prepare()
    back.round(1)
    back.freeze()
    back.transfer()
    back.release()
    back.thaw()
    back.close()
    assert world.states() == [[RUNS], []]


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("step", ["prepare", "round", "freeze"])
def test_a_move_is_taken_back(world: World, driver: QemuDriver, step: str, anew: bool) -> None:
    """By the same mover, or by that of the next daemon."""
    driver.start(place("q1"))
    world.breaks = step == "freeze"
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    if step != "prepare":
        mover.round(1)
    if step == "freeze":
        mover.freeze()
    taken = driver.mover(place("q1"), place("q2")) if anew else mover
    assert not taken.switched()
    taken.roll_back()
    taken.close()
    assert world.states() == [[RUNS], []]


def test_an_orphan_of_a_host_that_died_is_ended_when_it_answers(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    world.dead.add("q2")
    world.breaks = True
    mover.freeze()
    with pytest.raises((Failed, LostContact)):
        mover.transfer()
    assert not mover.switched()
    mover.roll_back()
    mover.close()
    assert world.states() == [[RUNS], [WAITS]] and driver.alive(place("q1"))
    world.dead.clear()
    assert driver.alive(place("q1")) and world.states() == [[RUNS], []]


def test_a_migration_that_fails_says_what_to_look_at(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    world.breaks = True
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    mover.freeze()
    with pytest.raises(Failed) as caught:
        mover.transfer()
    assert "virsh -c qemu+tls://10.0.0.2/system version" in caught.value.next and "49152" in caught.value.next
    mover.roll_back()


def test_a_move_whose_source_is_gone_goes_on(world: World, driver: QemuDriver) -> None:
    """The daemon was killed after libvirt's point of no return."""
    driver.start(place("q1"))
    moved(driver)
    until(lambda: not world.machines["q1"])
    anew = driver.mover(place("q1"), place("q2"))
    assert anew.switched()
    anew.release()
    anew.thaw()
    anew.close()
    assert world.states() == [[], [RUNS]]


def test_a_machine_that_qemu_stopped_by_itself_stands_from_then_on(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.prepare()
    mover.round(1)
    for event in (World.VIR_DOMAIN_EVENT_SUSPENDED, World.VIR_DOMAIN_EVENT_STOPPED):  # the source is ended later
        world.told[-1](None, None, event, 0, None)
        time.sleep(0.05)
    stood = mover.freeze()
    assert stood is not None and stood >= 0.1
    assert driver.mover(place("q1"), place("q2")).freeze() is None  # nobody stopped it but this


def test_post_copy(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"), Way(mode="post-copy"))
    mover.prepare()
    mover.round(1)
    mover.freeze()
    mover.transfer()
    assert world.states() == [[FETCHED], [RUNS]]
    anew = driver.mover(place("q1"), place("q2"))  # which does not know the way
    assert mover.switched() and anew.switched()
    world.dead.add("q2")
    assert driver.mover(place("q1"), place("q2")).switched()  # the source's copy cannot run any more
    world.dead.clear()
    mover.release()
    mover.thaw()
    assert world.states() == [[FETCHED], [RUNS]]  # the rest still comes from there
    world.machines["q1"][0].stands.set()
    mover.close()
    assert world.states() == [[], [RUNS]]


def test_a_destination_that_is_silent_decides_nothing(world: World, driver: QemuDriver) -> None:
    """The source is gone and nobody knows whether the destination's copy is whole: both are left as they are."""
    driver.start(place("q1"))
    mover = moved(driver)
    until(lambda: not world.machines["q1"])
    world.dead.add("q2")
    with pytest.raises(LostContact):
        mover.switched()
    with pytest.raises(Failed):
        mover.roll_back()
    world.dead.clear()
    assert world.states() == [[], [STANDS]] and mover.switched()


def test_own_connections(world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a move waits for delays nobody who asks the same host."""
    opened: list[str] = []
    monkeypatch.setattr(world, "open", lambda host: opened.append(host) or world.connect(host), raising=False)
    driver.start(place("q1"))
    mover = moved(driver)
    mover.release()
    assert set(opened) == {"q1", "q2"}
    assert issubclass(QemuMover, live.LiveMove)


# Consoles.


def test_a_console_is_written_down(world: World, tmp_path: Path) -> None:
    parts: list[Any] = [b"one\n", -2, b"two\n", b""]
    ended = threading.Event()
    heard: list[Callable[..., None]] = []
    stream = SimpleNamespace(
        recv=lambda _size: parts.pop(0),
        eventAddCallback=lambda events, call, node: heard.append(lambda: call(stream, events, node)),
        eventRemoveCallback=lambda: heard.clear(),
        abort=ended.set,
    )
    opened: list[Any] = []
    connection = SimpleNamespace(isAlive=lambda: True, newStream=lambda _flags: stream)
    domain = SimpleNamespace(connect=lambda: connection, openConsole=lambda *words: opened.append(words))
    consoles = Consoles(lambda node: tmp_path / "consoles" / node)
    for _ in range(2):
        consoles.follow("c-0", "q1", domain)
    assert len(opened) == 1
    for _ in range(4):
        heard[0]()
    assert ended.wait(10) and not heard and (tmp_path / "consoles/c-0").read_text() == "one\ntwo\n"
    consoles.follow("c-0", "q1", domain)
    assert len(opened) == 2
