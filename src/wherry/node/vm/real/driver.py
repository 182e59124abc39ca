"""Node kind `vm` on real hosts: machines under each host's own libvirtd, of which nothing else is asked.

A domain is transient and is known by its UUID, which follows from instance and node. Invariants: nothing on a host is
touched but domains with our UUIDs and the files in our directory; a host that does not answer is no reason to call its
nodes lost, since a machine runs on without its libvirtd. The instance's directory keeps what must not be forgotten:

    hosts/HOST           its URI: hosts that were used, so `sweep` finds what is there without a database
    orphans/NODE@HOST    what a move left there when the host did not answer, to be ended as soon as it does

What is the hypervisor's own matter is in remote_qemu.py and remote_xen.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.base.paths import Instance
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import Flavor, names_disk
from wherry.node.container.mounts import remove_tree
from wherry.node.protocol import NodeMover, Placement, Usage
from wherry.node.vm import guest_config, libvirt_client
from wherry.node.vm.agent_probe import answers
from wherry.node.vm.console import Consoles, put_aside
from wherry.node.vm.driver_base import VmDriverBase
from wherry.node.vm.host_connections import HostConnections
from wherry.node.vm.identifiers import domain_id, domain_name
from wherry.node.vm.image.catalog import find_image
from wherry.node.vm.real.remote_storage import RemoteStorage, drop_all, drop_initrd

_BOOT_TIMEOUT = 240.0
"""Seconds that a guest may take until its agent answers; emulated it takes ten, under an emulated Xen twenty."""
_TAKEN = 0.5
"""Seconds that an agent may take to answer at the address of a node that is not started yet."""
_POOLS = "wherry down CLUSTER, then give the fabric a `pool` that no other fabric on that network has"
_GONE_TIMEOUT = 60.0
"""Seconds that a host may take to end a guest."""


class RemoteVmDriver(VmDriverBase):
    """Virtual machines of one instance on real hosts."""

    kind = "vm"
    try_for, pause = 2.0, 0.2

    def __init__(self, instance: Instance, fabric: Fabric, reach: HostConnections) -> None:
        self.instance = instance
        self.fabric = fabric
        self.reach = reach
        self.consoles = Consoles(self.console)
        self._beside = ThreadPoolExecutor(thread_name_prefix="taken")
        self._shelves = {host: threading.Lock() for host in reach.uris}

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
            raise Refused(Code.UNSUPPORTED, what, "they have none: no storage is shared", "name an image of Wherry's")
        find_image(flavor.image)

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
    def describe(self, place: Placement, kernel: str, initrd: str) -> str:
        """The XML of a node; `kernel` and `initrd` are paths at its host."""

    def domain(self, place: Placement) -> Any | None:
        """The domain of a placement; None when there is none, or none that counts, as its host is declared lost.
        LostContact when the host does not answer."""
        if place.host in self.reach.lost:
            return None
        return libvirt_client.by_id(self.reach.connect(place.host), domain_id(self.instance, place.node.name))

    def start(self, place: Placement) -> None:
        image = find_image(place.image)
        self.stop(place)
        put_aside(self.console(place.node.name))
        self.note(place.host)
        try:
            connection, name = self.reach.connect(place.host), domain_name(self.instance, place.node.name)
            libvirt = libvirt_client.load()
            taken = self._beside.submit(answers, place, _TAKEN)
            with (
                libvirt_client.translated_errors(f"node {place.node.name} did not start on host {place.host}"),
                self._shelves[place.host],
            ):
                shelf = RemoteStorage(connection, self.instance.prefix)
                kernel = shelf.kernel(image.kernel)
                initrd = shelf.initrd(name, image.initrd, guest_config.archive(place))
                try:
                    description = self.describe(place, kernel, initrd)
                    domain = connection.createXML(description, libvirt.VIR_DOMAIN_START_PAUSED)
                finally:
                    shelf.drop_initrd(name)
                self.consoles.follow(place.node.name, place.host, domain)
                if taken.result():
                    what, why = f"node {place.node.name} was not started", f"{place.node.address} answers already"
                    raise Failed(Code.NAME_TAKEN, what, f"{why}: another cluster at this network has it", _POOLS)
                domain.resume()
            self.await_agent(place, _BOOT_TIMEOUT)
        except BaseException:
            with contextlib.suppress(WherryError):  # the first error says more
                self.stop(place)
            raise

    def stop(self, place: Placement) -> None:
        if place.host in self.reach.lost:
            self._remember(place)
        else:
            self.end_orphan(place.node.name, place.host)

    def end_orphan(self, node: str, host: str) -> None:
        libvirt, deadline = libvirt_client.load(), time.monotonic() + _GONE_TIMEOUT
        connection = self.reach.connect(host)
        while (domain := libvirt_client.by_id(connection, domain_id(self.instance, node))) is not None:
            try:
                domain.destroy()
            except libvirt.libvirtError as error:  # it is just going, or something else is at it
                if time.monotonic() > deadline:
                    raise libvirt_client.translated(f"node {node} on host {host} does not end", error) from None
            time.sleep(0.05)
        with libvirt_client.translated_errors(
            f"the RAM disk of node {node}, which has its key, may still be at host {host}"
        ):
            drop_initrd(connection, domain_name(self.instance, node))
        self._orphan(node, host).unlink(missing_ok=True)

    def abandon(self, place: Placement) -> None:
        """Ends what a move left at the place: now, or as soon as its host answers."""
        try:
            self.stop(place)
        except LostContact:
            self._remember(place)

    def orphans(self) -> list[tuple[str, str]]:
        notes = sorted(self._orphan("", "").parent.glob("*@*"))
        found = [(note.name.rpartition("@")[0], note.name.rpartition("@")[2]) for note in notes]
        return [(node, host) for node, host in found if host in self.reach.uris]

    def alive(self, place: Placement) -> bool:
        try:
            domain = self.domain(place)
            if domain is not None:
                self.consoles.follow(place.node.name, place.host, domain)
        except LostContact:
            return True
        return domain is not None

    def usage(self, place: Placement) -> Usage:
        domain = self.domain(place)
        if domain is None:
            return Usage(memory=0, cpu=0.0, processes=0)
        with libvirt_client.translated_errors(f"host {place.host} does not say what node {place.node.name} uses"):
            cpu = domain.info()[4] / 1e9
            received, sent = self.carried(domain, place.node.mac)
            return Usage(memory=self.memory(domain), cpu=cpu, processes=1, received=received, sent=sent)

    def memory(self, domain: Any) -> int:
        """Bytes of its host's memory that a domain has."""
        return int(domain.info()[2]) * 1024

    def carried(self, domain: Any, mac: str) -> tuple[int | None, int | None]:
        """Bytes that a domain received and sent; None where asking might have to wait for a move's end."""
        return None, None

    @abstractmethod
    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> NodeMover:
        """As in NodeDriver."""

    def kernel(self, place: Placement) -> str:
        """Path at the place's host of the kernel of its image, which is copied there when it is not there yet."""
        image = find_image(place.image)
        with (
            libvirt_client.translated_errors(f"host {place.host} takes no kernel for node {place.node.name}"),
            self._shelves[place.host],
        ):
            return RemoteStorage(self.reach.connect(place.host), self.instance.prefix).kernel(image.kernel)

    def note(self, host: str) -> None:
        """Remembers that the instance used this host."""
        directory = notes(self.instance)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / host).write_text(self.reach.uris[host])

    def sweep(self) -> None:
        """Ends every domain of the instance at the hosts that it used, as far as they answer."""
        sweep(self.instance)

    def _remember(self, place: Placement) -> None:
        """Notes a copy that may be at a silent host, to be ended when that answers again."""
        orphan = self._orphan(place.node.name, place.host)
        orphan.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        orphan.touch()

    def _orphan(self, node: str, host: str) -> Path:
        return self.instance.state / "orphans" / f"{node}@{host}"


