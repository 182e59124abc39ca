"""The node of each rank, in the words of mpirun: --map-by, --rank-by, --hosts, --rankfile.

Pure. Without any of them ranks are blocks as even as possible over all nodes in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat, zip_longest

from wherry.base.errors import Code, Refused
from wherry.model.job_request import Layout
from wherry.model.records import Node
from wherry.model.spec.base import nearest

_PER_NODE = re.compile(r"ppr:([1-9]\d{0,3}):node")


RankMap = tuple[Node, ...]
"""The node of each rank."""


@dataclass(frozen=True)
class NodeSlots:
    """Ranks that follow one another on a node."""

    name: str
    address: str
    slots: int


def rank_map(nodes: Sequence[Node], ranks: int, layout: Layout) -> RankMap:
    """The node of each rank. Refused (USAGE) when the layout names a missing object, or has too few places."""
    if layout.rankfile:
        if len(layout.rankfile) < ranks:
            what = f"the rank file has a node for {len(layout.rankfile)} of {ranks} ranks"
            raise Refused(Code.USAGE, what, "", f"rank {len(layout.rankfile)}=NODE, a line for each")
        return _named(nodes, layout.rankfile[:ranks])
    chosen = _named(nodes, layout.hosts) if layout.hosts else tuple(nodes)
    counts = _counts(chosen, ranks, layout.map_by)
    blocks = [repeat(node, count) for node, count in zip(chosen, counts, strict=True)]
    if (layout.rank_by or layout.map_by) == "node":
        return tuple(node for turn in zip_longest(*blocks) for node in turn if node is not None)
    return tuple(chain.from_iterable(blocks))


def node_slots(map_: RankMap) -> list[NodeSlots]:
    """The map in runs of one node."""
    runs = ((node, len(list(run))) for node, run in groupby(map_))
    return [NodeSlots(node.name, node.address, count) for node, count in runs]


def nodes_of(map_: RankMap) -> RankMap:
    """The nodes that have ranks, in the order of their first ones."""
    return tuple({node.name: node for node in map_}.values())


def is_in_blocks(map_: RankMap) -> bool:
    """True when each node has ranks that follow one another."""
    found = [seat.name for seat in node_slots(map_)]
    return len(found) == len(set(found))


def _counts(nodes: Sequence[Node], ranks: int, map_by: str | None) -> list[int]:
    if match := _PER_NODE.fullmatch(map_by or ""):
        each = int(match[1])
        if each * len(nodes) < ranks:
            what = f"{ranks} ranks do not fit on {len(nodes)} nodes with {each} each"
            raise Refused(Code.USAGE, what, f"--map-by {map_by}", f"--map-by ppr:{-(-ranks // len(nodes))}:node")
        return [max(0, min(each, ranks - each * index)) for index in range(len(nodes))]
    if map_by == "slot":
        slots = [max(1, int(node.cpus)) for node in nodes]
        turns, rest = divmod(ranks, sum(slots))  # more ranks than slots: so many times over, and then once more
        counts = []
        for count in slots:
            last = min(count, rest)
            counts.append(turns * count + last)
            rest -= last
        return counts
    share, more = divmod(ranks, len(nodes))
    return [share + (index < more) for index in range(len(nodes))]


def _named(nodes: Sequence[Node], names: Sequence[str]) -> RankMap:
    by_name = {node.name: node for node in nodes}
    for name in names:
        if name not in by_name:
            what = f"cluster {nodes[0].cluster} has no node {name!r}{nearest(name, list(by_name))}"
            raise Refused(Code.USAGE, what, "", "wherry status")
    return tuple(by_name[name] for name in names)
