"""Capabilities of a real host's QEMU as libvirt reports them (https://libvirt.org/formatdomaincaps.html).

Whether there is KVM, which machine types and CPU models: libvirt has probed it; nothing is tried on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from wherry.node.vm import libvirt_client, qemu_probe
from wherry.node.vm.qemu_xml import ARCHITECTURE, MACHINE

_BASE = 1000
"""Base of libvirt's version numbers: 10.0.2 is 10 000 002."""


@dataclass(frozen=True)
class DomainCapabilities:
    """`kind` is `kvm`, or `qemu` where guests are emulated; `processor` is the XML of the best CPU model, if known."""

    kind: str
    processor: str

    @property
    def emulated(self) -> bool:
        """True when the host has no KVM."""
        return self.kind == "qemu"


def domain_capabilities(connection: Any) -> DomainCapabilities:
    """The capabilities of a host, for KVM where available."""
    root = ElementTree.fromstring(connection.getDomainCapabilities(None, ARCHITECTURE, MACHINE, None, 0))
    best = root.find("cpu/mode[@name='host-model'][@supported='yes']")
    if best is not None:
        best.tag = "cpu"
        best.attrib.clear()
    return DomainCapabilities(
        root.findtext("domain") or "qemu", "" if best is None else ElementTree.tostring(best, "unicode")
    )


def version(connection: Any) -> tuple[int, int, int]:
    """Version of the host's QEMU, for instance (10, 0, 2)."""
    number = int(connection.getVersion())
    return number // _BASE // _BASE, number // _BASE % _BASE, number % _BASE


def described(connection: Any) -> str:
    """The host's hypervisor as text: `QEMU 10.0.2 with KVM`."""
    how = "without KVM" if domain_capabilities(connection).emulated else "with KVM"
    return f"QEMU {'.'.join(map(str, version(connection)))} {how}"


def shared_processor(connection: Any, kind: str, offers: Iterable[DomainCapabilities]) -> str:
    """The XML of a CPU model that all `offers` of this kind support, so that guests can move between them.

    Empty when libvirt cannot compute one.
    """
    best = [one.processor for one in offers if one.kind == kind and one.processor]
    libvirt = libvirt_client.load()
    flags = libvirt.VIR_CONNECT_BASELINE_CPU_MIGRATABLE
    try:
        return str(connection.baselineHypervisorCPU(None, ARCHITECTURE, MACHINE, kind, best, flags)) if best else ""
    except libvirt.libvirtError:
        return ""


def unsafe(description: str, connection: Any) -> str:
    """Why the host's QEMU should not migrate the domain of this XML; empty when it can."""
    emulated = ElementTree.fromstring(description).get("type") == "qemu"
    return qemu_probe.unsafe(version(connection)[:2]) if emulated else ""


def incompatibility(description: str, destination: Any) -> str:
    """Why the domain of this XML cannot run on a host; empty when it can."""
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
