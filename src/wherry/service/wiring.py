"""Chooses the drivers of fabrics and nodes: the only module that imports them all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.base.errors import WherryError
from wherry.base.paths import Instance, native_library
from wherry.fabric.allocations import Allocations
from wherry.fabric.dry_run import DryRunFabric
from wherry.fabric.fake import FakeFabric
from wherry.fabric.protocol import Fabric, FileServers
from wherry.model.spec.fabric import BY_SSH, FabricSpec
from wherry.node.fake import FakeDriver, PlannedDriver
from wherry.node.protocol import NodeDriver
from wherry.node.rank_host import RankHost, RankHosts

if TYPE_CHECKING:
    from wherry.fabric.slurm_hosts import SlurmHostsFabric
    from wherry.fabric.ssh_hosts import SshHostsFabric
    from wherry.hostlink.bundle import Bundle
    from wherry.hostlink.entrance import HostSetup
    from wherry.hostlink.ssh import SshLinks
    from wherry.node.vm.host_connections import HostConnections
    from wherry.node.vm.real.driver import RemoteVmDriver


def make_fabric(spec: FabricSpec, instance: Instance) -> Fabric:
    """The fabric that `spec` describes; changes nothing on the machine."""
    if spec.driver == "fake":
        return FakeFabric(spec)
    if spec.driver == "libvirt":
        from wherry.fabric.libvirt_hosts import LibvirtHostsFabric

        return LibvirtHostsFabric(spec, instance, _host_connections(spec))
    if spec.driver == "ssh":
        return _hosts_by_ssh(spec, instance)
    if spec.driver == "slurm":
        return _hosts_by_slurm(spec, instance)
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
    elif spec.driver in BY_SSH:
        from wherry.fabric import ssh_hosts

        ssh_hosts.check(spec)


def make_drivers(fabric: Fabric, instance: Instance) -> dict[str, NodeDriver]:
    """The node drivers of a fabric, by node kind."""
    if isinstance(fabric, DryRunFabric):
        return {kind: PlannedDriver(real) for kind, real in _real_drivers(fabric, instance).items()}
    if fabric.driver == "fake":
        return {kind: FakeDriver(kind) for kind in ("container", "vm")}
    if fabric.driver == "libvirt":
        return {"vm": _remote_driver(fabric, instance)}
    if fabric.driver in BY_SSH:
        return {"container": _containers_by_ssh(fabric)}
    return _real_drivers(fabric, instance)


def make_servers(fabric: Fabric, instance: Instance) -> FileServers | None:
    """The servers of users' directories; None on a fabric that has none."""
    if fabric.driver != "netns" and not isinstance(fabric, DryRunFabric):
        return None
    from wherry.fabric import file_server

    return file_server.FileServers(instance)


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


def _hosts_by_ssh(spec: FabricSpec, instance: Instance) -> SshHostsFabric:
    from wherry.fabric import ssh_hosts
    from wherry.node.protocol import ProgramEnded

    uris = {host.name: host.uri for host in spec.hosts}
    links = _ssh_links(uris, lambda host: ssh_hosts.setup_of(spec, instance, host), (ProgramEnded,))
    return ssh_hosts.SshHostsFabric(spec, instance, links)


def _hosts_by_slurm(spec: FabricSpec, instance: Instance) -> SlurmHostsFabric:
    from wherry.fabric import slurm_hosts, ssh_hosts
    from wherry.node.protocol import ProgramEnded

    present = set[str]()
    uris = {host.name: host.uri for host in spec.hosts}
    links = _ssh_links(uris, lambda host: ssh_hosts.setup_of(spec, instance, host, present), (ProgramEnded,))
    return slurm_hosts.SlurmHostsFabric(spec, instance, links, slurm_hosts.slurm_of(instance), present)


def allocations_of(fabric: Fabric) -> Allocations | None:
    """The functions that only a fabric on a batch system has; None for others."""
    if fabric.driver != "slurm":
        return None
    from wherry.fabric.slurm_hosts import SlurmHostsFabric

    assert isinstance(fabric, SlurmHostsFabric)
    return fabric


def expanded(spec: FabricSpec, instance: Instance, before: FabricSpec | None) -> FabricSpec:
    """The fabric with the hosts that a batch system has for it; `before` is the present one. Refused, Failed."""
    if spec.driver != "slurm":
        return spec
    from wherry.fabric import slurm_hosts

    return slurm_hosts.expanded(spec, slurm_hosts.slurm_of(instance), before)


