"""The description of a virtual machine that libvirt takes (https://libvirt.org/formatdomain.html).

Invariant: it is the same at every host, so a node can be received wherever its image is: what differs between hosts
has the same name in each one's own namespaces.
"""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from wherry.model.network import PREFIX
from wherry.node.protocol import Place
from wherry.node.vm import engine, tsc
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.hostd import id_of
from wherry.node.vm.image import VmImage

GIVEN = Path("/run/wherry-nodes")
"""Where a libvirtd and its QEMUs see what a node is given: a directory by node with `key` and `hosts`."""
_KERNEL = (
    "console=ttyS0 quiet mitigations=off nokaslr no5lvl tsc=reliable rcupdate.rcu_expedited=1 random.trust_cpu=on "
    "cryptomgr.notests audit=0 net.ifnames=0 panic=-1 no_timer_check rootfstype=ramfs"
)
"""Boots quickly and says on the console what goes wrong; a panic ends the machine, and so the node. On a host so loaded
that ticks come late the check of the timer would panic. The RAM disk as a tmpfs could have half of the memory only."""
_OFFLOADS = {"host": ("csum", "gso", "tso4", "tso6", "ecn", "ufo"), "guest": ("csum", "tso4", "tso6", "ecn", "ufo")}


def describe(
    instance: str, place: Place, image: VmImage | DiskImage, emulated: bool, console: Path, disk: NodeDisk
) -> str:
    """The XML of a node. `console` is the file that its serial line is written to; `disk` is used with a DiskImage."""
    node = place.node
    root = Element("domain", type="qemu" if emulated else "kvm")
    _text(root, "name", node.name)
    _text(root, "uuid", id_of(instance, "node", node.name))
    _text(root, "memory", str(node.memory), unit="b")
    _text(root, "vcpu", str(max(1, math.ceil(node.cpus))))
    system = SubElement(root, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    if isinstance(image, VmImage):
        _text(system, "kernel", str(image.kernel))
        _text(system, "initrd", str(image.initrd))
        _text(system, "cmdline", _command_line(place, emulated))
        _give(root, place)
    SubElement(SubElement(root, "features"), "acpi")
    SubElement(root, "cpu", mode="maximum" if emulated else "host-model")
    SubElement(root, "clock", offset="utc")
    for event in ("poweroff", "reboot", "crash"):
        _text(root, f"on_{event}", "destroy")
    devices = SubElement(root, "devices")
    _text(devices, "emulator", engine.emulator())
    SubElement(devices, "controller", type="usb", model="none")
    SubElement(devices, "memballoon", model="none")
    if isinstance(image, DiskImage):
        _disks(devices, image, disk)
    _nic(devices, place, emulated)
    serial = SubElement(devices, "serial", type="file")
    SubElement(serial, "source", path=str(console), append="on")
    SubElement(serial, "target", type="isa-serial", port="0")
    return tostring(root, encoding="unicode")


def _give(root: Element, place: Place) -> None:
    given = SubElement(root, "sysinfo", type="fwcfg")
    for name in ("key", "hosts"):
        SubElement(given, "entry", name=f"opt/wherry/{name}", file=str(GIVEN / place.node.name / name))


def _disks(devices: Element, image: DiskImage, disk: NodeDisk) -> None:
    """What the node writes, on top of the image, which is the end of the chain whatever it says; and the seed."""
    written = SubElement(devices, "disk", type="file", device="disk")
    SubElement(written, "driver", name="qemu", type="qcow2")
    SubElement(written, "source", file=str(disk.overlay))
    base = SubElement(written, "backingStore", type="file")
    SubElement(base, "format", type="qcow2")
    SubElement(base, "source", file=str(image.path))
    SubElement(base, "backingStore")
    SubElement(written, "target", dev="vda", bus="virtio")
    seed = SubElement(devices, "disk", type="file", device="disk")
    SubElement(seed, "driver", name="qemu", type="raw")
    SubElement(seed, "source", file=str(disk.seed))
    SubElement(seed, "target", dev="vdb", bus="virtio")
    SubElement(seed, "readonly")


def _nic(devices: Element, place: Place, emulated: bool) -> None:
    nic = SubElement(devices, "interface", type="ethernet")
    SubElement(nic, "mac", address=place.node.mac)
    SubElement(nic, "target", dev=place.device, managed="no")
    SubElement(nic, "model", type=place.nic.model)
    if place.nic.model != "virtio":
        return
    vhost = not engine.no_vhost(emulated) and place.nic.vhost is not False
    driver = SubElement(nic, "driver", name="vhost" if vhost else "qemu")
    if place.nic.queues > 1:
        driver.set("queues", str(place.nic.queues))
    if not place.nic.checksum_offload:
        for side, names in _OFFLOADS.items():
            SubElement(driver, side, dict.fromkeys(names, "off"))


def identity(place: Place) -> list[str]:
    """The words of the kernel's command line that tell a guest who it is."""
    node = place.node
    words = [
        f"wherry.name={node.name}",
        f"wherry.address={node.address}/{PREFIX}",
        f"wherry.mac={node.mac}",
        f"wherry.mtu={place.nic.mtu}",
        f"wherry.user={place.user}",
    ]
    return words if place.nic.checksum_offload else [*words, "wherry.checksum=off"]


def _command_line(place: Place, emulated: bool) -> str:
    words = [_KERNEL, *identity(place)]
    if emulated:
        words.append(f"tsc_early_khz={tsc.khz()}")
    return " ".join(words)


def _text(parent: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(parent, tag, attributes).text = text
