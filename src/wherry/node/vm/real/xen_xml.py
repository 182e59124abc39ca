"""libvirt's domain XML of a Xen guest (https://libvirt.org/formatdomain.html, https://libvirt.org/drvxen.html).

Invariant: it names nothing that differs between hosts but the bridge, which a move replaces; it does not contain the
key, as every program in the guest can read the kernel's command line.
"""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element, SubElement, tostring

from wherry.base.paths import Instance
from wherry.node.protocol import Placement
from wherry.node.vm.domain_names import domain_name, remote_domain_id
from wherry.node.vm.guest_config import identity

_KERNEL = (
    "console=hvc0 quiet mitigations=off nokaslr no5lvl rcupdate.rcu_expedited=1 random.trust_cpu=on cryptomgr.notests "
    "audit=0 net.ifnames=0 panic=-1 rootfstype=ramfs"
)
"""As for QEMU's guests (qemu_xml.py), but on Xen's console; Xen gives the guest the frequency of its clocks."""


_KINDS = {"pvh": "xenpvh", "pv": "xen"}
"""libvirt's names of the guest kinds: with hardware virtualization, and without."""


def describe(instance: Instance, placement: Placement, kernel: str, initrd: str) -> str:
    """The domain XML of a node; `kernel` and `initrd` are paths on its host."""
    node = placement.node
    root = Element("domain", type="xen")
    _text(root, "name", domain_name(instance, node.name))
    _text(root, "uuid", remote_domain_id(instance, node.name))
    _text(root, "memory", str(node.memory), unit="b")
    _text(root, "vcpu", str(max(1, math.ceil(node.cpus))))
    system = SubElement(root, "os")
    kind = _KINDS[placement.guest]
    _text(system, "type", kind, arch="x86_64", machine=f"xen{placement.guest}")
    _text(system, "kernel", kernel)
    _text(system, "initrd", initrd)
    _text(system, "cmdline", " ".join([_KERNEL, *identity(placement)]))
    clock = SubElement(root, "clock", offset="utc")
    SubElement(clock, "timer", name="tsc", mode="native")
    for event in ("poweroff", "reboot", "crash"):
        _text(root, f"on_{event}", "destroy")
    devices = SubElement(root, "devices")
    nic = SubElement(devices, "interface", type="bridge")
    SubElement(nic, "mac", address=node.mac)
    SubElement(nic, "source", bridge=placement.device)
    console = SubElement(devices, "console", type="pty")
    SubElement(console, "target", type="xen", port="0")
    return tostring(root, encoding="unicode")


def _text(parent: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(parent, tag, attributes).text = text
