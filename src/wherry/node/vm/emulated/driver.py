"""Node kind `vm`: QEMU under the libvirtd of its host, with KVM or by emulation, booted from an image in memory.

A domain is transient and has the name of its node; its QEMU is in the cgroup of its placement. The node's files (its
key, the hosts file) are kept at the host and reach the guest through QEMU's fw_cfg, never by a command line.
Invariant: a placement is named after instance, host and node; `stop` removes it in any state, also when the libvirtd
does not answer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance, native_program
from wherry.base.progress import Check, never_raises
from wherry.base.remedies import setup
from wherry.fabric import cpuset
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.adapters import qemu_device
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec, Flavor, names_disk
from wherry.node.container.mounts import remove_tree
from wherry.node.protocol import Placement, Usage
from wherry.node.undo import undone_on_error
from wherry.node.usage import usage_of
from wherry.node.vm import disk, libvirt_client, migration_job, qemu_probe
from wherry.node.vm.cloud_init import write_seed
from wherry.node.vm.console import put_aside
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.domain_names import domain_id
from wherry.node.vm.driver_base import VmDriverBase
from wherry.node.vm.emulated.domain_xml import GIVEN, describe, given_files
from wherry.node.vm.emulated.host_libvirtd import HostDaemon
from wherry.node.vm.emulated.mover import VmMover
from wherry.node.vm.emulated.vcpu_pins import pin_vcpus
from wherry.node.vm.image.catalog import DEFAULT, VmImage, find_image, list_images, read_image
from wherry.node.vm.qemu_user import grant_ownership, grant_read

OVERHEAD = 256 * 2**20
"""Bytes that QEMU may use beside the guest's memory: its own, translated code, and the image while it loads it."""
_BOOT_TIMEOUT, _DISK_TIMEOUT = 180.0, 900.0
"""Seconds that a guest may take to boot until its agent answers, from an image and from a disk. Under emulation an idle
machine needs ten, and a hundred or more from a disk."""
_GONE_TIMEOUT = 30.0
"""Seconds that a libvirtd may take to notice that a QEMU ended."""


