"""Nodes on real hosts that run QEMU, with KVM where available; libvirt migrates them as on emulated hosts.

QEMU reads kernel and RAM disk only when it starts: a reboot ends the node. So the RAM disk, which contains the key, is
removed as soon as the machine exists, and a move needs none; the kernel must be on the destination, as QEMU does not
start without it. Invariant: a node's CPU model is supported by every host of the fabric that answered at its start.
"""

from __future__ import annotations

import contextlib
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import SubElement, tostring

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.libvirt_uri import parse_uri
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec, Flavor
from wherry.node.protocol import Measured, Placement
from wherry.node.vm import domain_capabilities, libvirt_client, migration_job
from wherry.node.vm.agent_liveness import await_answer
from wherry.node.vm.domain_names import domain_name, remote_domain_id
from wherry.node.vm.guest_config import identity
from wherry.node.vm.image.catalog import find_image
from wherry.node.vm.live_migration import LiveMigration
from wherry.node.vm.qemu_xml import KERNEL, adapter, machine, text
from wherry.node.vm.real.driver import RemoteVmDriver

_OTHER_CLOCK = "tsc=unstable"
"""Without KVM a guest reads the host's own time stamp counter, whose frequency differs between hosts. So it uses QEMU's
clock (HPET) instead; with KVM it uses KVM's clock."""


class QemuDriver(RemoteVmDriver):
    """QEMU's machines of one instance."""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        super().check(flavor, owner)
        if flavor.guest != ClusterSpec.model_fields["guest"].default:
            what = f"these hosts have no guests of kind {flavor.guest}"
            raise Refused(Code.UNSUPPORTED, what, "that is a guest kind of Xen", "leave guest out, or use Xen hosts")
        emulating = [host for host, found in self._offers().items() if found.emulated] if flavor.nic.vhost else []
        if emulating:
            what = f"nic.vhost: host {emulating[0]} cannot run a node's network adapter in its kernel"
            raise Refused(Code.UNSUPPORTED, what, "it has no KVM", "leave nic.vhost out")

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        return migration_job.parameters_obstacle(parameters, self._oldest_libvirt)

    def rate_obstacle(self, rate: float) -> str:
        return migration_job.rate_obstacle(rate)

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        find_image(source.image)
        domain, libvirt = self.domain(source), libvirt_client.load()
        if domain is None:
            return ""  # prepare() raises it
        with libvirt_client.translated_errors(
            f"the configuration of node {source.node.name} could not be read from host {source.host}"
        ):
            description = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
        for host in (source.host, destination.host):
            with libvirt_client.translated_errors(f"the QEMU version of host {host} could not be read"):
                if reason := domain_capabilities.unsafe(description, self.connections.connect(host)):
                    return f"host {host}: {reason}"
        reason = domain_capabilities.incompatibility(description, self.connections.connect(destination.host))
        return f"host {destination.host}: {reason}" if reason else ""

    def describe(self, placement: Placement, kernel: str, initrd: str) -> str:
        connection = self.connections.connect(placement.host)
        found, name = domain_capabilities.domain_capabilities(connection), placement.node.name
        kind = found.kind
        root, system, devices = machine(
            kind, domain_name(self.instance, name), remote_domain_id(self.instance, name), placement
        )
        text(system, "kernel", kernel)
        text(system, "initrd", initrd)
        text(system, "cmdline", " ".join([KERNEL, *([_OTHER_CLOCK] if found.emulated else []), *identity(placement)]))
        shared = domain_capabilities.shared_processor(connection, kind, [found, *self._offers().values()])
        if shared:
            root.append(ElementTree.fromstring(shared))
        else:
            SubElement(root, "cpu", mode="maximum" if found.emulated else "host-model")
        nic = SubElement(devices, "interface", type="bridge")
        SubElement(nic, "source", bridge=placement.device)
        adapter(nic, placement, False if found.emulated else placement.nic.vhost)
        serial = SubElement(devices, "serial", type="pty")
        SubElement(serial, "target", type="isa-serial", port="0")
        return tostring(root, encoding="unicode")

    def memory(self, domain: Any) -> int:
        stats = domain.memoryStats()
        return int(stats.get("rss", 0)) * 1024

    def carried(self, domain: Any, mac: str) -> tuple[int | None, int | None]:
        stats = domain.interfaceStats(mac)
        return int(stats[0]), int(stats[4])

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> QemuMover:
        return QemuMover(self, source, destination, parameters)

    def _offers(self) -> dict[str, domain_capabilities.DomainCapabilities]:
        """The capabilities of the fabric's hosts that answer."""
        found = {}
        for host in self.connections.uris:
            with (
                contextlib.suppress(WherryError),
                libvirt_client.translated_errors(f"the capabilities of host {host} could not be read"),
            ):
                found[host] = domain_capabilities.domain_capabilities(self.connections.connect(host))
        return found

    def _oldest_libvirt(self) -> int:
        """The oldest libvirt version among this machine and the hosts, as libvirt's version number."""
        numbers = [int(libvirt_client.load().getVersion())]
        for host in self.connections.uris:
            with (
                contextlib.suppress(WherryError),
                libvirt_client.translated_errors(f"the libvirt version of host {host} could not be read"),
            ):
                numbers.append(int(self.connections.connect(host).getLibVersion()))
        return min(numbers)