def _ssh_links(
    uris: dict[str, str], setup: Callable[[str], HostSetup], kinds: tuple[type[WherryError], ...] = ()
) -> SshLinks:
    """Connections to agents that run out of the bundle, which is put at a host that has none."""
    from wherry.hostlink.bundle import ensure
    from wherry.hostlink.openssh import ssh_command
    from wherry.hostlink.ssh import SshLinks

    return SshLinks(
        uris, setup, lambda uri: ssh_command(uri, agent_bundle().agent), lambda uri: ensure(uri, agent_bundle()), kinds
    )


@functools.cache
def agent_bundle() -> Bundle:
    """The bundle that hosts by SSH get from this process: the same one, whatever is built meanwhile."""
    from wherry.node.container.agent_bundle import bundle

    return bundle()


def library_path(fabric: Fabric) -> Callable[[str], Path]:
    """Where nodes of a fabric find one of our libraries: at hosts by SSH in the bundle."""
    if fabric.driver not in BY_SSH:
        return native_library
    return lambda name: agent_bundle().directory / "packages/wherry/lib" / name


def _containers_by_ssh(fabric: Fabric) -> NodeDriver:
    from wherry.fabric.ssh_hosts import SshHostsFabric
    from wherry.node.container.driver import ContainerDriver
    from wherry.node.container.remote_host import RemoteHosts

    assert isinstance(fabric, SshHostsFabric)
    return ContainerDriver(RemoteHosts(fabric))


def rank_hosts(fabric: Fabric) -> RankHosts:
    """The hosts of a fabric as ranks in containers see them."""
    if fabric.driver in BY_SSH:
        from wherry.fabric.ssh_hosts import SshHostsFabric
        from wherry.hostlink.entrance import RANKS
        from wherry.hostlink.remote import remote

        assert isinstance(fabric, SshHostsFabric)
        links = fabric.connections
        return lambda host: remote(links, host, RANKS, RankHost)
    from wherry.node.local_ranks import LocalRanks

    return lambda host: LocalRanks(fabric.cgroup(host))


def _host_connections(spec: FabricSpec) -> HostConnections:
    from wherry.node.vm.host_connections import HostConnections

    return HostConnections({host.name: host.uri for host in spec.hosts})


def _criu_version() -> str:
    from wherry.node.container.criu import probe as criu_probe

    found = criu_probe.find()
    return found.version if found.works else ""


def in_memory_fabric(spec: FabricSpec) -> Fabric:
    """The same fabric in memory, up: for plans before the fabric exists. Its drivers and this function refuse the
    same specs as those of the fabric."""
    check_fabric(spec)
    fabric = DryRunFabric(spec) if spec.driver == "netns" else FakeFabric(spec)
    fabric.up()
    return fabric


def purge_machine(instance: Instance) -> dict[str, str]:
    """Removes all that the drivers of this instance left on this machine, found by name alone, and on real hosts that
    answer; returns why something may be left on the others. Processes are ended first."""
    from wherry.fabric import netns, slurm_hosts
    from wherry.fabric.default_fabric import default_fabric
    from wherry.node.vm.real import driver as real_driver

    left = {**real_driver.sweep(instance), **_sweep_hosts_by_ssh(instance)}
    left |= slurm_hosts.sweep(instance)  # last: hosts may be another user's afterwards
    netns.sweep(instance)
    for driver in _real_drivers(FakeFabric(default_fabric()), instance).values():
        driver.sweep()
    return left


def _sweep_hosts_by_ssh(instance: Instance) -> dict[str, str]:
    """Removes its objects at the hosts that answer; the note of the hosts goes with the last of them. Returns why
    something may be left, by host."""
    from wherry.fabric import ssh_hosts

    known = ssh_hosts.noted(instance)
    setups = {host: note.setup.model_copy(update={"lost": True}) for host, note in known.items()}  # nothing runs again
    links = _ssh_links({host: note.uri for host, note in known.items()}, setups.__getitem__)
    left = ssh_hosts.sweep(instance, links)
    links.close()
    return left


def hosts_used(instance: Instance) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The files and directories that record the real hosts of an instance, and those hosts with their URIs; jobs of
    Slurm, too."""
    from wherry.fabric import slurm_hosts, ssh_hosts
    from wherry.node.vm.domain_names import notes
    from wherry.node.vm.real import driver as real_driver

    by_ssh = {host: note.uri for host, note in ssh_hosts.noted(instance).items()}
    kept = (notes(instance), ssh_hosts.notes(instance), slurm_hosts.note(instance), ssh_hosts.identity_file(instance))
    return kept, {**real_driver.hosts_used(instance), **by_ssh, **slurm_hosts.used(instance)}
