"""The paths between the plugged ports of clusters: which links frames take, and how large packets may be.

Between two ports of a site frames are forwarded directly and packets have the site's MTU; between sites they have that
of VXLAN. TCP never learns of a smaller MTU on the way from a bridge, so the route of a cluster's network has the small
one, and each node has a route with the large one to every container at its own site.

Invariants: no packet is larger than its path: large routes are added after a node has arrived, and removed before it
leaves; a port that is not known yet takes bridges and small packets. The plugged ports are read from the kernel once,
as another daemon may have plugged them, and followed from then on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from wherry.base.errors import WherryError
from wherry.fabric import direct_forwarding, named_netns, netns_links
from wherry.fabric.direct_forwarding import Destination, Forwarder
from wherry.fabric.netlink import change_host_routes
from wherry.fabric.netns_names import NetnsNames, bridge_of, cluster_of, is_port, link_of, trunk_of, tunnel_of
from wherry.model.network import ClusterNetwork, Port, address_of, mac_of

_PAUSE = 0.1
"""Seconds from a change of ports until paths follow it: those of a whole cluster's start follow together, and the first
moments after a move are the job's."""
log = logging.getLogger("wherry.fabric")


class _Member(NamedTuple):
    """A plugged port: its host, its owner, whether it is a TAP, and the kernel's index of its link there."""

    host: str
    owner: str
    tap: bool
    link: int


