"""Node kind `vm`: QEMU under the libvirtd of its host, with KVM or by emulation, booted from an image in memory.

A domain is transient and is named as its node is; its QEMU is in the cgroup of its place. What the node is given (its
key, the hosts file) lies at the host and reaches the guest through QEMU's fw_cfg, never by a command line.
Invariant: a place is named by instance, host and node; `stop` removes it whatever state it is in, with or without a
libvirtd that answers.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance, native_program
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec, Flavor, names_disk
from wherry.node.container.mounts import remove_tree
from wherry.node.protocol import Placement, Usage
from wherry.node.usage import usage_of
from wherry.node.vm import disk, libvirt_client, migration_job, qemu_probe
from wherry.node.vm.cloud_init import write_seed
from wherry.node.vm.console import put_aside
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.driver_base import VmDriverBase
from wherry.node.vm.emulated.domain_xml import GIVEN, describe
from wherry.node.vm.emulated.host_libvirtd import HostDaemon
from wherry.node.vm.emulated.mover import VmMover
from wherry.node.vm.identifiers import domain_id
from wherry.node.vm.image.catalog import VmImage, find_image, list_images

OVERHEAD = 256 * 2**20
"""Bytes that QEMU may use beside the guest's memory: its own, translated code, and the image as it loads it."""
_BOOT_TIMEOUT, _DISK_TIMEOUT = 180.0, 900.0
"""Seconds that a guest may take until its agent answers; an idle machine needs ten under emulation, and for the whole
system on a disk a hundred and more."""
_GONE_TIMEOUT = 20.0
"""Seconds that a libvirtd may take to notice that a QEMU is gone."""


