"""Frames of a cluster go from link to link by a BPF program, before a bridge sees them.

A bridge, and the queue at the other end of a link, cost a frame half a microsecond each at every hop (0019). So every
namespace with links of clusters has a program at the ingress of these links, and two maps:

    frame comes by a link:   which cluster is the link's?       none -> bridge, if the link is in one
                             where is the frame's MAC in it?    unknown -> bridge
                             behind a pair: the program of the pair's other end continues with it, at once
                             behind another link: it is sent
                             behind the link by which it came: dropped, as by a bridge

A frame comes by the link that leads to its MAC when a bridge before that link does not know the MAC, and floods. Sent
back, it would teach that bridge that its sender is on the other side, and the frames to the sender would be lost.

Invariants: a frame whose MAC has no entry takes the bridges, so entries may be late or missing, never wrong; a link
without an entry is as if there were no program, which is how an unplugged port sends nothing past its bridge.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from wherry.base.errors import Refused
from wherry.fabric import named_netns
from wherry.fabric.bpf import Map, Program, instruction

_NAME = "wherry_forward"
_MOST_LINKS, _MOST_MACS = 4096, 65536
"""Sizes of the maps: links of clusters in one namespace, and their nodes' MACs."""
_LINK, _CLUSTER = struct.Struct("=I"), struct.Struct("=I")
_MAC, _WAY = struct.Struct("=6sH"), struct.Struct("=II")


class Destination(NamedTuple):
    """The link to a MAC: its index, and whether it is a veth, whose other end is in another namespace."""

    link: int
    pair: bool


class Forwarder:
    """The program and maps of one namespace. Another one for the same namespace takes its place, link by link."""

    def __init__(self, netns: str) -> None:
        """UNSUPPORTED where libbpf or the kernel cannot do it."""
        self._netns = netns
        self._lock = threading.Lock()
        self._clusters: dict[int, int] = {}
        """Cluster by link: the links that forward, or would if frames did not take the bridges."""
        self._stopped = set[int]()
        self._known: dict[int, dict[bytes, Destination]] = {}
        self._by_bridges = False
        self._links = Map(_NAME, _LINK.size, _CLUSTER.size, _MOST_LINKS)
        self._macs = Map(_NAME, _MAC.size, _WAY.size, _MOST_MACS)
        self._program = Program(_NAME, _program(self._links.fd, self._macs.fd))

    def attach(self, links: Iterable[int]) -> None:
        """Puts the program at these links, by their indices. They do not forward before `forward`."""

        def attach() -> None:
            for link in links:
                self._program.attach(link)

        named_netns.inside(self._netns, attach)

    def forward(self, cluster: int, links: Set[int]) -> None:
        """Exactly these links of the cluster forward, but for the stopped ones."""
        with self._lock:
            for link in [link for link, its in self._clusters.items() if its == cluster and link not in links]:
                self._remove(link)
            for link in links - self._stopped:
                if self._clusters.get(link) != cluster:
                    self._clusters[link] = cluster
                    if not self._by_bridges:
                        self._links.put(_LINK.pack(link), _CLUSTER.pack(cluster))

    def stop(self, link: int) -> None:
        """The link forwards nothing until `allow`."""
        with self._lock:
            self._stopped.add(link)
            self._remove(link)

    def allow(self, link: int) -> None:
        """The link may forward again; the next `forward` decides."""
        with self._lock:
            self._stopped.discard(link)

    def write(self, cluster: int, destinations: Mapping[bytes, Destination]) -> None:
        """Exactly these MACs of the cluster are known, each with the link that leads to it."""
        known = self._known.pop(cluster, {})
        for mac in known.keys() - destinations.keys():
            self._macs.drop(_MAC.pack(mac, cluster))
        for mac, destination in destinations.items():
            if known.get(mac) != destination:
                self._macs.put(_MAC.pack(mac, cluster), _WAY.pack(destination.link, destination.pair))
        self._known[cluster] = dict(destinations)

    def take_bridges(self, wanted: bool) -> None:
        """All frames take the bridges, or only the frames that need to."""
        with self._lock:
            self._by_bridges = wanted
            for link, cluster in self._clusters.items():
                if wanted:
                    self._links.drop(_LINK.pack(link))
                else:
                    self._links.put(_LINK.pack(link), _CLUSTER.pack(cluster))

    def close(self) -> None:
        """Closes the descriptors; the kernel continues as it was set up."""
        for one in (self._program, self._macs, self._links):
            one.close()

    def _remove(self, link: int) -> None:
        self._clusters.pop(link, None)
        self._links.drop(_LINK.pack(link))


def obstacle() -> str:
    """Why this machine cannot forward so; empty when it can."""
    try:
        links, macs = Map(_NAME, _LINK.size, _CLUSTER.size, 1), Map(_NAME, _MAC.size, _WAY.size, 1)
        Program(_NAME, _program(links.fd, macs.fd)).close()
    except Refused as error:
        return error.why
    links.close()
    macs.close()
    return ""


def _program(links: int, macs: int) -> bytes:
    """The program for maps with these descriptors."""
    context, frame, behind, cluster, key = 6, 2, 3, 7, 10  # registers; the key is on the stack
    lookup, redirect, redirect_peer = 1, 23, 155  # BPF_FUNC_…
    unspecified, drop = -1, 2  # TC_ACT_…
    data, data_end, ifindex = 76, 80, 40  # offsets in struct __sk_buff
    i = instruction
    head = [
        i(0xBF, context, 1),  # the context stays in r6
        i(0x61, 1, context, ifindex),
        i(0x63, key, 1, -4),
        i(0x18, 1, 1, 0, links),
        i(0),
        i(0xBF, 2, key),
        i(0x07, 2, value=-4),
        i(0x85, value=lookup),
    ]
    mac = [
        i(0x61, cluster, 0),
        i(0x61, frame, context, data),
        i(0x61, behind, context, data_end),
        i(0xBF, 4, frame),
        i(0x07, 4, value=14),
    ]
    find = [
        i(0x61, 5, frame),  # the MAC, and the cluster behind it
        i(0x63, key, 5, -16),
        i(0x69, 5, frame, 4),
        i(0x6B, key, 5, -12),
        i(0x6B, key, cluster, -10),
        i(0x18, 1, 1, 0, macs),
        i(0),
        i(0xBF, 2, key),
        i(0x07, 2, value=-16),
        i(0x85, value=lookup),
    ]
    go = [
        i(0x61, 1, 0),
        i(0x61, 2, context, ifindex),
        i(0x5D, 1, 2, 2),  # the frame came by another link: on
        i(0xB4, 0, value=drop),
        i(0x95),
        i(0x61, 3, 0, 4),
        i(0xB4, 2),
        i(0x15, 3, offset=2),  # no pair: to `redirect`
        i(0x85, value=redirect_peer),
        i(0x95),
        i(0x85, value=redirect),
        i(0x95),
    ]
    leave = [i(0xB4, 0, value=unspecified), i(0x95)]
    to_leave = len(mac) + 1 + len(find) + 1 + len(go)
    found_link = i(0x15, 0, offset=to_leave)
    whole_header = i(0x2D, 4, behind, len(find) + 1 + len(go))
    found_mac = i(0x15, 0, offset=len(go))
    return b"".join([*head, found_link, *mac, whole_header, *find, found_mac, *go, *leave])
