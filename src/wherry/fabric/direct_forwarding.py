"""Frames of a cluster go from link to link by an nftables rule at the ingress hook, before a bridge sees them.

Each bridge costs a frame half a microsecond and more (0019). So every namespace with links of clusters has a table: for
each cluster a map from the MAC of a plugged port to the link that leads there, and for each link a chain:

    frame comes by a link:  by an unplugged port, or its MAC is moving? -> bridge, if the link is in one
                            else, the map has its MAC? -> that link; no? -> bridge

Invariants: a frame whose MAC no map has takes the bridges, so a map may be late or incomplete; a MAC is marked as
moving before its port is unplugged, and until it is plugged again; nothing comes out of an unplugged port.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from wherry.base.errors import Refused
from wherry.fabric.netlink import UNPLUGGED
from wherry.fabric.netns_names import is_of_cluster
from wherry.fabric.nft import nft

TABLE, _TRIAL = "netdev wherry", "netdev wherry-trial"
COUNT = "count"
"""The chain that every frame passes first. It is empty unless `traffic_matrix` counts."""


class Destinations(NamedTuple):
    """What a namespace knows of one cluster: the link by MAC, with a number that differs when a link of the same name
    was made anew, and the MACs that are moving."""

    links: Mapping[str, tuple[str, int]] = {}
    moving: Set[str] = frozenset()


def trial() -> str:
    """Commands that succeed where this machine can forward so; they leave nothing behind."""
    chain = f"{_TRIAL} ingress"
    return "\n".join(
        [
            f"add table {_TRIAL}",
            f'add chain {chain} {{ type filter hook ingress device "lo" priority 0; policy accept; }}',
            f'add rule {chain} fwd to ether daddr map {{ 02:00:00:00:00:00 : "lo" }}',
            f"delete table {_TRIAL}",
            "",
        ]
    )


def obstacle(netns: str) -> str:
    """Why this machine cannot forward so, tried in a namespace; empty when it can."""
    try:
        nft(netns, "-f", "-", text=trial())
    except Refused as error:
        return error.why
    return ""


def add_links(netns: str, cluster: int, links: Iterable[str]) -> None:
    """Forwards what comes by these links of the cluster, which must exist. Idempotent."""
    lines = [f"add table {TABLE}", f"add chain {TABLE} {COUNT}", *_sets(cluster)]
    for link in links:
        hook = f'{{ type filter hook ingress device "{link}" priority 0; policy accept; }}'
        lines += [f"add chain {TABLE} {link} {hook}", f"flush chain {TABLE} {link}"]
        unplugged, moving = f"meta iifgroup {UNPLUGGED} accept", f"ether daddr @m{cluster} accept"
        rules = (unplugged, f"jump {COUNT}", moving, f"fwd to ether daddr map @c{cluster}")
        lines += [f"add rule {TABLE} {link} {rule}" for rule in rules]
    _run(netns, lines)


def remove_cluster(netns: str, cluster: int) -> None:
    """Removes what the namespace knows of a cluster, with the chains of its links: kernels before 6.16 remove a chain
    with its link, later ones keep it for the next link of that name. Idempotent."""
    lines = [f"add table {TABLE}", *_sets(cluster)]
    for chain in re.findall(r"chain (\S+) {", nft(netns, "list", "chains", TABLE.split()[0])):
        if is_of_cluster(chain, cluster):
            lines += [f"flush chain {TABLE} {chain}", f"delete chain {TABLE} {chain}"]
    _run(netns, [*lines, f"delete map {TABLE} c{cluster}", f"delete set {TABLE} m{cluster}"])


class DestinationTables:
    """Writes the maps of one fabric's namespaces, and remembers what they hold. The caller serialises the calls."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, int], Destinations] = {}

    def write(self, netns: str, cluster: int, wanted: Destinations) -> None:
        """Makes a namespace know exactly this of the cluster, in one transaction; does nothing when it does."""
        known = self._written.pop((netns, cluster), None)
        if known != wanted:
            _run(netns, _changes(cluster, known, wanted))
        self._written[netns, cluster] = wanted

    def forget(self, cluster: int | None = None) -> None:
        """Forgets what was written, of one cluster or of all: the next `write` replaces everything."""
        for key in [key for key in self._written if cluster in (None, key[1])]:
            del self._written[key]


def _changes(cluster: int, known: Destinations | None, wanted: Destinations) -> list[str]:
    """The commands that make a namespace know what is wanted; `known` None: it may hold anything."""
    if known is None:
        lines = [f"flush map {TABLE} c{cluster}", f"flush set {TABLE} m{cluster}"]
        known = Destinations()
    else:
        lines = []
    stale = [mac for mac, link in known.links.items() if wanted.links.get(mac) != link]
    fresh = [f'{mac} : "{link}"' for mac, (link, made) in wanted.links.items() if known.links.get(mac) != (link, made)]
    return [
        *lines,
        *_elements("delete", f"c{cluster}", stale),
        *_elements("add", f"c{cluster}", fresh),
        *_elements("delete", f"m{cluster}", sorted(known.moving - wanted.moving)),
        *_elements("add", f"m{cluster}", sorted(wanted.moving - known.moving)),
    ]


def _elements(verb: str, name: str, elements: list[str]) -> list[str]:
    return [f"{verb} element {TABLE} {name} {{ {', '.join(elements)} }}"] if elements else []


def _sets(cluster: int) -> tuple[str, str]:
    return (
        f"add map {TABLE} c{cluster} {{ typeof ether daddr : meta oif; }}",
        f"add set {TABLE} m{cluster} {{ type ether_addr; }}",
    )


def _run(netns: str, lines: list[str]) -> None:
    if lines:
        nft(netns, "-f", "-", text="\n".join([*lines, ""]))
