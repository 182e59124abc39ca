"""What lies between sites: latency of the way, and the bandwidth of each link on it, by direction.

Pure. Invariant: links form a tree, so there is at most one way between two sites; sites that nothing joins are
as good as infinitely far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wherry.model.spec.fabric import LinkSpec

SHARE = 0.9
"""Of a link's bandwidth that moves may take. The rest keeps its queue empty, in which the job's messages would wait."""
Hop = tuple[str, str]
"""A link in one direction: from site, to site."""
_UNJOINED = 3600.0
"""Seconds of latency between sites that no link joins: no job stands that."""


@dataclass(frozen=True)
class Route:
    """From one site to another: seconds of latency, and the hops."""

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
        """The way from one site to another; none within a site."""
        if one == other:
            return Route(0.0)
        if (one, other) not in self._known:
            self._known[one, other] = self._search(one, other)
        return self._known[one, other]

    def seconds(self, load: Mapping[Hop, float]) -> float:
        """How long the links need for so many bytes each, all at the same time: the slowest one decides."""
        return max((size / self.bandwidth[hop] for hop, size in load.items()), default=0.0)

    def seconds_for_moves(self, load: Mapping[Hop, float]) -> float:
        """The same for what moves send, which have a share of each link."""
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
