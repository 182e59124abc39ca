"""Emulated hosts on this machine: a host is a network namespace and a cgroup, a site is a namespace with a bridge.

                  site a (bridge lan) ===== link ===== site b (bridge lan)
                    |            |                        |
    host a1:       up0    a2:   up0               b1:    up0            <- underlay, MTU 9000
                    | VXLAN N    |                        |
                    xN ~~~~~~~~ xN ~~~~~~~~~~~~~~~~~~~~~ xN             <- cluster number N
                    cN           cN                       cN   (bridge)
                   /  \\           |
               pN.0   pN.1       pN.2                                   <- ports; the other end is a node's eth0,
                                                                           a virtual machine's is a TAP

Invariants: every name is derived from instance, host, node and cluster number, so `down` needs no other record; a port
is plugged exactly when its host's end is in the cluster's bridge; frames of a cluster between two hosts cross the
underlay, so a host whose `up0` is down is lost.
"""

from __future__ import annotations

import functools
import ipaddress
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.fabric import host_facts, link_probe, named_netns, netns_links, site_links
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.cgroup import sweep as sweep_cgroups
from wherry.fabric.netlink import IFF_LOWER_UP, IFF_UP, Announcer, Switch, set_neighbours
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.nft import nft
from wherry.fabric.packet_hold import NetnsPacketHold
from wherry.fabric.protocol import LinkMeasure, LinkState, Repair
from wherry.fabric.site_links import SiteLinks
from wherry.model.network import HEAD_INDEX, MOST_NODES, ClusterNetwork, Port, address_of, mac_of
from wherry.model.records import Host, HostFacts
from wherry.model.spec.fabric import FabricSpec, HostSpec, LinkSpec

_GUARD = """\
add table bridge guard
add chain bridge guard input { type filter hook input priority 0; policy drop; }
"""
"""Drops what a bridge would deliver to the host itself: a guest can send any frame, even a VXLAN packet that the host
would unpack into another cluster's network."""


def check(spec: FabricSpec) -> None:
    """Refuses a fabric that this driver cannot make. Changes nothing."""
    site_links.check(spec)
    check_names(spec)
    room = 2 ** (24 - ipaddress.ip_network(spec.underlay).prefixlen) - 1
    crowded = [site.name for site in spec.sites if sum(host.site == site.name for host in spec.hosts) > 254]
    if len(spec.sites) > room or crowded:
        raise Refused(
            Code.NO_CAPACITY,
            f"the underlay {spec.underlay} has no room for this fabric",
            f"it has addresses for {room} sites of 254 hosts",
            "use a larger underlay",
        )


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


