"""Chooses the drivers of fabrics and nodes: the only module that imports them all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wherry.base.paths import Instance
from wherry.fabric.fake import FakeFabric
from wherry.fabric.planned import PlannedFabric
from wherry.fabric.protocol import Fabric
from wherry.model.spec.fabric import FabricSpec
from wherry.node.fake import FakeDriver, PlannedDriver
from wherry.node.protocol import NodeDriver

if TYPE_CHECKING:
    from wherry.node.vm.host_connections import HostConnections
    from wherry.node.vm.real.driver import RemoteVmDriver


def make_fabric(spec: FabricSpec, instance: Instance) -> Fabric:
    """The fabric that `spec` describes; changes nothing on the machine."""
    if spec.driver == "fake":
        return FakeFabric(spec)
    if spec.driver == "libvirt":
        from wherry.fabric.libvirt_hosts import LibvirtHostsFabric

        return LibvirtHostsFabric(spec, instance, _host_connections(spec))
    from wherry.fabric.netns import NetnsFabric

    return NetnsFabric(spec, instance, _criu_version)


def check_fabric(spec: FabricSpec) -> None:
    """Refuses a fabric that its driver cannot make. Changes nothing."""
    if spec.driver == "netns":
        from wherry.fabric import netns

        netns.check(spec)
    elif spec.driver == "libvirt":
        from wherry.fabric import libvirt_hosts

        libvirt_hosts.check(spec)


def make_drivers(fabric: Fabric, instance: Instance) -> dict[str, NodeDriver]:
    """The node drivers of a fabric, by node kind."""
    if isinstance(fabric, PlannedFabric):
        return {kind: PlannedDriver(real) for kind, real in _real_drivers(fabric, instance).items()}
    if fabric.driver == "fake":
        return {kind: FakeDriver(kind) for kind in ("container", "vm")}
    if fabric.driver == "libvirt":
        return {"vm": _remote_driver(fabric, instance)}
    return _real_drivers(fabric, instance)


def _real_drivers(fabric: Fabric, instance: Instance) -> dict[str, NodeDriver]:
    from wherry.node.container.driver import ContainerDriver
    from wherry.node.container.local_host import LocalHosts
    from wherry.node.vm.emulated.driver import VmDriver

    return {"container": ContainerDriver(LocalHosts(instance, fabric)), "vm": VmDriver(instance, fabric)}


def _remote_driver(fabric: Fabric, instance: Instance) -> NodeDriver:
    from wherry.fabric.libvirt_hosts import LibvirtHostsFabric
    from wherry.node.vm.host_connections import HostConnections
    from wherry.node.vm.real.qemu import QemuDriver
    from wherry.node.vm.real.xen import XenDriver

    kinds: dict[str, type[RemoteVmDriver]] = {"qemu": QemuDriver, "xen": XenDriver}
    assert isinstance(fabric, LibvirtHostsFabric) and isinstance(fabric.connections, HostConnections)
    return kinds[fabric.spec.hypervisor](instance, fabric, fabric.connections)


def _host_connections(spec: FabricSpec) -> HostConnections:
    from wherry.node.vm.host_connections import HostConnections

    return HostConnections({host.name: host.uri for host in spec.hosts})


def _criu_version() -> str:
    from wherry.node.container.criu import probe as criu_probe

    found = criu_probe.find()
    return found.version if found.works else ""


def in_memory_fabric(spec: FabricSpec) -> Fabric:
    """The same fabric in memory, up: for plans before the fabric exists. Its drivers refuse what those of the fabric
    would refuse, and so does this."""
    check_fabric(spec)
    fabric = PlannedFabric(spec) if spec.driver == "netns" else FakeFabric(spec)
    fabric.up()
    return fabric


def purge_machine(instance: Instance) -> None:
    """Removes what the drivers of this instance left on this machine, found by name alone, and on real hosts that
    answer. Processes are ended first."""
    from wherry.fabric import netns
    from wherry.fabric.default_fabric import default_fabric
    from wherry.node.vm.real import driver as real_driver

    real_driver.sweep(instance)
    netns.sweep(instance)
    for driver in _real_drivers(FakeFabric(default_fabric()), instance).values():
        driver.sweep()


def hosts_used(instance: Instance) -> tuple[Path, dict[str, str]]:
    """The directory that records the real hosts of an instance, and those hosts with their URIs."""
    from wherry.node.vm.domain_names import notes
    from wherry.node.vm.real import driver as real_driver

    return notes(instance), real_driver.hosts_used(instance)
