"""This machine as one host of a fabric by SSH: a namespace with the bridges of clusters, joined by VXLANs on the wire.

    namespace of a node       namespace of the host                      the machine's own network
    eth0 ──────────────────── pN.INDEX ── cN (bridge) ── xN ~~ VXLAN ~~  address ══ wire ══ other hosts, the head

A VXLAN is made from the machine's network into the host's namespace, so its packets take the machine's wire and its
frames are nowhere but in the bridge. Ports and holds are those of emulated hosts.

With encryption between sites a bridge has two VXLANs: xN, on the encrypted wire (see `encrypted_wire`), to other sites
and to the head; yN, plain, to hosts of the same site. They are isolated ports: a frame from one never goes to the
other. `site_filter` keeps packets of yN inside the site.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, host_facts, named_netns, netns_links, path_mtu
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.cluster_paths import NoPaths
from wherry.fabric.encrypted_wire import EncryptedWire, WirePeer
from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.fabric.host_network import HEAD_PORT, MTU, HostHold, Losses, headers
from wherry.fabric.netns import NetnsFabric, check_names
from wherry.fabric.netns_links import MACHINE, VXLAN_PORT, NetnsLinks, Remote
from wherry.fabric.netns_names import NEAR_TUNNEL, bridge_of, near_tunnel_of, tunnel_of
from wherry.fabric.packet_hold import NetnsPacketHold
from wherry.fabric.protocol import HoldReport
from wherry.fabric.site_filter import TTL, SiteFilter
from wherry.hostlink.entrance import HostSetup
from wherry.model.cpu_quota import cpu_quota, may_burst
from wherry.model.network import HEAD_INDEX, ClusterNetwork, Port, mac_of
from wherry.model.records import HostFacts
from wherry.model.spec.fabric import FabricSpec, HostSpec, SiteSpec

_SITE = "wire"


class WireHost:
    """The `HostNetwork` of this machine."""

    leaves_machine = True

    def __init__(self, setup: HostSetup, criu_version: Callable[[], str]) -> None:
        self._setup, self._instance = setup, Instance(setup.instance)
        self.name = setup.name
        sizes: dict[str, Any] = {"cores": setup.cores, "memory": setup.memory, "speed": setup.speed}
        self._host = HostSpec.model_construct(name=setup.name, site=_SITE, **sizes)
        self._criu_version = criu_version
        self._joining = threading.Lock()
        """Held while networks get the peers of now, so that an earlier call cannot set those of before."""
        self._ports = _Ports(self._host, self._instance, setup.pool, setup.mtu or MTU)
        check_names(self._ports.spec)
        netns = self._ports.host_netns(self.name)
        self._wire = EncryptedWire(self._instance, self.name, netns, encrypted_wire.PORT)
        self._filter = SiteFilter(self._instance.prefix)

    @property
    def setup(self) -> HostSetup:
        """The setup that the agent got first."""
        return self._setup

    def cgroup(self, host: str) -> str:
        """Name of the host's cgroup."""
        return self._ports.cgroup(host)

    def port_netns(self, owner: str) -> str:
        """Path of the namespace of a node's port here."""
        return named_netns.path(f"{self._instance.prefix}-{self.name}-{owner}")

    def make(self) -> None:
        least = self._setup.mtu + headers(self._setup.encrypted) if self._setup.mtu else path_mtu.LEAST
        if (wire := self._link_mtu()) < least:
            what = f"the network of host {self.name} is not fit for clusters"
            remedy = "wherry fabric down; wherry fabric up FILE" if self._setup.mtu else self._remedy()
            raise Refused(Code.UNSUPPORTED, what, f"its MTU is {wire}, and {least} are needed", remedy)
        self._require_neighbours()
        netns = self._ports.host_netns(self.name)
        with self._joining:
            named_netns.create(f"{self._instance.prefix}-{self.name}")
            netns_links.inside(netns, lambda ip: ip.isolate())
            self._set_filter()
        group = Cgroup(self.cgroup(self.name))
        group.create()
        quota, burst = cpu_quota(self._host.cores, self._host.speed), may_burst(self._host.speed)
        group.limit(quota, self._host.memory, tasks=None, burst=burst)
        group.weight(self._host.cores * self._host.speed)

    def remove(self) -> None:
        prefix = self._instance.prefix
        for group in (self.cgroup(self.name), f"{prefix}/.engines"):
            Cgroup(group).remove()
        Cgroup(prefix).remove_if_empty()  # hosts of one machine share it
        self._ports.forget()
        self._wire.remove()
        names = [f"{prefix}-{self.name}", *named_netns.names(f"{prefix}-{self.name}")]
        named_netns.kill(names)
        for name in names:
            if named_netns.exists(name):
                netns_links.inside(named_netns.path(name), lambda ip: ip.remove_all())
            named_netns.remove(name)
        with contextlib.suppress(Refused):  # without nft there are no rules
            self._filter.remove()  # after the VXLANs

    def facts(self) -> HostFacts:
        found = host_facts.gather(self._host, self._criu_version())
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return found.model_copy(update={"memory": min(found.memory, memory)})

    def counters(self, nodes: tuple[str, ...]) -> HostCounters:
        besides = max(0.0, (os.cpu_count() or 1) - self._host.cores * self._host.speed)
        found = self._ports.counters(self.name, nodes)
        return found.model_copy(update={"machine": host_facts.machine_cpu_seconds(), "besides": besides})

    def use(self, nodes: tuple[str, ...]) -> HostUse:
        return self._ports.use(self.name, nodes)

    def frame_counter(self) -> FrameCounter:
        return self._ports.frame_counter(self.name)

    def missing_files(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if not os.path.exists(path))

    def set_peers(self, peers: tuple[str, ...], near: tuple[str, ...]) -> None:
        self._setup = self._setup.model_copy(update={"peers": peers, "near": near})

    def wire_mtu(self, to: tuple[str, ...]) -> int:
        return path_mtu.largest(to, self._link_mtu())

    def _link_mtu(self) -> int:
        found = netns_links.inside(MACHINE, lambda ip: ip.mtu_of(self._setup.address))
        if found is None:
            what = f"host {self.name} does not have the address {self._setup.address}"
            raise Refused(Code.INVALID_FILE, what, "it is to be that of its network between hosts", self._remedy())
        return found

    def _remedy(self) -> str:
        return f"address: of host {self.name} in the fabric file"

    def set_mtu(self, mtu: int) -> None:
        self._setup = self._setup.model_copy(update={"mtu": mtu})
        self._ports.mtu = mtu

    def encrypt(self) -> str:
        self.make()
        return self._wire.make(self._setup.address, self._link_mtu() - encrypted_wire.HEADERS)

    def set_keys(self, peers: tuple[WirePeer, ...]) -> None:
        self._wire.set_peers(peers)

    def repair(self) -> Losses:
        with self._joining:
            made = named_netns.exists(f"{self._instance.prefix}-{self.name}")
            rules = made and bool(self._setup.near) and not self._filter.exists()
            if rules:
                self._set_filter()
        return Losses(rules=rules, wire=self._wire.lost())

    def network_up(self, network: ClusterNetwork) -> None:
        setup, bridge, tunnel = self._setup, bridge_of(network), tunnel_of(network.number)
        netns = self._ports.host_netns(self.name)
        netns_links.inside(netns, lambda ip: ip.bridge(bridge, self._ports.mtu))
        head = Remote(encrypted_wire.INSIDE if setup.encrypted else setup.head, HEAD_PORT)
        vni, below = self._vni(network.number), netns if setup.encrypted else MACHINE
        wire_tunnel(netns, tunnel, vni, setup.address, VXLAN_PORT, self._ports.mtu, learns=True, below=below)

        def join(ip: NetnsLinks) -> None:
            ip.flood_only(tunnel, [Remote(peer) for peer in self._setup.peers] + [head])
            ip.place(tunnel, mac_of(network, HEAD_INDEX), head)
            ip.join_isolated(tunnel, bridge) if setup.encrypted else ip.up(tunnel, bridge)

        with self._joining:
            netns_links.inside(netns, join)
            self._join_neighbours(network)

    def _join_neighbours(self, network: ClusterNetwork) -> None:
        """The same for hosts of this site, where packets to all others are encrypted."""
        netns, tunnel, near = self._ports.host_netns(self.name), near_tunnel_of(network.number), self._setup.near
        if near:
            self._set_filter(network.number)  # before the first packet
            vni, own = self._vni(network.number), self._setup.address
            wire_tunnel(netns, tunnel, vni, own, VXLAN_PORT, self._ports.mtu, learns=True, ttl=TTL)

        def join(ip: NetnsLinks) -> None:
            ip.flood_only(tunnel, [Remote(host) for host in near])
            ip.join_isolated(tunnel, bridge_of(network))

        netns_links.inside(netns, join if near else lambda ip: ip.remove(tunnel))

    def _vni(self, number: int) -> int:
        return (self._setup.vni + number) % (1 << 24)

    def _set_filter(self, *more: int) -> None:
        """Has plain packets of the networks here, and of `more`, cross the wire inside this site alone."""
        if near := self._setup.near:
            names = netns_links.inside(self._ports.host_netns(self.name), lambda ip: ip.names(NEAR_TUNNEL))
            numbers = {*more, *(int(name.removeprefix(NEAR_TUNNEL)) for name in names)}
            self._filter.set(near, [self._vni(number) for number in numbers])

    def _require_neighbours(self) -> None:
        """Refused when a router is on the way to a host of this site to which packets are plain."""
        routers = netns_links.inside(MACHINE, lambda ip: {host: ip.router_to(host) for host in self._setup.near})
        for address, router in routers.items():
            if router is not None:
                what = f"packets between {self.name} and {address}, hosts of one site, cannot be plain"
                why = f"a router is between them, {router}, so others could send such packets, too"
                remedy = "put the two at different sites; or encryption: always, in the fabric file"
                raise Refused(Code.UNSUPPORTED, what, why, remedy)

    def network_down(self, network: ClusterNetwork) -> None:
        if named_netns.exists(f"{self._instance.prefix}-{self.name}"):
            for name in (tunnel_of(network.number), near_tunnel_of(network.number), bridge_of(network)):
                netns_links.inside(self._ports.host_netns(self.name), functools.partial(NetnsLinks.remove, name=name))
            with self._joining:
                self._set_filter()

    def port_up(self, port: Port) -> None:
        self.make()
        self.network_up(port.network)
        self._ports.port_up(port)

    def port_plug(self, port: Port) -> None:
        self._ports.port_plug(port)

    def port_unplug(self, port: Port) -> None:
        self._ports.port_unplug(port)

    def port_down(self, port: Port) -> None:
        self._ports.port_down(port)

    def hold(self, port: Port) -> HostHold:
        return _Hold(self._ports.hold(port))

    # for moves, whose connections are on the wire

    def host_netns(self, host: str) -> str:
        return MACHINE

    def host_address(self, host: str) -> str:
        return self._setup.address


