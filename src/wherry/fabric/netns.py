"""Emulated hosts on this machine: a host is a network namespace and a cgroup, a site is a namespace with bridges.

    cluster N at site a:   cN -- xN ~~~~~~~~~~~ VXLAN over the sites' link ~~~~~~~~~~~ xN -- cN    at site b (bridges)
                          /   \\                                                            |
                       d0.N   d1.N                                                        d2.N
                        |       |       <- trunks: a pair for each host and cluster        |
                       uN      uN                                                          uN
    host a1:           cN      cN  :a2                                              b1:    cN                  (bridges)
                      /  \\      |                                                           |
                  pN.0  pN.1  pN.2      <- ports; the other end is a node's eth0,        pN.3
                                           a virtual machine's is a TAP

    underlay:   host a1: up0 -- h0 -- lan (bridge, site a) ===== link ===== lan (site b) -- h2 -- up0   MTU 9000

Invariants: every name is derived from instance, host, node and cluster number, so `down` needs no other record; a port
is plugged exactly when its host's end is in the cluster's bridge; a host is lost when its `up0` is down, and `set_down`
takes its trunks down with it. Frames do not take the bridges where `cluster_paths` has a direct way.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, host_facts, link_probe, named_netns, netns_links, site_links
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.cgroup import sweep as sweep_cgroups
from wherry.fabric.cluster_paths import ClusterPaths
from wherry.fabric.host_counters import CountedHere
from wherry.fabric.netlink import IFF_LOWER_UP, IFF_UP, Announcer, Switch, set_neighbours
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.netns_names import TRUNK_END, TUNNEL, NetnsNames, bridge_of, link_of, trunk_of, tunnel_of
from wherry.fabric.nft import nft
from wherry.fabric.packet_hold import NetnsPacketHold
from wherry.fabric.protocol import LinkMeasure, LinkState, Repair
from wherry.fabric.site_links import SiteLinks
from wherry.model.cpu_quota import cpu_quota, may_burst
from wherry.model.network import HEAD_INDEX, MOST_NODES, ClusterNetwork, Port, address_of, mac_of, network_of
from wherry.model.records import Host, HostFacts
from wherry.model.spec.fabric import FabricSpec, HostSpec, LinkSpec

_GUARD = """\
add table bridge guard
add chain bridge guard input { type filter hook input priority 0; policy drop; }
"""
"""Drops frames that a bridge would deliver to the host itself: a guest can send any, even to its host's services."""
_SITE_GUARD = f"""\
add table bridge guard
add chain bridge guard input {{ type filter hook input priority 0; policy accept; }}
flush chain bridge guard input
add rule bridge guard input iifname {{ "{TRUNK_END}*", "{TUNNEL}*" }} drop
"""
"""Drops frames from a cluster's bridge to the site itself, which unpacks VXLAN packets of every cluster."""


def check(spec: FabricSpec) -> None:
    """Refuses a fabric that this driver cannot make. Changes nothing."""
    site_links.check(spec)
    check_names(spec)
    room = 2 ** (24 - ipaddress.ip_network(spec.underlay).prefixlen) - 1
    crowded = [site.name for site in spec.sites if sum(host.site == site.name for host in spec.hosts) > 254]
    if len(spec.sites) > room or crowded:
        what = f"the underlay {spec.underlay} has no room for this fabric"
        why = f"it has addresses for {room} sites of 254 hosts"
        raise Refused(Code.NO_CAPACITY, what, why, "use a larger underlay")


def check_names(spec: FabricSpec) -> None:
    """Refuses host names of which one begins another: host `a` with node `b-c` and host `a-b` with node `c` would share
    a namespace."""
    for host in spec.hosts:
        for begin in ("site", *(other.name for other in spec.hosts)):
            if f"{host.name}-".startswith(f"{begin}-") and host.name != begin or host.name == "site":
                raise Refused(
                    Code.UNSUPPORTED,
                    f"the host name {host.name} begins with the name {begin}",
                    "network namespaces are named HOST-NODE, and two of them could get the same name",
                    "rename the host",
                )


