"""Node kind `vm` on real hosts: virtual machines under each host's own libvirtd; nothing else is installed there.

A domain is transient and is identified by its UUID, which is derived from instance and node. Invariants: on a host only
domains with our UUIDs and files in our directory are changed; an unreachable host does not make its nodes lost, as a
machine keeps running without its libvirtd. The instance's state directory has the records for a restart:

    hosts/HOST           the URI of each host that was used, so that `sweep` needs no database
    hosts/.identity      distinguishes the instance from others of its name on these hosts (domain_names.py)
    orphans/NODE@HOST    a copy that a move left on an unreachable host, to be destroyed when that answers

The parts that depend on the hypervisor are in qemu.py and xen.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.base.paths import Instance
from wherry.base.progress import Check, never_raises
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import Flavor, names_disk
from wherry.node.container.mounts import remove_tree
from wherry.node.protocol import NodeMover, Placement, Usage
from wherry.node.undo import undone_on_error
from wherry.node.vm import guest_config, libvirt_client
from wherry.node.vm.agent_liveness import answers
from wherry.node.vm.console import Consoles, put_aside
from wherry.node.vm.domain_names import domain_name, make_identity, notes, remote_domain_id
from wherry.node.vm.driver_base import VmDriverBase
from wherry.node.vm.host_connections import HostConnections
from wherry.node.vm.image.catalog import find_image
from wherry.node.vm.real.remote_storage import RemoteStorage, drop_all, drop_initrd

_BOOT_TIMEOUT = 240.0
"""Seconds that a guest may take to boot until its agent answers. Emulated guests take ten, in Xen twenty."""
_ADDRESS_PROBE = 0.5
"""Seconds of the check that nothing answers yet at the address of a node to be started."""
_POOLS = "wherry down CLUSTER, then give the fabric a `pool` that no other fabric on that network has"
_GONE_TIMEOUT = 60.0
"""Seconds that a host may take to destroy a guest."""
_SWEEP = 60.0
"""Seconds that all hosts together may take to destroy the guests of an instance that is removed."""


class RemoteVmDriver(VmDriverBase):
    """Virtual machines of one instance on real hosts; QemuDriver and XenDriver complete it."""

    kind = "vm"
    probe_timeout, probe_pause = 2.0, 0.2

    def __init__(self, instance: Instance, fabric: Fabric, connections: HostConnections) -> None:
        self.instance = instance
        self.fabric = fabric
        self.connections = connections
        self.consoles = Consoles(self.console)
        self._probes = ThreadPoolExecutor(thread_name_prefix="address-probe")
        self._storage_locks = {host: threading.Lock() for host in connections.uris}

    def unsupported(self) -> str:
        if os.geteuid() != 0:
            return "virtual machines need root"
        try:
            libvirt_client.load()
        except WherryError as error:
            return f"{error} ({error.next})"
        return ""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        if names_disk(flavor.image):
            what = "nodes on real hosts cannot boot from a disk"
            raise Refused(Code.UNSUPPORTED, what, "their hosts share no storage", "name an image: wherry image list")
        find_image(flavor.image)

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        return ""  # it has its /tmp in its image

    @abstractmethod
    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        """As in NodeDriver."""

    @abstractmethod
    def rate_obstacle(self, rate: float) -> str:
        """As in NodeDriver."""

    @abstractmethod
    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        """As in NodeDriver."""

    @abstractmethod
    def describe(self, placement: Placement, kernel: str, initrd: str) -> str:
        """The domain XML of a node; `kernel` and `initrd` are paths on its host."""

    def domain(self, placement: Placement) -> Any | None:
        """The domain of a placement; None when there is none or its host is declared lost. LostContact when the host
        does not answer."""
        if placement.host in self.connections.lost:
            return None
        return libvirt_client.by_id(
            self.connections.connect(placement.host), remote_domain_id(self.instance, placement.node.name)
        )

    def start(self, placement: Placement, check: Check = never_raises) -> None:
        image = find_image(placement.image)
        make_identity(self.instance)
        self.stop(placement)
        put_aside(self.console(placement.node.name))
        self.note(placement.host)
        with undone_on_error(lambda: self.stop(placement), f"node {placement.node.name} on host {placement.host}"):
            connection, name = self.connections.connect(placement.host), domain_name(self.instance, placement.node.name)
            libvirt = libvirt_client.load()
            address_probe = self._probes.submit(answers, placement, _ADDRESS_PROBE)
            with (
                libvirt_client.translated_errors(f"node {placement.node.name} did not start on host {placement.host}"),
                self._storage_locks[placement.host],
            ):
                storage = RemoteStorage(connection, self.instance.prefix)
                kernel = storage.kernel(image.kernel)
                initrd = storage.initrd(name, image.initrd, guest_config.archive(placement))
                try:
                    description = self.describe(placement, kernel, initrd)
                    domain = connection.createXML(description, libvirt.VIR_DOMAIN_START_PAUSED)
                finally:
                    storage.drop_initrd(name)
                self.consoles.follow(placement.node.name, placement.host, domain)
                if address_probe.result():
                    what, why = (
                        f"node {placement.node.name} was not started",
                        f"{placement.node.address} answers already",
                    )
                    raise Failed(Code.NAME_TAKEN, what, f"{why}: another cluster on this network uses it", _POOLS)
                domain.resume()
            self.await_agent(placement, _BOOT_TIMEOUT, check)

    def stop(self, placement: Placement) -> None:
        if placement.host in self.connections.lost:
            self._remember(placement)
        else:
            self.end_orphan(placement.node.name, placement.host)

    def end_orphan(self, node: str, host: str) -> None:
        libvirt, deadline = libvirt_client.load(), time.monotonic() + _GONE_TIMEOUT
        connection = self.connections.connect(host)
        while (domain := libvirt_client.by_id(connection, remote_domain_id(self.instance, node))) is not None:
            try:
                domain.destroy()
                why = "libvirt still lists it"
            except libvirt.libvirtError as error:  # it is being destroyed, or another job holds it
                why = libvirt_client.reason(error)
            if time.monotonic() > deadline:
                what = f"node {node} on host {host} could not be destroyed"
                raise Failed(Code.TIMED_OUT, what, why, f"on {host}: virsh destroy {domain_name(self.instance, node)}")
            time.sleep(0.05)
        with libvirt_client.translated_errors(
            f"the RAM disk of node {node}, which contains its key, may still be on host {host}"
        ):
            drop_initrd(connection, domain_name(self.instance, node))
        self._orphan(node, host).unlink(missing_ok=True)

    def abandon(self, placement: Placement) -> None:
        """Destroys the copy at the placement, now or as soon as its host answers."""
        try:
            self.stop(placement)
        except LostContact:
            self._remember(placement)

    def orphans(self) -> list[tuple[str, str]]:
        notes = sorted(self._orphan("", "").parent.glob("[!.]*@*"))
        found = [(note.name.rpartition("@")[0], note.name.rpartition("@")[2]) for note in notes]
        return [(node, host) for node, host in found if host in self.connections.uris]

    def alive(self, placement: Placement) -> bool:
        try:
            domain = self.domain(placement)
            if domain is not None:
                self.consoles.follow(placement.node.name, placement.host, domain)
        except LostContact:
            return True
        return domain is not None

    def usage(self, placement: Placement) -> Usage:
        domain = self.domain(placement)
        if domain is None:
            return Usage(memory=0, cpu=0.0, processes=0)
        with libvirt_client.translated_errors(
            f"the usage of node {placement.node.name} could not be read from host {placement.host}"
        ):
            cpu = domain.info()[4] / 1e9
            received, sent = self.carried(domain, placement.node.mac)
            return Usage(memory=self.memory(domain), cpu=cpu, processes=1, received=received, sent=sent)

    def memory(self, domain: Any) -> int:
        """Bytes of the host's memory that a domain uses."""
        return int(domain.info()[2]) * 1024

    def carried(self, domain: Any, mac: str) -> tuple[int | None, int | None]:
        """Bytes that a domain received and sent; None where the query would block during a migration."""
        return None, None

    @abstractmethod
    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> NodeMover:
        """As in NodeDriver."""

    def kernel(self, placement: Placement) -> str:
        """Path of the image's kernel on the placement's host; uploaded if it is missing there."""
        image = find_image(placement.image)
        with (
            libvirt_client.translated_errors(
                f"the kernel for node {placement.node.name} could not be copied to host {placement.host}"
            ),
            self._storage_locks[placement.host],
        ):
            return RemoteStorage(self.connections.connect(placement.host), self.instance.prefix).kernel(image.kernel)

    def note(self, host: str) -> None:
        """Records that the instance uses this host."""
        directory = notes(self.instance)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(directory / host, self.connections.uris[host].encode(), lasting=True)

    def sweep(self) -> None:
        """Destroys every domain of the instance on the hosts that it used, as far as they answer in time."""
        sweep(self.instance)

    def _remember(self, placement: Placement) -> None:
        """Records a copy on an unreachable host as an orphan, to be destroyed when the host answers."""
        orphan = self._orphan(placement.node.name, placement.host)
        orphan.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(orphan, b"", lasting=True)

    def _orphan(self, node: str, host: str) -> Path:
        return self.instance.state / "orphans" / f"{node}@{host}"


