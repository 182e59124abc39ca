"""Parts of libvirt's domain XML that all QEMU machines share (https://libvirt.org/formatdomain.html)."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element, SubElement

from wherry.node.protocol import Placement

ARCHITECTURE, MACHINE = "x86_64", "q35"
KERNEL = (
    "console=ttyS0 quiet mitigations=off nokaslr no5lvl rcupdate.rcu_expedited=1 random.trust_cpu=on "
    "cryptomgr.notests audit=0 net.ifnames=0 panic=-1 no_timer_check rootfstype=ramfs"
)
"""For a quick boot, with errors on the console; a panic ends the machine, and so the node. no_timer_check: the check
panics on a host so loaded that ticks are late. ramfs: a tmpfs root could use only half of the memory."""
_TRANSLATED = 128
"""MiB of translated code that an emulated machine keeps (libvirt 8.0; an older one lacks the element)."""
_OFFLOADS = {"host": ("csum", "gso", "tso4", "tso6", "ecn", "ufo"), "guest": ("csum", "tso4", "tso6", "ecn", "ufo")}


def machine(kind: str, name: str, uuid: str, placement: Placement) -> tuple[Element, Element, Element]:
    """A machine of kind `kvm` or `qemu` for the placement: the elements `domain`, `os` and `devices`."""
    root = Element("domain", type=kind)
    text(root, "name", name)
    text(root, "uuid", uuid)
    text(root, "memory", str(placement.node.memory), unit="b")
    text(root, "vcpu", str(max(1, math.ceil(placement.node.cpus))))
    system = SubElement(root, "os")
    text(system, "type", "hvm", arch=ARCHITECTURE, machine=MACHINE)
    features = SubElement(root, "features")
    SubElement(features, "acpi")
    if kind == "qemu":  # the default is an eighth of the memory, up to 1 GiB, more than the cgroup's limit allows for
        text(SubElement(features, "tcg"), "tb-cache", str(_TRANSLATED), unit="MiB")
    SubElement(root, "clock", offset="utc")
    for event in ("poweroff", "reboot", "crash"):
        text(root, f"on_{event}", "destroy")
    devices = SubElement(root, "devices")
    SubElement(devices, "controller", type="usb", model="none")
    SubElement(devices, "memballoon", model="none")
    return root, system, devices


def adapter(nic: Element, placement: Placement, vhost: bool | None) -> None:
    """Completes a network adapter; `vhost`: whether it uses vhost-net, None: the host decides."""
    SubElement(nic, "mac", address=placement.node.mac)
    SubElement(nic, "model", type=placement.nic.model)
    if placement.nic.model != "virtio":
        return
    driver = SubElement(nic, "driver")
    if vhost is not None:
        driver.set("name", "vhost" if vhost else "qemu")
    if placement.nic.queues > 1:
        driver.set("queues", str(placement.nic.queues))
    if not placement.nic.checksum_offload:
        for side, names in _OFFLOADS.items():
            SubElement(driver, side, dict.fromkeys(names, "off"))


def text(parent: Element, tag: str, content: str, **attributes: str) -> None:
    """Adds an element with a text."""
    SubElement(parent, tag, attributes).text = content
