"""libvirt's domain XML of a virtual machine on an emulated host.

Invariant: the XML is the same on every host, so a node can be received wherever its image is: objects that differ
between hosts have the same name in each host's own namespaces.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from wherry.base.paths import Instance
from wherry.node.protocol import Placement
from wherry.node.vm import qemu_probe, tsc
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.domain_names import domain_id
from wherry.node.vm.guest_config import identity
from wherry.node.vm.image.catalog import VmImage
from wherry.node.vm.qemu_xml import KERNEL, adapter, machine, text

GIVEN = Path("/run/wherry-nodes")
"""Directory, as a libvirtd and its QEMUs see it, with a subdirectory per node that contains `key`, `hosts` and
perhaps `files`."""


def describe(
    instance: Instance, placement: Placement, image: VmImage | DiskImage, emulated: bool, console: Path, disk: NodeDisk
) -> str:
    """The XML of a node. `console` is the file of its serial line; `disk` is used with a DiskImage."""
    node = placement.node
    kind = "qemu" if emulated else "kvm"
    root, system, devices = machine(kind, node.name, domain_id(instance, node.name), placement)
    SubElement(root, "cpu", mode="maximum" if emulated else "host-model")
    text(devices, "emulator", qemu_probe.emulator())
    if isinstance(image, VmImage):
        text(system, "kernel", str(image.kernel))
        text(system, "initrd", str(image.initrd))
        text(system, "cmdline", _command_line(placement, emulated))
        _give(root, placement)
    else:
        _disks(devices, image, disk)
    _nic(devices, placement, emulated)
    serial = SubElement(devices, "serial", type="file")
    SubElement(serial, "source", path=str(console), append="on")
    SubElement(serial, "target", type="isa-serial", port="0")
    return tostring(root, encoding="unicode")


def given_files(placement: Placement) -> dict[str, str]:
    """The files that the guest gets by fw_cfg, by name."""
    files = "".join(f"{placement.server} {path}\n" for path in placement.served)
    given = {"key": placement.key.get_secret_value(), "hosts": placement.hosts_file}
    return {**given, "files": files} if files else given


def _give(root: Element, placement: Placement) -> None:
    given = SubElement(root, "sysinfo", type="fwcfg")
    for name in given_files(placement):
        SubElement(given, "entry", name=f"opt/wherry/{name}", file=str(GIVEN / placement.node.name / name))


def _disks(devices: Element, image: DiskImage, disk: NodeDisk) -> None:
    """The node's overlay, whose chain of backing files ends with the image; and the seed."""
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


def _nic(devices: Element, placement: Placement, emulated: bool) -> None:
    nic = SubElement(devices, "interface", type="ethernet")
    SubElement(nic, "target", dev=placement.device, managed="no")
    adapter(nic, placement, not qemu_probe.no_vhost(emulated) and placement.nic.vhost is not False)


def _command_line(placement: Placement, emulated: bool) -> str:
    words = [KERNEL, "tsc=reliable", *identity(placement)]
    if emulated:
        words.append(f"tsc_early_khz={tsc.khz()}")
    return " ".join(words)