def sweep(instance: Instance) -> dict[str, str]:
    """As `RemoteVmDriver.sweep`, by the instance's notes alone, all hosts at once. A host's note is kept until nothing
    of ours is left; returns why that is not so, by host."""
    left = {host: f"it did not answer within {_SWEEP:.0f} s" for host in hosts_used(instance)}

    def end(host: str, uri: str) -> None:
        try:
            _end_all(instance, HostConnections({host: uri}).connect(host), host)
            (notes(instance) / host).unlink()
            del left[host]
        except WherryError as error:
            left[host] = error.why or error.what

    deadline = time.monotonic() + _SWEEP
    ending = [threading.Thread(target=end, args=of, daemon=True) for of in hosts_used(instance).items()]
    for one in ending:  # daemons, as a call to a libvirtd that hangs cannot be cancelled
        one.start()
    for one in ending:
        one.join(max(0.0, deadline - time.monotonic()))
    if not hosts_used(instance):
        remove_tree(notes(instance))
    return dict(left)


def _end_all(instance: Instance, connection: Any, host: str) -> None:
    """Destroys every domain of the instance on a host, and removes its files there. Failed when one remains."""
    libvirt = libvirt_client.load()
    with libvirt_client.translated_errors(f"the virtual machines on host {host} could not be listed"):
        for domain in _ours(instance, connection):
            with contextlib.suppress(libvirt.libvirtError):  # it is being destroyed
                domain.destroy()
        left = [domain.name() for domain in _ours(instance, connection)]
    if left:
        raise Failed(
            Code.FAILED, f"virtual machines on host {host} could not be destroyed", ", ".join(left), "wherry down --all"
        )
    with libvirt_client.translated_errors(f"files of the instance on host {host} could not be removed"):
        drop_all(connection, f"{instance.prefix}-")
        connection.close()


def _ours(instance: Instance, connection: Any) -> list[Any]:
    prefix = domain_name(instance, "")
    domains = [(domain, domain.name()) for domain in connection.listAllDomains()]
    return [d for d, name in domains if d.UUIDString() == remote_domain_id(instance, name.removeprefix(prefix))]


def hosts_used(instance: Instance) -> dict[str, str]:
    """The URIs of the hosts that the instance used, by name."""
    return {note.name: note.read_text() for note in sorted(notes(instance).glob("[!.]*"))}
