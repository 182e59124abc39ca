"""Routes between sites: their latency, and the bandwidth of each link, by direction.

Pure. Invariant: links form a tree, so two sites have at most one route; sites without a route get a latency that no job
tolerates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wherry.model.spec.fabric import LinkSpec

SHARE = 0.9
"""Share of a link's bandwidth that moves may use. The rest keeps the link's queue short for the jobs' messages."""
QUIET_SHARE = 0.94
"""Share that a move may use while the link's queue is empty all the same: with the headers of TCP, IP and Ethernet that
is 0.98 of the link."""
Hop = tuple[str, str]
"""A link in one direction: from site, to site."""
_UNJOINED = 3600.0
"""Latency in seconds between sites without a route."""


@dataclass(frozen=True)
class Route:
    """A route from site to site: its latency in seconds, and its hops."""

    latency: float
    hops: tuple[Hop, ...] = ()


class Routes:
    """The links of a fabric."""

    def __init__(self, links: Iterable[LinkSpec]) -> None:
        self.bandwidth: dict[Hop, float] = {}
        """Bytes per second; infinite when none is declared."""
        self._latency: dict[Hop, float] = {}
        self._known: dict[Hop, Route] = {}
        for link in links:
            one, other = link.between
            for hop, figures in zip(((one, other), (other, one)), link.directions(), strict=True):
                self._latency[hop] = figures.latency or 0.0
                self.bandwidth[hop] = figures.bandwidth / 8 if figures.bandwidth else math.inf

    def route(self, one: str, other: str) -> Route:
        """The route from one site to another; it has no hops within a site."""
        if one == other:
            return Route(0.0)
        if (one, other) not in self._known:
            self._known[one, other] = self._search(one, other)
        return self._known[one, other]

    def seconds(self, load: Mapping[Hop, float]) -> float:
        """Seconds to send `load` bytes over the links in parallel: those of the slowest."""
        return max((size / self.bandwidth[hop] for hop, size in load.items()), default=0.0)

    def seconds_for_moves(self, load: Mapping[Hop, float]) -> float:
        """The same for moves, which may use a share of each link only."""
        return self.seconds(load) / SHARE

    def _search(self, one: str, other: str) -> Route:
        found, front = {one: Route(0.0)}, [one]
        while front:
            here = front.pop()
            for hop, latency in self._latency.items():
                if hop[0] == here and hop[1] not in found:
                    found[hop[1]] = Route(found[here].latency + latency, (*found[here].hops, hop))
                    front.append(hop[1])
        return found.get(other, Route(_UNJOINED))
