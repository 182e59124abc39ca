"""Real hosts: each has a libvirtd and a bridge, and all bridges are on one wire with a bridge of this machine.

    namespace `gateway`                     this machine                the hosts
    head ── p1.254 ── c1 (bridge) ── u1 ═══ w….1 ── BRIDGE ══ wire ══ bridge of the host ── a node's interface

This machine has only the heads of clusters. A host's libvirtd plugs a node's interface when it starts or receives the
node, so ports of nodes are no devices of ours, and a hold has no frames to keep. Invariant: every link that this driver
makes is in a namespace of the instance, or is removed with one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.fabric import host_facts, named_netns, netns_links
from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.fabric.netns import check_names
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.netns_names import bridge_of
from wherry.fabric.protocol import Hold, HoldReport
from wherry.fabric.real_hosts import RealHostsFabric
from wherry.model.libvirt_uri import parse_uri
from wherry.model.network import ClusterNetwork, Port
from wherry.model.records import HostFacts
from wherry.model.spec.fabric import FabricSpec

_MACHINE = "/proc/self/ns/net"
"""The network of the daemon itself."""


class Hosts(Protocol):
    """The connections to the hosts. Hosts in `lost` are not contacted."""

    lost: set[str]

    def answers(self, host: str) -> bool:
        """True when the host's libvirtd accepts a connection."""

    def facts(self, host: str) -> HostFacts:
        """The facts that the host's libvirtd reports."""


class LibvirtHostsFabric(RealHostsFabric):
    """The fabric of one instance on real hosts."""

    driver = "libvirt"
    uncounted = "frames of nodes on real hosts do not pass this machine"

    def __init__(self, spec: FabricSpec, instance: Instance, hosts: Hosts) -> None:
        super().__init__(spec, instance)
        self.connections = hosts
        """Shared with the node drivers, so that fabric and drivers agree on which hosts answer."""

    def up(self) -> None:
        check(self.spec)
        for host in self.spec.hosts:
            self.facts(host.name)
        self._make_gateway()

    def _ask_facts(self, host: str) -> HostFacts:
        return self.connections.facts(self._host(host).name)

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        return host_facts.missing_files(self._host(host), paths)  # on this machine: nodes get copies

    def counters(self, host: str, nodes: Sequence[str] = ()) -> HostCounters:
        raise self._uncounted(host)

    def use(self, host: str, nodes: Sequence[str] = ()) -> HostUse:
        raise self._uncounted(host)

    def frame_counter(self, host: str) -> FrameCounter:
        raise self._uncounted(host)

    def _uncounted(self, host: str) -> Refused:
        return Refused(Code.UNSUPPORTED, f"host {host} counts nothing", self.uncounted, "wherry host list")

    def reachable(self, host: str) -> bool:
        return self.connections.answers(self._host(host).name)

    def set_lost(self, host: str, lost: bool) -> None:
        (self.connections.lost.add if lost else self.connections.lost.discard)(self._host(host).name)

    def host_address(self, host: str) -> str:
        return parse_uri(self._host(host).uri).host

    def network_up(self, network: ClusterNetwork) -> None:
        near, far = f"u{network.number}", self._machine_end(network)
        netns_links.inside(named_netns.path(self._gateway), partial(_network, network=network, near=near, far=far))
        netns_links.inside(_MACHINE, lambda ip: ip.up(far, self._bridge))
        netns_links.inside(named_netns.path(self._gateway), lambda ip: ip.wait(near))

    def network_down(self, network: ClusterNetwork) -> None:
        if named_netns.exists(self._gateway):
            for name in (f"u{network.number}", bridge_of(network)):
                self._switch(self._gateway).delete(name)

    def port_up(self, port: Port) -> str:
        return self.port_netns(port) if port.tap else super().port_up(port)

    def port_device(self, port: Port) -> str:
        return self._host(port.host).plug if port.tap else super().port_device(port)

    def port_plug(self, port: Port) -> None:
        if not port.tap:
            super().port_plug(port)

    def port_unplug(self, port: Port) -> None:
        if not port.tap:
            super().port_unplug(port)

    def port_down(self, port: Port) -> None:
        if not port.tap:
            super().port_down(port)

    def hold(self, port: Port) -> Hold:  # type: ignore[override]
        return NoPacketHold()

    def _site_mtu(self, site: str) -> int:
        return netns_links.MTU

    @property
    def _bridge(self) -> str:
        return str(self.spec.bridge)

    def _machine_end(self, network: ClusterNetwork) -> str:
        """Name of the pair's end in the machine's own namespace: unique among instances, at most 15 letters."""
        return f"w{zlib.crc32(self._instance.prefix.encode()):08x}.{network.number}"


class NoPacketHold:
    """The hold of real hosts, which keeps nothing: no frame of a node passes this machine."""

    def divert(self) -> None:
        """Does nothing."""

    def release(self) -> HoldReport:
        return HoldReport()

    def first_sent(self, timeout: float) -> float | None:
        return None

    def problem(self) -> str:
        return ""

    def give_back(self, source: Port) -> HoldReport:
        return HoldReport()

    def drop(self) -> None:
        """Does nothing."""


def check(spec: FabricSpec) -> None:
    """Refuses ambiguous host names, and a bridge that this machine does not have. Changes nothing."""
    check_names(spec)
    if not netns_links.inside(_MACHINE, lambda ip: ip.exists(str(spec.bridge))):
        what = f"this machine has no bridge {spec.bridge}"
        raise Refused(Code.NOT_FOUND, what, "it joins nodes on real hosts with their cluster's head", "ip link")


def _network(ip: NetnsLinks, network: ClusterNetwork, near: str, far: str) -> None:
    ip.bridge(bridge_of(network), netns_links.MTU)
    with open(_MACHINE) as machine:
        ip.pair(near, far, machine.fileno())
    ip.up(near, bridge_of(network))