class NetnsFabric(CountedHere):
    """The fabric of one instance."""

    driver = "netns"
    uncounted = ""
    leaves_machine = False

    def __init__(self, spec: FabricSpec, instance: Instance, criu_version: Callable[[], str] = lambda: "") -> None:
        self.spec = spec
        self._instance = instance
        self._criu_version = criu_version
        self._lock = threading.RLock()
        self._facts: dict[str, HostFacts] = {}
        self._switches: dict[str, Switch] = {}
        self._announcers: dict[tuple[str, str], Announcer] = {}
        self._links = SiteLinks(instance)
        self._names = NetnsNames(spec, instance)
        site_mtu = {site.name: self._site_mtu(site.name) for site in spec.sites}
        self._paths = ClusterPaths(self._names, site_mtu, self._far_mtu(), functools.partial(network_of, spec.pool))

    # the fabric

    def up(self) -> None:
        check(self.spec)
        with self._lock:
            for site in self.spec.sites:
                self._make_site(site.name)
            for link in self.spec.effective_links():
                self._links.up(self.spec, link)
            for host in self.spec.hosts:
                self._make_host(host)
            self._forget()
            self._paths.forget()

    def down(self) -> None:
        with self._lock, self._links.lock:
            self._paths.forget()
            self._forget()
            self._links.forget()
            sweep(self._instance)

    def is_up(self) -> bool:
        return all(
            named_netns.exists(self._names.name(h.name)) and self._up0(h.name) is not None for h in self.spec.hosts
        )

    def hosts(self) -> list[Host]:
        return [
            Host(
                name=host.name, site=host.site, cores=host.cores, memory=host.memory, speed=host.speed,
                facts=self.facts(host.name),
            )
            for host in self.spec.hosts
        ]  # fmt: skip

    def facts(self, host: str) -> HostFacts:
        if host not in self._facts:  # no lock: this runs programs, and a frozen node's port would wait for the lock
            self._facts[host] = host_facts.gather(self._host(host), self._criu_version())
        return self._facts[host]

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        return host_facts.missing_files(self._host(host), paths)

    def reachable(self, host: str) -> bool:
        found = self._up0(host)
        return found is not None and found[1] & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP

    def set_lost(self, host: str, lost: bool) -> None:
        if lost:
            why = "it is emulated by this machine, which runs"
            raise Refused(Code.UNSUPPORTED, f"host {host} cannot be declared lost", why, f"wherry host drain {host}")

    def set_down(self, host: str, down: bool) -> None:
        for name in ("up0", *netns_links.inside(self.host_netns(host), lambda ip: ip.names("u"))):
            self._switch(host).set_up(name, not down)
        if not down:
            self._wait_uplink(self._host(host))

    def links(self) -> list[LinkState]:
        return [self._links.state(self.spec, link) for link in self.spec.effective_links()]

    def set_link(self, link: LinkSpec) -> None:
        with self._links.lock:
            changed = self.spec.with_link(link)
            site_links.check(changed)
            try:
                self._links.up(changed, link)
            except Exception:
                self._links.up(self.spec, self.spec.link(*link.between))
                raise
            self.spec = changed

    def measure_link(self, link: LinkSpec, bandwidth: bool) -> LinkMeasure:
        first = {host.site: host.name for host in reversed(self.spec.hosts)}
        if not all(site in first for site in link.between):
            return LinkMeasure()
        one, other = ((self.host_netns(first[site]), self.host_address(first[site])) for site in link.between)
        return link_probe.measure(one, other, link.directions(), bandwidth)

    def relink(self) -> None:
        with self._links.lock:
            self._links.remake(self.spec)

    def repair(self) -> list[Repair]:
        if not self._links.lock.acquire(blocking=False):
            return []  # links are being changed, which may wait 30 s for a handshake; the next call finds them whole
        try:
            return self._links.repair(self.spec)  # the spec is read under the lock: `set_link` replaces it
        finally:
            self._links.lock.release()

    def host_netns(self, host: str) -> str:
        return self._names.host(self._host(host).name)

    def host_address(self, host: str) -> str:
        site = [s.name for s in self.spec.sites].index(self._host(host).site)
        index = [h.name for h in self.spec.hosts if h.site == self._host(host).site].index(host)
        return str(ipaddress.ip_network(self.spec.underlay).network_address + ((site + 1) << 8) + index + 1)

    def cgroup(self, host: str) -> str:
        return f"{self._instance.prefix}/{host}"

    # networks of clusters

    def network_up(self, network: ClusterNetwork) -> None:
        for site in self.spec.sites:
            hosts = [host.name for host in self.spec.hosts if host.site == site.name]
            links = [self._names.trunk(host, network.number) for host in hosts]
            netns_links.inside(self._names.site(site.name), functools.partial(self._site_network, network, site.name))
            for host in hosts:
                netns_links.inside(self._names.host(host), functools.partial(self._host_network, network, host))
            netns_links.inside(
                self._names.site(site.name),
                functools.partial(
                    _join, network=network, links=links, large=self._site_mtu(site.name) > netns_links.MTU
                ),
            )
            for host in hosts:
                netns_links.inside(self._names.host(host), lambda ip: ip.wait(trunk_of(network.number)))
                self._paths.add_links(self._names.host(host), [trunk_of(network.number)])
            tunnels = [tunnel_of(network.number)] if len(self.spec.sites) > 1 else []
            self._paths.add_links(self._names.site(site.name), [*links, *tunnels])
        self._paths.remade(network)

    def network_down(self, network: ClusterNetwork) -> None:
        self._paths.removed(network)

        def remove(netns: str) -> None:
            if not named_netns.exists(Path(netns).name):
                return
            with contextlib.closing(Switch(netns)) as switch:
                for name in (tunnel_of(network.number), trunk_of(network.number), bridge_of(network)):
                    switch.delete(name)

        with ThreadPoolExecutor(8) as pool:  # each removal waits for RCU grace periods; these waits overlap
            list(pool.map(remove, [self._names.host(host) for host in self._names.site_of]))
            list(pool.map(remove, [self._names.site(site) for site in self._names.sites]))

    def update_paths(self) -> None:
        self._paths.update_paths()

    def take_bridges(self, netns: str, wanted: bool) -> None:
        self._paths.take_bridges(netns, wanted)

    def _site_network(self, network: ClusterNetwork, site: str, ip: NetnsLinks) -> None:
        ip.bridge(bridge_of(network), netns_links.MTU)
        if len(self.spec.sites) > 1:
            others = [self._site_address(other) for other in self._names.sites if other != site]
            ip.vxlan(tunnel_of(network.number), network.number, self._site_address(site), others)
            ip.up(tunnel_of(network.number), bridge_of(network))

    def _host_network(self, network: ClusterNetwork, host: str, ip: NetnsLinks) -> None:
        """The host's bridge and trunk. A trunk is as large as the site's MTU; so are the frames of a VM, at most."""
        ip.bridge(bridge_of(network), netns_links.MTU)
        site = self._host(host).site
        with open(self._names.site(site)) as netns:
            trunk, end = trunk_of(network.number), self._names.trunk(host, network.number)
            ip.pair(trunk, end, netns.fileno(), mtu=max(self._site_mtu(site), netns_links.MTU))
        if self._site_mtu(site) > netns_links.MTU:
            ip.large_packets(trunk)
        ip.up(trunk, bridge_of(network))

    # ports

    def port_up(self, port: Port) -> str:
        if port.tap:
            nft(self.host_netns(port.host), "-f", "-", text=_GUARD)  # UNSUPPORTED where nftables do not work
            netns_links.inside(self.host_netns(port.host), lambda ip: ip.tap(link_of(port), port.owner, port.queues))
            self._paths.add_links(self.host_netns(port.host), [link_of(port)])
            return self.port_netns(port)
        where = self.port_netns(port)
        name = Path(where).name
        made = named_netns.exists(name) and netns_links.inside(where, lambda ip: ip.has_address("eth0", port.address))
        if not made or self._switch(port.host).link(link_of(port)) is None:
            self.port_down(port)  # remains of an interrupted attempt
            named_netns.create(name)
            with open(where) as netns:
                mtu = self._site_mtu(self._host(port.host).site)
                netns_links.inside(
                    self.host_netns(port.host),
                    lambda ip: ip.pair(link_of(port), "eth0", netns.fileno(), port.mac, mtu),
                )
            address = f"{port.address}/{_prefix(port.network.subnet)}"
            large = mtu > netns_links.MTU and not self.leaves_machine
            netns_links.inside(where, lambda ip: _set_up_node(ip, address, min(mtu, self._far_mtu()), large))
            netns_links.inside(self.host_netns(port.host), lambda ip: _bring_up(ip, link_of(port), port.owner, large))
            netns_links.inside(where, lambda ip: ip.wait("eth0"))
            set_neighbours(where, "eth0", _neighbours(port))
            self._paths.made(where)
            self._paths.add_links(self.host_netns(port.host), [link_of(port)])
        self._announcer(port)
        return where

    def port_netns(self, port: Port) -> str:
        return self.host_netns(port.host) if port.tap else self._names.port(port.host, port.owner)

    def port_device(self, port: Port) -> str:
        return link_of(port)

    def port_plug(self, port: Port) -> None:
        self._switch(port.host).attach(link_of(port), bridge_of(port.network))
        if port.tap:
            self._switch(port.host).add_fdb_entry(link_of(port), port.mac)
        self._announcer(port).announce()
        self._paths.plugged(port)

    def port_unplug(self, port: Port) -> None:
        if not self._paths.is_moving(port):  # else `hold` saw to it
            self._paths.moving(port)
        self._paths.unplug(port)
        self._switch(port.host).detach(link_of(port))

    def port_down(self, port: Port) -> None:
        with self._lock:
            announcer = self._announcers.pop((port.host, port.owner), None)
        if announcer is not None:
            announcer.close()
        if self._has_ports(port.host):
            self._switch(port.host).delete(link_of(port))
        named_netns.remove(self._names.name(f"{port.host}-{port.owner}"))
        self._paths.gone(port)

    def hold(self, port: Port) -> NetnsPacketHold:
        self._paths.moving(port)
        return NetnsPacketHold(
            self.host_netns(port.host), bridge_of(port.network), link_of(port), port, self.host_netns
        )

    # making

    def _make_site(self, site: str) -> None:
        netns, address = self._names.site(site), f"{self._site_address(site)}/{_prefix(self.spec.underlay)}"
        named_netns.create(Path(netns).name)
        netns_links.inside(netns, lambda ip: _set_up_site(ip, address))
        _set_up_guard(netns, _SITE_GUARD)

    def _make_host(self, host: HostSpec) -> None:
        name = self._names.name(host.name)
        named_netns.create(name)
        site, end = self._uplink(host)
        if not netns_links.inside(named_netns.path(name), lambda ip: ip.exists("up0")):
            netns_links.inside(site, lambda ip: ip.remove(end))  # of a namespace whose name somebody else removed
        with open(site) as netns:
            netns_links.inside(
                named_netns.path(name), lambda ip: ip.pair("up0", end, netns.fileno(), mtu=netns_links.UNDERLAY_MTU)
            )
        netns_links.inside(site, lambda ip: ip.up(end, site_links.BRIDGE))
        address = f"{self.host_address(host.name)}/{_prefix(self.spec.underlay)}"
        netns_links.inside(named_netns.path(name), lambda ip: _set_up_host(ip, address))
        _set_up_guard(named_netns.path(name), _GUARD)
        self._wait_uplink(host)
        group = Cgroup(self.cgroup(host.name))
        group.create()
        quota, burst = cpu_quota(host.cores, host.speed), may_burst(host.speed)
        group.limit(quota, host.memory, tasks=None, burst=burst)
        group.weight(host.cores * host.speed)

    def _site_address(self, site: str) -> str:
        """The site's own address in the underlay: the one before its first host's."""
        index = self._names.sites.index(site)
        return str(ipaddress.ip_network(self.spec.underlay).network_address + ((index + 1) << 8))

    def _site_mtu(self, site: str) -> int:
        """Of packets within the site, in bytes."""
        return next(one.mtu for one in self.spec.sites if one.name == site)

    def _far_mtu(self) -> int:
        """Of packets between sites, in bytes; with a single site, that of the site."""
        smallest = min(self._site_mtu(site.name) for site in self.spec.sites)
        return smallest if len(self.spec.sites) == 1 else min(smallest, netns_links.MTU)

    def _uplink(self, host: HostSpec) -> tuple[str, str]:
        """Path of the site's namespace, and the name of the site's end of the host's `up0`."""
        return self._names.site(host.site), self._names.uplink(host.name)

    def _wait_uplink(self, host: HostSpec) -> None:
        site, end = self._uplink(host)
        netns_links.inside(self.host_netns(host.name), lambda ip: ip.wait("up0"))
        netns_links.inside(site, lambda ip: ip.wait(end))

    # sockets that are kept open between calls

    def _switch(self, host: str) -> Switch:
        with self._lock:
            if host not in self._switches:
                self._switches[host] = Switch(self.host_netns(host))
            return self._switches[host]

    def _announcer(self, port: Port) -> Announcer:
        with self._lock:
            key = (port.host, port.owner)
            if key not in self._announcers:
                # A frame sent into a TAP reaches the guest alone; one sent from the bridge reaches all other ports.
                interface = bridge_of(port.network) if port.tap else "eth0"
                self._announcers[key] = Announcer(self.port_netns(port), interface, port.address, port.mac)
            return self._announcers[key]

    def _forget(self) -> None:
        for switch in self._switches.values():
            switch.close()
        for announcer in self._announcers.values():
            announcer.close()
        self._switches.clear()
        self._announcers.clear()

    def _up0(self, host: str) -> tuple[int, int, int] | None:
        if not named_netns.exists(self._names.name(self._host(host).name)):
            return None
        return self._switch(host).link("up0")

    def _has_ports(self, host: str) -> bool:
        """True when the namespace with the host's ports exists."""
        return named_netns.exists(self._names.name(host))

    def _host(self, name: str) -> HostSpec:
        for host in self.spec.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.spec.hosts)
        raise Refused(Code.NOT_FOUND, f"there is no host {name!r}", f"hosts: {known}", "wherry fabric show")