class VmDriver(VmDriverBase):
    """Virtual machines of one instance on emulated hosts."""

    kind = "vm"

    def __init__(self, instance: Instance, fabric: Fabric) -> None:
        self.instance = instance
        self.fabric = fabric
        self._room = threading.Lock()

    def unsupported(self) -> str:
        if os.geteuid() != 0:
            return "virtual machines need root"
        try:
            libvirt_client.load()
        except WherryError as error:
            return f"{error} ({error.next})"
        if not qemu_probe.emulator():
            return f"{qemu_probe.EMULATOR} is not installed (make setup-vm)"
        if not qemu_probe.libvirtd():
            return "libvirtd is not installed (make setup-vm)"
        return ""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        if names_disk(flavor.image):
            disk.require_programs()
            disk.require_safe(Path(flavor.image), owner)
        else:
            find_image(flavor.image)
        if flavor.nic.vhost and (reason := qemu_probe.no_vhost(self.emulated(_image(flavor.image)))):
            what = "nic.vhost: this machine's kernel cannot handle a node's network adapter"
            raise Refused(Code.UNSUPPORTED, what, reason, "leave nic.vhost out")
        if flavor.guest != ClusterSpec.model_fields["guest"].default:
            what = f"these hosts have no guests of kind {flavor.guest}"
            raise Refused(Code.UNSUPPORTED, what, "that is a kind of Xen's", "leave guest out, or use Xen hosts")

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        return migration_job.parameters_obstacle(parameters, lambda: int(libvirt_client.load().getVersion()))

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        return qemu_probe.unsafe_moves(self.emulated(_image(source.image)))

    def emulated(self, image: VmImage | DiskImage) -> bool:
        """True when there is no KVM that can run this image, or for a disk, whose kernel cannot be found, any image."""
        tried = [image] if isinstance(image, VmImage) else [find_image(known.name) for known in list_images()[:1]]
        return not tried or bool(qemu_probe.kvm(tried[0]))

    def daemon(self, host: str) -> HostDaemon:
        """The libvirtd of a host, running or not."""
        return HostDaemon(self.instance, self.fabric, host)

    def rate_obstacle(self, rate: float) -> str:
        return migration_job.rate_obstacle(rate)

    def orphans(self) -> list[tuple[str, str]]:
        return []  # every host is this machine

    def end_orphan(self, node: str, host: str) -> None:
        pass

    def start(self, place: Placement) -> None:
        image = _image(place.image)
        self.stop(place)
        put_aside(self.console(place.node.name))
        try:
            self.ready(place)
            if isinstance(image, DiskImage):
                self._make_disk(place, image)
            connection = self.daemon(place.host).connect()
            self._define(connection, place, image)
            if names_disk(place.image):
                self.await_agent(place, _DISK_TIMEOUT, ", or its image has no cloud-init")
            else:
                self.await_agent(place, _BOOT_TIMEOUT)
        except BaseException:
            self.stop(place)
            raise

    def ready(self, place: Placement) -> None:
        """Makes what a domain finds at its host: what the node is given, a cgroup, the console's directory."""
        given = self._given(place)
        given.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, text in (("key", place.key.get_secret_value()), ("hosts", place.hosts_file)):
            file = given / name
            file.touch(mode=0o600)
            file.write_text(text)
        self.console(place.node.name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Cgroup(place.cgroup).create()
        self._make_room(place.host)

    def seat(self, place: Placement, bounded: bool = True) -> None:
        """Puts the place's QEMU into the place's cgroup, with its share of the CPU. Failed when it is gone."""
        pid = self.daemon(place.host).qemu(place.node.name)
        if pid is None:
            raise Failed(Code.FAILED, f"node {place.node.name} on host {place.host} ended", self.console_tail(place))
        group = Cgroup(place.cgroup)
        group.create()
        group.add(pid)
        group.limit(place.cpus if bounded else None, place.node.memory + OVERHEAD)
        group.weight(place.cpus)
        group.weigh_parent()

    def stop(self, place: Placement) -> None:
        daemon, group, name = self.daemon(place.host), Cgroup(place.cgroup), place.node.name
        pid = daemon.qemu(name)
        if pid is not None:
            with contextlib.suppress(Failed):  # it ended meanwhile
                group.create()
                group.add(pid)
        if group.exists():
            group.kill()
        if daemon.running():
            self._forget(daemon, name)
        group.remove()
        group.weigh_parent()
        remove_tree(self._given(place))
        self._make_room(place.host)
        if not any(self.daemon(host.name).qemu(name) for host in self.fabric.spec.hosts):
            NodeDisk(self.instance, name).remove()  # else it is at the other end of a move

    def alive(self, place: Placement) -> bool:
        return bool(Cgroup(place.cgroup).pids())

    def usage(self, place: Placement) -> Usage:
        return usage_of(place, self.fabric.host_netns(place.host))

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> VmMover:
        return VmMover(self, source, destination, parameters)

    def sweep(self) -> None:
        """Removes every place and console of the instance. Processes die with its cgroups and namespaces."""
        remove_tree(self.instance.run / "vm")
        remove_tree(self.instance.state / "consoles")
        remove_tree(self.instance.state / "disks")

    def _make_disk(self, place: Placement, image: DiskImage) -> None:
        files = NodeDisk(self.instance, place.node.name)
        files.make(image)
        ours = [str(self.instance.state / "bin"), str(native_program("wherry-rsh").parent)]  # of what jobs copy
        write_seed(files.seed, place, domain_id(self.instance, place.node.name), [*place.binds, *ours])

    def _define(self, connection: Any, place: Placement, image: VmImage | DiskImage) -> None:
        """The domain, paused until its QEMU is where it belongs."""
        libvirt, name = libvirt_client.load(), place.node.name
        files = NodeDisk(self.instance, name)
        xml = describe(self.instance, place, image, self.emulated(image), self.console(name), files)
        what = f"node {place.node.name} did not start on host {place.host}"
        with libvirt_client.translated_errors(what):
            domain = connection.createXML(xml, libvirt.VIR_DOMAIN_START_PAUSED)
        self.seat(place)
        with libvirt_client.translated_errors(what):
            domain.resume()

    def _forget(self, daemon: HostDaemon, name: str) -> None:
        """Until the libvirtd knows no such domain; its QEMU is dead."""
        libvirt, deadline = libvirt_client.load(), time.monotonic() + _GONE_TIMEOUT
        try:
            connection = daemon.connect()
            while (domain := libvirt_client.domain(connection, name)) is not None:
                with contextlib.suppress(libvirt.libvirtError):  # it is just going, or something else is at it
                    domain.destroy()
                if time.monotonic() > deadline:
                    raise Failed(Code.TIMED_OUT, f"libvirtd on {daemon.host} keeps {name}", "", "wherry down --all")
                time.sleep(0.02)
        except WherryError:
            daemon.stop()  # one that does not answer is started anew when it is needed, and finds that it is gone
            if daemon.qemu(name) is not None:
                raise

    def _make_room(self, host: str) -> None:
        """A host's memory is for nodes: what QEMU takes beside comes on top of it."""
        declared = next((h.memory for h in self.fabric.spec.hosts if h.name == host), None)
        group = Cgroup(self.fabric.cgroup(host))
        with self._room:  # who counts last sets the limit last
            if declared is not None and group.exists():
                here = len(list((self.daemon(host).directory / "run" / GIVEN.name).glob("*")))
                group.limit_memory(declared + here * OVERHEAD if here else declared)

    def _given(self, place: Placement) -> Path:
        return self.daemon(place.host).directory / "run" / GIVEN.name / place.node.name


def _image(name: str) -> VmImage | DiskImage:
    return disk.inspect(Path(name)) if names_disk(name) else find_image(name)
