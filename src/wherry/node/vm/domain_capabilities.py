"""What the QEMU of a real host offers its guests, by its libvirtd's word (https://libvirt.org/formatdomaincaps.html).

Nothing is tried out there: whether there is KVM, which machines and which processors, libvirt has found out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from wherry.node.vm import libvirt_client, qemu_probe
from wherry.node.vm.qemu_xml import ARCHITECTURE, MACHINE

_BASE = 1000
"""libvirt's numbers of versions: 10.0.2 is 10 000 002."""


@dataclass(frozen=True)
class DomainCapabilities:
    """`kind` is `kvm`, or `qemu` where guests are emulated; `processor` is the XML of the best one, if it is known."""

    kind: str
    processor: str

    @property
    def emulated(self) -> bool:
        """True when the host has no KVM."""
        return self.kind == "qemu"


def domain_capabilities(connection: Any) -> DomainCapabilities:
    """Of the host that is connected to: KVM where it has that."""
    root = ElementTree.fromstring(connection.getDomainCapabilities(None, ARCHITECTURE, MACHINE, None, 0))
    best = root.find("cpu/mode[@name='host-model'][@supported='yes']")
    if best is not None:
        best.tag = "cpu"
        best.attrib.clear()
    return DomainCapabilities(
        root.findtext("domain") or "qemu", "" if best is None else ElementTree.tostring(best, "unicode")
    )


def version(connection: Any) -> tuple[int, int, int]:
    """Of the host's QEMU: (10, 0, 2)."""
    number = int(connection.getVersion())
    return number // _BASE // _BASE, number // _BASE % _BASE, number % _BASE


def described(connection: Any) -> str:
    """What the host runs, in words: `QEMU 10.0.2 with KVM`."""
    how = "without KVM" if domain_capabilities(connection).emulated else "with KVM"
    return f"QEMU {'.'.join(map(str, version(connection)))} {how}"


def shared_processor(connection: Any, kind: str, offers: Iterable[DomainCapabilities]) -> str:
    """The XML of a processor that all those offers of this kind have, so that guests can go from one to any other.

    Empty when libvirt cannot say.
    """
    best = [one.processor for one in offers if one.kind == kind and one.processor]
    libvirt = libvirt_client.load()
    flags = libvirt.VIR_CONNECT_BASELINE_CPU_MIGRATABLE
    try:
        return str(connection.baselineHypervisorCPU(None, ARCHITECTURE, MACHINE, kind, best, flags)) if best else ""
    except libvirt.libvirtError:
        return ""


def unsafe(description: str, connection: Any) -> str:
    """Why the domain of that XML should not be moved by the host's QEMU; empty when it can be."""
    emulated = ElementTree.fromstring(description).get("type") == "qemu"
    return qemu_probe.unsafe(version(connection)[:2]) if emulated else ""


def incompatibility(description: str, destination: Any) -> str:
    """Why the domain of that XML cannot run at a host; empty when it can."""
    libvirt, root = libvirt_client.load(), ElementTree.fromstring(description)
    kind, system, processor = root.get("type", ""), root.find("os/type"), root.find("cpu")
    machine = MACHINE if system is None else system.get("machine", MACHINE)
    try:
        destination.getDomainCapabilities(None, ARCHITECTURE, machine, kind, 0)
        if processor is not None and processor.get("mode") == "custom":
            text = ElementTree.tostring(processor, "unicode")
            flags = libvirt.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE
            destination.compareHypervisorCPU(None, ARCHITECTURE, machine, kind, text, flags)
    except libvirt.libvirtError as error:
        return libvirt_client.reason(error)
    return ""
