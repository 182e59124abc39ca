"""Nodes on real hosts that run QEMU: calls of libvirt and refusals, with a libvirt in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from qemuworld import FABRIC, HOSTS, INSTANCE, KEY, RUNS, Connection, Error, Machine, World, driver, place, world

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.model.libvirt_uri import parse_uri
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec, NicSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse, parse_yaml
from wherry.node.protocol import LONGEST_FREEZE
from wherry.node.vm import driver_base
from wherry.node.vm.console import Consoles
from wherry.node.vm.domain_names import notes, remote_domain_id
from wherry.node.vm.emulated.driver import OVERHEAD
from wherry.node.vm.host_connections import HostConnections
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real.qemu import QemuDriver, for_other_host

__all__ = ["driver", "world"]  # fixtures


def described(driver: QemuDriver, **more: Any) -> ElementTree.Element:
    return ElementTree.fromstring(driver.describe(place("q1", **more), "/k", "/i"))


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
        ("qemu:///system", "transport must be ssh, tls or tcp"),
        ("qemu+tls://h/session", "the path of a QEMU host is /system"),
        ("qemu+tls://h/system?pkipath=/tmp", "parameters are refused"),
        ("qemu+tcp://root@h/system", "for qemu\\+ssh only"),
        ("lxc+ssh://h/", "hypervisor must be qemu or xen"),
    ],
)
def test_bad_uris(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_uri(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [HOSTS[0], HOSTS[1] | {"uri": "xen+tls://10.0.0.2/"}]}, "host q2 runs xen and host q1 qemu"),
        ({"hosts": [HOSTS[0] | {"shadow_paging": True}]}, "host q1: shadow_paging is only for hosts that run Xen"),
        ({"hosts": [HOSTS[0], HOSTS[1] | {"uri": "qemu+tls://10.0.0.1"}]}, "two hosts have the same uri"),
        ({"encryption": "always"}, "encryption: only for driver: ssh, and slurm"),
    ],
)
def test_bad_fabrics(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(FabricSpec, FABRIC | change, "FILE")
    assert caught.value.code == Code.INVALID_FILE and words in caught.value.why


def test_the_example() -> None:
    file = Path(__file__).parents[4] / "examples" / "qemu-hosts.yaml"
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
    assert root.findtext("uuid") == remote_domain_id(INSTANCE, "c-0") and root.findtext("vcpu") == "2"
    kind, serial, nic = (root.find(path) for path in ("os/type", "devices/serial", "devices/interface"))
    assert kind is not None and (kind.text, kind.get("machine")) == ("hvm", "q35")
    assert (root.findtext("os/kernel"), root.findtext("os/initrd")) == ("/k", "/i")
    assert root.findtext("cpu/model") == "for3"  # its own host's, and the features that both offer
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
    there = ElementTree.fromstring(for_other_host(driver.describe(place("q1"), "/k", "/i"), "/other", "br7"))
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
    zstd = MigrationParameters(connections=2, zstd=True)
    assert (
        "libvirt 9.0 cannot" in driver.parameters_obstacle(zstd)
        and driver.parameters_obstacle(MigrationParameters(mode="post-copy", connections=0)) == ""
    )
    world.libvirts["q1"] = 11_000_000
    assert driver.parameters_obstacle(zstd) == ""


def test_moves_that_cannot_be_are_refused_before(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    (machine,) = world.machines["q1"]
    here, there = place("q1"), place("q2")
    assert driver.move_obstacle(here, there) == ""
    world.unfit = "the CPU is incompatible: avx512f"
    assert "host q2: the CPU is incompatible" in driver.move_obstacle(here, there)
    world.unfit, world.kinds["q2"] = "", "qemu"
    assert "no q35 with kvm here" in driver.move_obstacle(here, there)
    machine.description = machine.description.replace('machine="q35"', 'machine="pc-q35-99"')
    world.kinds["q2"] = "kvm"
    assert "no pc-q35-99" in driver.move_obstacle(here, there)


@pytest.mark.parametrize("old", ["q1", "q2"])
def test_emulated_machines_stay_where_qemu_is_old(world: World, driver: QemuDriver, old: str) -> None:
    world.kinds = {"q1": "qemu", "q2": "qemu"}
    driver.start(place("q1"))
    assert driver.move_obstacle(place("q1"), place("q2")) == ""
    world.versions[old] = 7_002_000
    assert f"host {old}: QEMU 7.2 can lose" in driver.move_obstacle(place("q1"), place("q2"))


# Life.


def test_start_and_stop(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    assert world.states() == [[RUNS], []] and driver.alive(place("q1"))
    usage = driver.usage(place("q1"))
    assert (usage.memory, usage.received, usage.sent) == (150 << 20, 7000, 3000)
    assert not [name for name in world.files["q1"] if name.endswith("initrd")]  # which has the key
    driver.stop(place("q1"))
    assert world.states() == [[], []]


def test_a_host_that_started_anew_keeps_no_file_of_ours(world: World, driver: QemuDriver, monkeypatch: Any) -> None:
    """Its libvirtd has forgotten the directory, and the RAM disk of a node that was just started is in it."""
    driver.start(place("q1"))
    world.machines["q1"].clear()
    world.pools.clear()
    world.files["q1"]["wherry-tq-c-0.initrd"] = b"a key"
    driver.stop(place("q1"))
    assert "wherry-tq-c-0.initrd" not in world.files["q1"] and world.files["q1"]
    world.pools.clear()
    monkeypatch.setattr(real_driver, "HostConnections", lambda uris: SimpleNamespace(connect=world.connect))
    driver.sweep()
    assert world.files["q1"] == {} and real_driver.hosts_used(INSTANCE) == {}


def test_an_address_that_somebody_has_is_not_given_again(world: World, driver: QemuDriver) -> None:
    world.strangers = True
    with pytest.raises(Failed, match="10.77.1.1 answers already") as failure:
        driver.start(place("q1"))
    assert failure.value.code == Code.NAME_TAKEN and "pool" in failure.value.next
    assert world.machines["q1"] == [] and not [name for name in world.files["q1"] if name.endswith(".initrd")]


def test_a_machine_that_stands_is_given_up_before_its_peers_give_it_up(world: World, driver: QemuDriver) -> None:
    """However slowly its memory goes; while it runs there is time."""
    driver.start(place("q1"))
    mover = driver.mover(place("q1"), place("q2"))
    mover.limit_rate(8 * 2**20 / 8)
    assert mover._transfer_timeout() > LONGEST_FREEZE
    mover._stop_and_copy = True
    assert mover._transfer_timeout() == LONGEST_FREEZE


def test_translated_code_is_bounded_where_machines_are_emulated(world: World, driver: QemuDriver) -> None:
    assert described(driver).find("features/tcg") is None
    world.kinds["q1"] = "qemu"
    cache = described(driver).find("features/tcg/tb-cache")
    assert cache is not None and cache.attrib == {"unit": "MiB"} and int(cache.text or 0) << 20 < OVERHEAD


def test_a_host_that_answers_nobody_delays_no_other(world: World, driver: QemuDriver) -> None:
    world.dead.add("q2")
    driver.start(place("q1"))
    assert world.states()[0] == [RUNS]


def test_the_sweep_ends_machines_and_removes_ram_disks(world: World, driver: QemuDriver, monkeypatch: Any) -> None:
    driver.start(place("q1"))
    foreign = Machine(world, "q1", "<domain><uuid>5b6f8f0e</uuid><name>wherry-tq-c-0</name></domain>", RUNS)
    world.machines["q1"].append(foreign)
    world.files["q1"] |= {"wherry-tq-c-0.initrd": b"a key", "wherry-tqx-c-0.initrd": b"another's", "kernel-1": b""}
    monkeypatch.setattr(real_driver, "HostConnections", lambda uris: SimpleNamespace(connect=world.connect))
    driver.sweep()
    assert world.machines["q1"] == [foreign]
    assert sorted(world.files["q1"]) == ["kernel-1", "wherry-tqx-c-0.initrd"]  # others'
    assert real_driver.hosts_used(INSTANCE) == {} and not notes(INSTANCE).exists()


@pytest.mark.parametrize("how", ["it is silent", "it tells nothing", "a machine does not end"])
def test_a_host_that_the_sweep_did_not_reach_is_remembered(
    world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    driver.start(place("q1"))
    driver.note("q2")
    monkeypatch.setattr(real_driver, "HostConnections", lambda uris: SimpleNamespace(connect=world.connect))

    def fail(*_words: Any) -> None:
        raise Error(38)

    with monkeypatch.context() as bad:
        if how == "it is silent":
            world.dead.add("q1")
        elif how == "it tells nothing":
            bad.setattr(Connection, "listAllDomains", fail)
        else:
            bad.setattr(Machine, "destroy", fail)
        driver.sweep()
    assert "q1" in real_driver.hosts_used(INSTANCE) and world.states()[0] == [RUNS]
    world.dead.clear()
    driver.sweep()
    assert real_driver.hosts_used(INSTANCE) == {} and world.states() == [[], []]


def test_a_ram_disk_that_a_killed_daemon_left_goes_with_the_node(world: World, driver: QemuDriver) -> None:
    driver.start(place("q1"))
    world.files["q1"] |= {"wherry-tq-c-0.initrd": b"a key", "wherry-tq-c-01.initrd": b"another's"}
    driver.stop(place("q1"))
    left = [name for name in world.files["q1"] if name.endswith("initrd")]
    assert left == ["wherry-tq-c-01.initrd"]


def test_instances_have_kernels_of_their_own(world: World, driver: QemuDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that starts a node, or is removed, takes no other's away."""
    monkeypatch.setattr(real_driver, "answers", lambda *_: False)  # not before it is started
    monkeypatch.setattr(driver_base, "answers", lambda *_: True)
    QemuDriver(Instance("other"), driver.fabric, driver.connections).start(place("q1"))
    theirs = set(world.files["q1"])
    driver.start(place("q1"))
    ours = set(world.files["q1"]) - theirs
    assert len(theirs) == len(ours) == 2 and all(name.startswith("wherry-tq-kernel-") for name in ours)


def test_what_a_node_said_before_it_was_started_anew_is_kept(driver: QemuDriver) -> None:
    console = driver.console("c-0")
    console.parent.mkdir(parents=True)
    for said in ("a panic\n", "another\n"):
        console.write_text(said)
        driver.start(place("q1"))
    assert [file.read_text() for file in driver.console_files("c-0") or []] == ["another\n"] and not console.exists()
    console.write_text("it runs\n")
    assert [file.read_text() for file in driver.console_files("c-0") or []] == ["another\n", "it runs\n"]
    driver.forget("c-0")
    assert driver.console_files("c-0") == [] and not list(console.parent.iterdir())


def test_facts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reach = HostConnections(world.uris)
    monkeypatch.setattr(reach, "connect", world.connect)
    facts = reach.facts("q1")
    assert (facts.kernel, facts.cpu_model, facts.cpu_features) == ("QEMU 10.0.2 with KVM", "EPYC", frozenset())


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