class VmDriver(VmDriverBase):
    """Virtual machines of one instance on emulated hosts."""

    kind = "vm"

    def __init__(self, instance: Instance, fabric: Fabric) -> None:
        self.instance = instance
        self.fabric = fabric
        self._limit_lock = threading.Lock()

    def unsupported(self) -> str:
        if os.geteuid() != 0:
            return "virtual machines need root"
        try:
            libvirt_client.load()
        except WherryError as error:
            return f"{error} ({error.next})"
        if not qemu_probe.emulator():
            return f"{qemu_probe.EMULATOR} is not installed ({setup('setup-vm')})"
        if not qemu_probe.libvirtd():
            return f"libvirtd is not installed ({setup('setup-vm')})"
        return ""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        if names_disk(flavor.image):
            disk.require_programs()
            disk.require_readable(disk.find(Path(flavor.image), owner).path)
        else:
            _require_driver(flavor)
        if qemu_device(flavor.nic.model) not in qemu_probe.devices():
            what = f"nic.model: this machine's QEMU has no adapter {flavor.nic.model}"
            raise Refused(Code.UNSUPPORTED, what, "", "leave nic.model out, or choose another")
        if flavor.nic.vhost and (reason := qemu_probe.no_vhost(self.emulated(_image(flavor.image, owner)))):
            what = "nic.vhost: this machine's kernel cannot run a node's network adapter"
            raise Refused(Code.UNSUPPORTED, what, reason, "leave nic.vhost out")
        if flavor.guest != ClusterSpec.model_fields["guest"].default:
            what = f"these hosts have no guests of kind {flavor.guest}"
            raise Refused(Code.UNSUPPORTED, what, "that is a guest kind of Xen", "leave guest out, or use Xen hosts")

    def files_obstacle(self, flavor: Flavor) -> str:
        if names_disk(flavor.image):
            return "a machine with a disk has files of its own"
        if read_image(flavor.image).files:
            return ""
        words = "" if flavor.image == DEFAULT else f" {flavor.image}"
        return f"the image {flavor.image} was made by an earlier version (wherry image build{words})"

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        return ""  # it has its /tmp in its image

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        return migration_job.parameters_obstacle(parameters, lambda: int(libvirt_client.load().getVersion()))

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        return qemu_probe.unsafe_moves(self.emulated(_image(source.image, source.owner)))

    def emulated(self, image: VmImage | DiskImage) -> bool:
        """True when KVM cannot run this image. A disk's kernel is not accessible, so any image is tried instead."""
        tried = [image] if isinstance(image, VmImage) else [find_image(known.name) for known in list_images()[:1]]
        return not tried or bool(qemu_probe.kvm(tried[0]))

    def daemon(self, host: str) -> HostDaemon:
        """The libvirtd of a host; it may not be running."""
        return HostDaemon(self.instance, self.fabric, host)

    def rate_obstacle(self, rate: float) -> str:
        return migration_job.rate_obstacle(rate)

    def orphans(self) -> list[tuple[str, str]]:
        return []  # every host is this machine

    def end_orphan(self, node: str, host: str) -> None:
        pass

    def start(self, placement: Placement, check: Check = never_raises) -> None:
        image = _image(placement.image, placement.owner)
        self.stop(placement)
        put_aside(self.console(placement.node.name))
        with undone_on_error(lambda: self.stop(placement), f"node {placement.node.name} on host {placement.host}"):
            self.prepare_host(placement)
            if isinstance(image, DiskImage):
                self._make_disk(placement, image)
            connection = self.daemon(placement.host).connect()
            self._define(connection, placement, image)
            if names_disk(placement.image):
                self.await_agent(placement, _DISK_TIMEOUT, check, ", or its image has no cloud-init")
            else:
                self.await_agent(placement, _BOOT_TIMEOUT, check)

    def prepare_host(self, placement: Placement) -> None:
        """Creates the objects that a domain needs at its host: the node's files, a cgroup, the console's directory."""
        given = self._files_directory(placement)
        given.mkdir(parents=True, exist_ok=True, mode=0o700)
        grant_read(given.parent)
        grant_read(given)
        for name, text in given_files(placement).items():
            file = given / name
            file.touch(mode=0o600)
            file.write_text(text)
            grant_read(file)
        self.console(placement.node.name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Cgroup(placement.cgroup).create()
        self._adjust_memory_limit(placement.host)

    def confine(self, placement: Placement, bounded: bool = True) -> None:
        """Moves the placement's QEMU into its cgroup and sets the CPU limit if `bounded`. Failed when it ended."""
        pid = self.daemon(placement.host).qemu(placement.node.name)
        if pid is None:
            raise Failed(
                Code.FAILED, f"node {placement.node.name} on host {placement.host} ended", self.console_tail(placement)
            )
        group = Cgroup(placement.cgroup)
        group.create()
        group.add(pid)
        group.limit(placement.quota if bounded else None, placement.node.memory + OVERHEAD, burst=placement.burst)
        group.weight(placement.cpus)
        group.weigh_parent()
        if placement.pin:
            cpuset.pin_processes(placement.cgroup, placement.pin, group.pids)
            pin_vcpus(pid, placement.pin.cpus)

    def stop(self, placement: Placement) -> None:
        daemon, group, name = self.daemon(placement.host), Cgroup(placement.cgroup), placement.node.name
        pid = daemon.qemu(name)
        if pid is not None:
            with contextlib.suppress(Failed):  # it ended meanwhile
                group.create()
                group.add(pid)
        if group.exists():
            group.kill()
        if daemon.running():
            self._await_forgotten(daemon, name)
        group.remove()
        group.weigh_parent()
        remove_tree(self._files_directory(placement))
        self._adjust_memory_limit(placement.host)
        if not any(self.daemon(host.name).qemu(name) for host in self.fabric.spec.hosts):
            NodeDisk(self.instance, name).remove()  # otherwise the other end of a move uses it

    def alive(self, placement: Placement) -> bool:
        return bool(Cgroup(placement.cgroup).pids())

    def usage(self, placement: Placement) -> Usage:
        return usage_of(placement, self.fabric.host_netns(placement.host))

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> VmMover:
        return VmMover(self, source, destination, parameters)

    def sweep(self) -> None:
        """Removes every placement and console of the instance. Processes end with its cgroups and namespaces."""
        remove_tree(self.instance.run / "vm")
        remove_tree(self.instance.state / "consoles")
        remove_tree(self.instance.state / "disks")

    def _make_disk(self, placement: Placement, image: DiskImage) -> None:
        files = NodeDisk(self.instance, placement.node.name)
        files.make(image)
        ours = [
            str(self.instance.state / "bin"),
            str(native_program("wherry-rsh").parent),
        ]  # directories of files that jobs copy
        write_seed(files.seed, placement, domain_id(self.instance, placement.node.name), [*placement.binds, *ours])
        grant_read(files.directory)
        grant_read(files.seed)
        grant_ownership(files.overlay)

    def _define(self, connection: Any, placement: Placement, image: VmImage | DiskImage) -> None:
        """Creates the domain, paused until its QEMU is in its cgroup."""
        libvirt, name = libvirt_client.load(), placement.node.name
        files = NodeDisk(self.instance, name)
        xml = describe(self.instance, placement, image, self.emulated(image), self.console(name), files)
        what = f"node {placement.node.name} did not start on host {placement.host}"
        with libvirt_client.translated_errors(what):
            domain = connection.createXML(xml, libvirt.VIR_DOMAIN_START_PAUSED)
        self.confine(placement)
        with libvirt_client.translated_errors(what):
            domain.resume()

    def _await_forgotten(self, daemon: HostDaemon, name: str) -> None:
        """Returns when the libvirtd no longer lists the domain, whose QEMU was killed."""
        libvirt, deadline = libvirt_client.load(), time.monotonic() + _GONE_TIMEOUT
        try:
            connection = daemon.connect(_GONE_TIMEOUT)
            while (domain := libvirt_client.domain(connection, name)) is not None:
                with contextlib.suppress(libvirt.libvirtError):  # it is being destroyed, or another job holds it
                    domain.destroy()
                if time.monotonic() > deadline:
                    why = f"waited {_GONE_TIMEOUT:.0f} s"
                    what = f"libvirtd on {daemon.host} still lists the ended node {name}"
                    raise Failed(Code.TIMED_OUT, what, why, "wherry down --all")
                time.sleep(0.02)
        except WherryError:
            daemon.stop()  # a hung one is restarted on demand, and then finds that the QEMU ended
            if daemon.qemu(name) is not None:
                raise

    def _adjust_memory_limit(self, host: str) -> None:
        """Raises the host's memory limit by QEMU's overhead: the declared memory is for the nodes alone."""
        declared = next((h.memory for h in self.fabric.spec.hosts if h.name == host), None)
        group = Cgroup(self.fabric.cgroup(host))
        with self._limit_lock:  # counting and setting are one step: the last count must be set last
            if declared is not None and group.exists():
                here = len(list((self.daemon(host).directory / "run" / GIVEN.name).glob("*")))
                group.limit_memory(declared + here * OVERHEAD if here else declared)

    def _files_directory(self, placement: Placement) -> Path:
        return self.daemon(placement.host).directory / "run" / GIVEN.name / placement.node.name


def _require_driver(flavor: Flavor) -> None:
    """Refused when the image is not there, or cannot drive the adapter."""
    image = find_image(flavor.image)
    if flavor.nic.model not in read_image(image.name).adapters:
        what = f"nic.model: the image {image.name!r} has no driver for {flavor.nic.model}"
        build = " ".join(["wherry image build", *([] if image.name == DEFAULT else [image.name])])
        raise Refused(Code.UNSUPPORTED, what, "it was built without, or its kernel has none", build)


def _image(name: str, owner: Owner) -> VmImage | DiskImage:
    return disk.find(Path(name), owner) if names_disk(name) else find_image(name)