def sweep(instance: Instance) -> None:
    """Removes every cgroup, process and namespace of the instance, also half-made ones. Needs no spec."""
    sweep_cgroups(instance.prefix)
    names = named_netns.names(instance.prefix)
    named_netns.kill(names)
    for name in names:
        if named_netns.exists(name):
            # Removed now, with the other ends of pairs, as the kernel destroys an abandoned namespace only later.
            netns_links.inside(named_netns.path(name), lambda ip: ip.remove_all())
        named_netns.remove(name)
    site_links.sweep(instance)
    encrypted_wire.sweep(instance)


def _neighbours(port: Port) -> dict[str, str]:
    """Address and MAC of every other node that the port's network can ever have: both follow from the index."""
    others = (index for index in (*range(MOST_NODES), HEAD_INDEX) if index != port.index)
    return {address_of(port.network, index): mac_of(port.network, index) for index in others}


def _prefix(subnet: str) -> int:
    return ipaddress.ip_network(subnet).prefixlen


def _set_up_guard(netns: str, rules: str) -> None:
    with contextlib.suppress(Refused):  # only guests can send such frames: without nftables `port_up` refuses guests
        nft(netns, "-f", "-", text=rules)


def _set_up_site(ip: NetnsLinks, address: str) -> None:
    ip.isolate()
    # A MAC of its own: other sites would send to an old one for seconds after a link's end was made anew.
    octets = ipaddress.ip_interface(address).ip.packed
    mac = ":".join(f"{byte:02x}" for byte in (0x02, 0x76, *octets))
    ip.bridge(site_links.BRIDGE, netns_links.UNDERLAY_MTU, mac)
    ip.address(site_links.BRIDGE, address)


def _set_up_host(ip: NetnsLinks, address: str) -> None:
    ip.isolate()
    ip.set_up_tcp()
    ip.address("up0", address)
    ip.up("up0")


def _set_up_node(ip: NetnsLinks, address: str, mtu: int, large: bool) -> None:
    """`mtu` is that of the route to the cluster's network, in bytes; `large` packets are allowed all the same."""
    ip.isolate()
    if large:
        ip.large_packets("eth0")
    ip.address("eth0", address)
    ip.up("eth0")
    ip.route_mtu("eth0", address, mtu)


def _bring_up(ip: NetnsLinks, name: str, owner: str, large: bool) -> None:
    if large:
        ip.large_packets(name)
    ip.up(name, owner=owner)
    ip.wait(name)


def _join(ip: NetnsLinks, network: ClusterNetwork, links: list[str], large: bool) -> None:
    for link in links:
        if large:
            ip.large_packets(link)
        ip.up(link, bridge_of(network))
    for link in links:
        ip.wait(link)