class QemuMover(LiveMigration):
    """Moves one virtual machine between two real hosts."""

    def __init__(
        self, driver: QemuDriver, source: Placement, destination: Placement, parameters: MigrationParameters | None
    ) -> None:
        super().__init__(remote_domain_id(driver.instance, source.node.name), source, destination, parameters)
        self._driver = driver
        self._kernel = ""

    def predict(self, seconds: float = 0.0) -> Measured:
        return Measured(bytes=self._driver.usage(self._source).memory, overhead=0.3)

    def prepare(self) -> None:
        self._driver.stop(self._destination)
        self._driver.note(self._destination.host)
        self._kernel = self._driver.kernel(self._destination)
        super().prepare()

    def await_first_run(self) -> float | None:
        return await_answer(self._destination, self._driver.console_tail)

    def _declared_lost(self, host: str) -> bool:
        return host in self._driver.connections.lost

    def _open(self, host: str) -> Any:
        return self._driver.connections.open(host)

    def _target(self, domain: Any) -> migration_job.MigrationTarget:
        host, libvirt = self._destination.host, libvirt_client.load()
        uri = self._driver.connections.uris[host]
        with libvirt_client.translated_errors(
            f"the configuration of node {self._name} could not be read from host {self._source.host}"
        ):
            description = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
        test = f"as root on {self._source.host}: virsh -c {uri} version"
        remedy = f"{test}; {host} must accept TCP on ports 49152 to 49215"
        description_there = for_other_host(description, self._kernel, self._destination.device)
        to = parse_uri(uri)
        return migration_job.MigrationTarget(uri, to.host, description_there, tls=to.transport == "tls", remedy=remedy)

    def _exists(self, placement: Placement) -> bool:
        return self._domain(placement) is not None

    def _destroy_destination(self) -> None:
        self._driver.abandon(self._destination)

    def _destroy_source(self) -> None:
        self._driver.stop(self._source)

    def _clean_up(self) -> None:
        for placement in (self._destination, self._source):
            with contextlib.suppress(WherryError):
                if (domain := self._driver.domain(placement)) is not None:
                    self._driver.consoles.follow(self._name, placement.host, domain)


def for_other_host(description: str, kernel: str, bridge: str) -> str:
    """The domain XML for another host: with its kernel and bridge, and no RAM disk."""
    root = ElementTree.fromstring(description)
    for system in root.iterfind("os"):
        for tag in system.findall("kernel"):
            tag.text = kernel
        for tag in system.findall("initrd"):
            system.remove(tag)
    for source in root.iterfind("devices/interface/source"):
        source.set("bridge", bridge)
    return tostring(root, encoding="unicode")