class _Ports(NetnsFabric):
    """The ports of nodes at this host: a fabric of one host, whose network is made elsewhere."""

    leaves_machine = True

    def __init__(self, host: HostSpec, instance: Instance, pool: str, mtu: int) -> None:
        self.mtu = mtu
        """Bytes of packets in networks and ports that are made from now on."""
        sites = (SiteSpec(name=_SITE),)
        super().__init__(FabricSpec.model_construct(name=_SITE, pool=pool, sites=sites, hosts=(host,)), instance)
        self._paths = NoPaths()

    def _site_mtu(self, site: str) -> int:
        return self.mtu

    def forget(self) -> None:
        """Closes the sockets in namespaces that will be removed."""
        with self._lock:
            self._forget()


class _Hold:
    """A hold, whose times are given as seconds ago."""

    def __init__(self, hold: NetnsPacketHold) -> None:
        self._hold = hold

    def divert(self) -> None:
        self._hold.divert()

    def release(self) -> HoldReport:
        return self._hold.release()

    def since_first_sent(self, timeout: float) -> float | None:
        at = self._hold.first_sent(timeout)
        return None if at is None else time.monotonic() - at

    def problem(self) -> str:
        return self._hold.problem()

    def drop(self) -> None:
        self._hold.drop()


def wire_tunnel(
    netns: str, name: str, vni: int, own: str, port: int, mtu: int, learns: bool, below: str = MACHINE, ttl: int = 0
) -> None:
    """A VXLAN in the namespace at path `netns`, whose packets are of the network at path `below`."""
    if netns_links.inside(netns, lambda ip: ip.exists(name)):
        return
    with open(netns) as target:
        try:
            netns_links.inside(below, lambda ip: ip.vxlan_for(target.fileno(), name, vni, own, port, mtu, learns, ttl))
        except Failed as error:
            what = f"the network of a cluster could not be made at {own}"
            why = f"VXLAN {vni}, UDP port {port}: {error.why}"
            raise Failed(Code.FAILED, what, why, "ip -d link show type vxlan") from None


def source_address(to: str) -> str:
    """The address of this machine on the way to another. Refused when no way leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((to, VXLAN_PORT))
        except OSError as error:
            what = f"this machine has no way to {to}"
            raise Refused(Code.UNREACHABLE, what, error.strerror or str(error), f"ip route get {to}") from None
        return str(probe.getsockname()[0])