class ClusterPaths:
    """The paths of one fabric's clusters. Changes are made by a thread, which ends when nothing is left to do."""

    def __init__(
        self,
        names: NetnsNames,
        site_mtu: Mapping[str, int],
        far_mtu: int,
        network: Callable[[int], ClusterNetwork],
    ) -> None:
        """MTUs are those of packets within sites and between sites, in bytes; `network` is a cluster's by number."""
        self._names, self._site_mtu, self._far_mtu, self._network = names, site_mtu, far_mtu, network
        self._obstacle: str | None = None
        """Why this machine cannot forward past bridges; None: not tried yet."""
        self._lock = threading.RLock()
        """Held while paths are changed."""
        self._queue_lock = threading.Lock()
        self._queue: deque[tuple[ClusterNetwork, int, Callable[[], None]]] = deque()
        """By cluster and index of a port, what happened to it."""
        self._working = False
        self._forwarders: dict[str, Forwarder] = {}
        self._links: dict[str, dict[str, int]] = {}
        """By namespace, the index of each link of a cluster that is no port, by name."""
        self._members: dict[int, dict[int, _Member]] = {}
        """By cluster, once read, and index."""
        self._moving: defaultdict[int, dict[int, frozenset[str]]] = defaultdict(dict)
        """By cluster and index, the hosts between which a port moves."""
        self._routes: dict[str, frozenset[str]] = {}
        """By namespace of a port, the addresses to which it has a large route; a namespace is missing when unknown."""

    # links

    def add_links(self, netns: str, names: Iterable[str]) -> None:
        """Prepares to forward frames from these links of clusters past the bridges, if this machine can."""
        with self._lock:
            if (forwarder := self._forwarder(netns)) is not None:
                found = netns_links.inside(netns, lambda ip: {name: ip.index(name) for name in names})
                links = {name: index for name, index in found.items() if index is not None}
                forwarder.attach(links.values())
                self._links[netns] |= links

    def take_bridges(self, netns: str, wanted: bool) -> None:
        """All frames take the bridges in a namespace, so that they can be counted there, or no longer."""
        with self._lock:
            if (forwarder := self._forwarder(netns)) is not None:
                forwarder.take_bridges(wanted)

    def _forwarder(self, netns: str) -> Forwarder | None:
        """The namespace's. A new one takes the place of another daemon's at all links, and follows all clusters."""
        if self._obstacle is None:
            self._obstacle = direct_forwarding.obstacle()
            if self._obstacle:
                log.info("frames of clusters take bridges: %s", self._obstacle)
        if self._obstacle:
            return None
        if netns not in self._forwarders:
            links = netns_links.inside(netns, lambda ip: ip.indices())
            clusters = {name: number for name in links if (number := cluster_of(name)) is not None}
            made = self._forwarders[netns] = Forwarder(netns)
            made.attach(links[name] for name in clusters)
            self._links[netns] = {name: links[name] for name in clusters}
            for number in set(clusters.values()) - self._members.keys():
                self._later(self._network(number), -1, lambda: None)
        return self._forwarders[netns]

    # events of ports

    def plugged(self, port: Port) -> None:
        """The port was plugged, which ends its move. Returns at once; the paths follow."""
        self._later(port.network, port.index, lambda: self._plugged(port))

    def gone(self, port: Port) -> None:
        """The port was removed, perhaps one of a move that was rolled back. Returns at once; the paths follow."""
        self._later(port.network, port.index, lambda: self._gone(port))

    def made(self, netns: str) -> None:
        """A port's namespace was made, without routes to nodes."""
        with self._lock:
            self._routes[netns] = frozenset()

    def moving(self, port: Port) -> None:
        """From when this returns until the port is plugged again, frames to it take the bridges, and so do packets of
        the size for other sites if it moves to one. The port's host is the destination, or where it is unplugged.
        Raises the error of a change that fails: frames would go to an unplugged port, and large packets be lost."""
        with self._lock:
            self.update_paths()
            network = port.network
            member = self._read(network).get(port.index)
            hosts = {port.host} | ({member.host} if member else set())
            hosts |= self._moving[network.number].get(port.index, frozenset())
            self._moving[network.number][port.index] = frozenset(hosts)
            for error in (*self._forward(network, hosts), *self._route(network)):
                raise error

    def is_moving(self, port: Port) -> bool:
        """True between `moving` and `plugged`."""
        with self._queue_lock:
            if any(one[:2] == (port.network, port.index) for one in self._queue):
                return False  # it was plugged meanwhile
            return port.index in self._moving[port.network.number]

    def unplug(self, port: Port) -> None:
        """Nothing that comes out of the port, which is moving, passes its bridge from now on."""
        member = self._members.get(port.network.number, {}).get(port.index)
        forwarder = self._forwarders.get(self._names.host(port.host))
        if member is not None and member.host == port.host and forwarder is not None:
            forwarder.stop(member.link)

    def remade(self, network: ClusterNetwork) -> None:
        """The cluster's links may have been made anew."""
        with self._lock:
            self._forget(network.number)

    def removed(self, network: ClusterNetwork) -> None:
        """The cluster's network is about to be removed."""
        with self._lock:
            with self._queue_lock:
                self._queue = deque(entry for entry in self._queue if entry[0] != network)
            self._forget(network.number)
            self._moving.pop(network.number, None)
            for netns, forwarder in self._forwarders.items():
                forwarder.forward(network.number, frozenset())
                forwarder.write(network.number, {})
                for name in [name for name in self._links[netns] if cluster_of(name) == network.number]:
                    del self._links[netns][name]

    def update_paths(self) -> None:
        """Returns when all paths are as the ports demand. A change that fails is logged, and its frames take
        bridges."""
        with self._lock:
            while changes := self._take():
                for network in changes:
                    self._update(network)

    def forget(self) -> None:
        """Forgets everything: the fabric is removed, or made again."""
        with self._lock:
            with self._queue_lock:
                self._queue.clear()
            for cluster in list(self._members):
                self._forget(cluster)
            self._moving.clear()
            self._routes.clear()
            self._links.clear()
            while self._forwarders:
                self._forwarders.popitem()[1].close()

    # the thread

    def _later(self, network: ClusterNetwork, index: int, change: Callable[[], None]) -> None:
        with self._queue_lock:
            self._queue.append((network, index, change))
            if self._working:
                return
            try:
                threading.Thread(target=self._work, name="paths", daemon=True).start()
            except RuntimeError:  # the kernel refuses a thread: the next change, or `update_paths`, applies this one
                log.exception("paths are changed later")
                return
            self._working = True

    def _work(self) -> None:
        while True:
            time.sleep(_PAUSE)
            try:
                self.update_paths()
            except Exception:  # the paths of the next change are due all the same
                log.exception("paths were not changed")
            with self._queue_lock:
                if not self._queue:
                    self._working = False
                    return

    def _take(self) -> dict[ClusterNetwork, None]:
        """Applies the queued changes to the known ports; returns the clusters concerned."""
        with self._queue_lock:
            entries, self._queue = self._queue, deque()
        for network, index, change in entries:
            try:
                self._read(network)
                change()
            except (WherryError, OSError) as error:  # the host was removed meanwhile
                log.warning("where port %s of cluster %s is, is not known: %s", index, network.number, error)
        return dict.fromkeys(network for network, _, _ in entries)

    # the known state

    def _read(self, network: ClusterNetwork) -> dict[int, _Member]:
        """The plugged ports by index."""
        known = self._members.get(network.number)
        if known is None:
            known = self._members[network.number] = {}
            for host in self._hosts():
                for index, owner, tap, link in _plugged_at(self._names.host(host), network):
                    known[index] = _Member(host, owner, tap, link)
        return known

    def _plugged(self, port: Port) -> None:
        self._moving[port.network.number].pop(port.index, None)
        link = netns_links.inside(self._names.host(port.host), lambda ip: ip.index(link_of(port)))
        if link is not None:
            self._members[port.network.number][port.index] = _Member(port.host, port.owner, port.tap, link)
            if (forwarder := self._forwarder(self._names.host(port.host))) is not None:
                forwarder.allow(link)

    def _gone(self, port: Port) -> None:
        number = port.network.number
        self._routes.pop(self._names.port(port.host, port.owner), None)
        known = self._members[number].get(port.index)
        if known is not None and known.host == port.host:
            del self._members[number][port.index]
        if port.host in self._moving[number].get(port.index, ()):
            del self._moving[number][port.index]

    def _forget(self, cluster: int) -> None:
        for member in self._members.pop(cluster, {}).values():
            self._routes.pop(self._names.port(member.host, member.owner), None)

    def _hosts(self) -> list[str]:
        return [host for host in self._names.site_of if named_netns.exists(self._names.name(host))]

    # changes of it

    def _update(self, network: ClusterNetwork) -> None:
        for error in (*self._forward(network, self._hosts()), *self._route(network)):
            log.warning("paths of cluster %s stay slow: %s", network.number, error)

    def _forward(self, network: ClusterNetwork, hosts: Iterable[str]) -> list[Exception]:
        """Tells these hosts and their sites where each port is; returns the errors."""
        site_of, errors = self._names.site_of, list[Exception]()
        places = [(self._names.host(host), {host}, True) for host in hosts]
        for site in dict.fromkeys(site_of[host] for host in hosts):
            at_site = {host for host in site_of if site_of[host] == site}
            places.append((self._names.site(site), at_site, False))
        for netns, here, is_host in places:
            try:
                if (forwarder := self._forwarder(netns)) is None:
                    return []
                destinations, links = self._destinations(network, netns, here, is_host)
                forwarder.write(network.number, destinations)
                forwarder.forward(network.number, links)
            except (WherryError, OSError) as error:
                errors.append(error)
        return errors

    def _destinations(
        self, network: ClusterNetwork, netns: str, here: set[str], is_host: bool
    ) -> tuple[dict[bytes, Destination], set[int]]:
        """For a host, or a site with the hosts `here`: the link to each port that does not move, and the links by
        which its frames come."""
        number, members, known = network.number, self._members.get(network.number, {}), self._links[netns]
        moving = {index for index, hosts in self._moving[number].items() if hosts & here}
        away = trunk_of(number) if is_host else tunnel_of(number)
        destinations = dict[bytes, Destination]()
        links = {index for name, index in known.items() if cluster_of(name) == number and not is_port(name)}
        for index, member in members.items():
            if is_host and member.host in here:
                to = Destination(member.link, not member.tap)
                links.add(member.link)
            else:
                name = self._names.trunk(member.host, number) if member.host in here else away
                if name not in known:
                    continue
                to = Destination(known[name], name != tunnel_of(number))
            if index not in moving:
                destinations[bytes.fromhex(mac_of(network, index).replace(":", ""))] = to
        return destinations, links

    def _route(self, network: ClusterNetwork) -> list[Exception]:
        """Gives each container large routes to the containers at its site, except to containers that may leave it;
        returns the errors."""
        errors = list[Exception]()
        members, site_of = self._members.get(network.number, {}), self._names.site_of
        leaving = {
            index for index, hosts in self._moving[network.number].items() if len({site_of[host] for host in hosts}) > 1
        }
        at_site = defaultdict[str, set[str]](set)
        for index, member in members.items():
            if not member.tap and index not in leaving:
                at_site[site_of[member.host]].add(address_of(network, index))
        for index, member in members.items():
            site = site_of[member.host]
            if member.tap or self._site_mtu[site] <= self._far_mtu:
                continue
            own = address_of(network, index)
            wanted = frozenset(at_site[site] - {own}) if own in at_site[site] else frozenset[str]()
            netns = self._names.port(member.host, member.owner)
            try:
                known = self._routes.pop(netns, None)
                known = netns_links.inside(netns, lambda ip: ip.host_routes()) if known is None else known
                change_host_routes(netns, "eth0", self._site_mtu[site], wanted - known, known - wanted)
                self._routes[netns] = wanted
            except (WherryError, OSError) as error:
                errors.append(error)
        return errors


def _plugged_at(netns: str, network: ClusterNetwork) -> list[tuple[int, str, bool, int]]:
    """Ports of the cluster in its bridge at a host: index, owner, whether it is a TAP, and the link's index."""
    return netns_links.inside(netns, lambda ip: ip.ports(f"p{network.number}.", bridge_of(network)))


class NoPaths(ClusterPaths):
    """The paths of clusters whose frames do not pass this machine."""

    def __init__(self) -> None:
        """Knows nothing and does nothing."""

    def add_links(self, netns: str, names: Iterable[str]) -> None: ...

    def take_bridges(self, netns: str, wanted: bool) -> None: ...

    def unplug(self, port: Port) -> None: ...

    def plugged(self, port: Port) -> None: ...

    def gone(self, port: Port) -> None: ...

    def made(self, netns: str) -> None: ...

    def moving(self, port: Port) -> None: ...

    def is_moving(self, port: Port) -> bool:
        return True

    def update_paths(self) -> None: ...

    def forget(self) -> None: ...