class NetnsFabric:
    """The fabric of one instance."""

    driver = "netns"
    uncounted = ""

    def __init__(self, spec: FabricSpec, instance: Instance, criu_version: Callable[[], str] = lambda: "") -> None:
        self.spec = spec
        self._instance = instance
        self._criu_version = criu_version
        self._lock = threading.RLock()
        self._facts: dict[str, HostFacts] = {}
        self._switches: dict[str, Switch] = {}
        self._announcers: dict[tuple[str, str], Announcer] = {}
        self._links = SiteLinks(instance)

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

    def down(self) -> None:
        with self._lock, self._links.lock:
            self._forget()
            self._links.forget()
            sweep(self._instance)

    def is_up(self) -> bool:
        return all(named_netns.exists(self._name(h.name)) and self._up0(h.name) is not None for h in self.spec.hosts)

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
        self._switch(host).set_up("up0", not down)
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
        return named_netns.path(self._name(self._host(host).name))

    def host_address(self, host: str) -> str:
        site = [s.name for s in self.spec.sites].index(self._host(host).site)
        index = [h.name for h in self.spec.hosts if h.site == self._host(host).site].index(host)
        return str(ipaddress.ip_network(self.spec.underlay).network_address + ((site + 1) << 8) + index + 1)

    def cgroup(self, host: str) -> str:
        return f"{self._instance.prefix}/{host}"

    # networks of clusters

    def network_up(self, network: ClusterNetwork) -> None:
        addresses = {host.name: self.host_address(host.name) for host in self.spec.hosts}
        for host, own in addresses.items():
            others = [address for address in addresses.values() if address != own]
            netns_links.inside(
                self.host_netns(host), functools.partial(_network, network=network, own=own, others=others)
            )

    def network_down(self, network: ClusterNetwork) -> None:
        def remove(host: str) -> None:
            self._switch(host).delete(f"x{network.number}")
            self._switch(host).delete(bridge_of(network))

        there = [host.name for host in self.spec.hosts if named_netns.exists(self._name(host.name))]
        with ThreadPoolExecutor(8) as pool:  # each removal waits for RCU grace periods; these waits overlap
            list(pool.map(remove, there))

    # ports

    def port_up(self, port: Port) -> str:
        if port.tap:
            nft(self.host_netns(port.host), "-f", "-", text=_GUARD)  # UNSUPPORTED where nftables do not work
            netns_links.inside(self.host_netns(port.host), lambda ip: ip.tap(_port(port), port.queues))
            return self.port_netns(port)
        name, where = self._port_name(port), self.port_netns(port)
        made = named_netns.exists(name) and netns_links.inside(where, lambda ip: ip.has_address("eth0", port.address))
        if not made or self._switch(port.host).link(_port(port)) is None:
            self.port_down(port)  # what an interrupted attempt left
            named_netns.create(name)
            with open(where) as netns:
                netns_links.inside(
                    self.host_netns(port.host), lambda ip: ip.pair(_port(port), "eth0", netns.fileno(), port.mac)
                )
            netns_links.inside(where, lambda ip: _set_up_node(ip, f"{port.address}/{_prefix(port.network.subnet)}"))
            netns_links.inside(self.host_netns(port.host), lambda ip: _bring_up(ip, _port(port)))
            netns_links.inside(where, lambda ip: ip.wait("eth0"))
            set_neighbours(where, "eth0", _neighbours(port))
        self._announcer(port)
        return where

    def port_netns(self, port: Port) -> str:
        return self.host_netns(port.host) if port.tap else named_netns.path(self._port_name(port))

    def port_device(self, port: Port) -> str:
        return _port(port)

    def port_plug(self, port: Port) -> None:
        self._switch(port.host).attach(_port(port), bridge_of(port.network))
        if port.tap:
            self._switch(port.host).add_fdb_entry(_port(port), port.mac)
        self._announcer(port).announce()

    def port_unplug(self, port: Port) -> None:
        self._switch(port.host).detach(_port(port))

    def port_down(self, port: Port) -> None:
        with self._lock:
            announcer = self._announcers.pop((port.host, port.owner), None)
        if announcer is not None:
            announcer.close()
        if self._has_ports(port.host):
            self._switch(port.host).delete(_port(port))
        named_netns.remove(self._port_name(port))

    def hold(self, port: Port) -> NetnsPacketHold:
        return NetnsPacketHold(self.host_netns(port.host), bridge_of(port.network), _port(port), port, self.host_netns)

    # making

    def _make_site(self, site: str) -> None:
        name = self._name(f"site-{site}")
        named_netns.create(name)
        netns_links.inside(named_netns.path(name), _set_up_site)

    def _make_host(self, host: HostSpec) -> None:
        name = self._name(host.name)
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
        with suppress(Refused):  # only guests can send such frames, and without nftables `port_up` refuses guests
            nft(named_netns.path(name), "-f", "-", text=_GUARD)
        self._wait_uplink(host)
        group = Cgroup(self.cgroup(host.name))
        group.create()
        group.limit(cpus=host.cores * host.speed, memory=host.memory, tasks=None)
        group.weight(host.cores * host.speed)

    def _uplink(self, host: HostSpec) -> tuple[str, str]:
        """Path of the site's namespace, and the name of the site's end of the host's `up0`."""
        return named_netns.path(self._name(f"site-{host.site}")), f"h{self._index(host.name)}"

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
        if not named_netns.exists(self._name(self._host(host).name)):
            return None
        return self._switch(host).link("up0")

    def _has_ports(self, host: str) -> bool:
        """True when the namespace with the host's ports exists."""
        return named_netns.exists(self._name(host))

    def _host(self, name: str) -> HostSpec:
        for host in self.spec.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.spec.hosts)
        raise Refused(Code.NOT_FOUND, f"there is no host {name!r}", f"hosts: {known}", "wherry fabric show")

    def _index(self, host: str) -> int:
        return [h.name for h in self.spec.hosts].index(host)

    def _name(self, what: str) -> str:
        return f"{self._instance.prefix}-{what}"

    def _port_name(self, port: Port) -> str:
        return self._name(f"{port.host}-{port.owner}")


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


def bridge_of(network: ClusterNetwork) -> str:
    """Name of a cluster's bridge."""
    return f"c{network.number}"


def _port(port: Port) -> str:
    return f"p{port.network.number}.{port.index}"


def _neighbours(port: Port) -> dict[str, str]:
    """Address and MAC of every other node that the port's network can ever have: both follow from the index."""
    others = (index for index in (*range(MOST_NODES), HEAD_INDEX) if index != port.index)
    return {address_of(port.network, index): mac_of(port.network, index) for index in others}


def _prefix(subnet: str) -> int:
    return ipaddress.ip_network(subnet).prefixlen


def _set_up_site(ip: NetnsLinks) -> None:
    ip.isolate()
    ip.bridge(site_links.BRIDGE, netns_links.UNDERLAY_MTU)


def _set_up_host(ip: NetnsLinks, address: str) -> None:
    ip.isolate()
    ip.disable_slow_start_after_idle()
    ip.address("up0", address)
    ip.up("up0")


def _set_up_node(ip: NetnsLinks, address: str) -> None:
    ip.isolate()
    ip.address("eth0", address)
    ip.up("eth0")


def _bring_up(ip: NetnsLinks, name: str) -> None:
    ip.up(name)
    ip.wait(name)


def _network(ip: NetnsLinks, network: ClusterNetwork, own: str, others: list[str]) -> None:
    ip.bridge(bridge_of(network), netns_links.MTU)
    ip.vxlan(f"x{network.number}", network.number, own, others)
    ip.up(f"x{network.number}", bridge_of(network))