def sweep(instance: Instance) -> None:
    """As `RemoteVmDriver.sweep`, by the instance's notes alone. That of a host stays until nothing of ours is there."""
    for host, uri in hosts_used(instance).items():
        with contextlib.suppress(WherryError):
            _end_all(instance, HostConnections({host: uri}).connect(host), host)
            (notes(instance) / host).unlink()
    if not hosts_used(instance):
        remove_tree(notes(instance))


def _end_all(instance: Instance, connection: Any, host: str) -> None:
    """Ends every domain of the instance at a host, and removes its files there. Failed when one stays."""
    libvirt = libvirt_client.load()
    with libvirt_client.translated_errors(f"host {host} does not tell which machines it runs"):
        for domain in _ours(instance, connection):
            with contextlib.suppress(libvirt.libvirtError):  # it is just going
                domain.destroy()
        left = [domain.name() for domain in _ours(instance, connection)]
    if left:
        raise Failed(Code.FAILED, f"machines at host {host} do not end", ", ".join(left), "wherry down --all")
    with libvirt_client.translated_errors(f"files of the instance are at host {host} still"):
        drop_all(connection, f"{instance.prefix}-")
    connection.close()


def _ours(instance: Instance, connection: Any) -> list[Any]:
    prefix = domain_name(instance, "")
    domains = [(domain, domain.name()) for domain in connection.listAllDomains()]
    return [d for d, name in domains if d.UUIDString() == domain_id(instance, name.removeprefix(prefix))]


def hosts_used(instance: Instance) -> dict[str, str]:
    """The URIs of the hosts that the instance used, by their names."""
    return {note.name: note.read_text() for note in sorted(notes(instance).glob("*"))}


def notes(instance: Instance) -> Path:
    """The directory of what must not be forgotten of hosts."""
    return instance.state / "hosts"
