"""What moves may take of the links between sites, and which of them go together.

A link gives moves a share of its bandwidth in each direction. A move is told how fast it may send, and fills the link
only when that still fits beside the moves before it: so moves at full speed go one after another, and moves that were
told to be slow go together. Invariants: what the moves that have their turn may send in one direction of a link never
adds up to more than its budget (one that prepares itself opens its windows beside them: 2.5 round trips' worth at
most); nobody overtakes a move that wants the same link, so none waits for ever; a node that waits runs on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from wherry.base.errors import Code, Refused
from wherry.base.units import format_rate
from wherry.model.spec.fabric import FabricSpec
from wherry.schedule.routes import SHARE, Hop, Routes

_LOOK = 0.1
"""Seconds between two looks whether a move that waits was cancelled."""


@dataclass(frozen=True)
class LinkPath:
    """A way from site to site: the budget in bit/s of each link that declares a bandwidth, and the rate that the move
    may send at (None: as fast as it can)."""

    budgets: dict[Hop, float] = field(default_factory=dict)
    rate: float | None = None


def link_path(spec: FabricSpec, source: str, destination: str, wanted: int | None = None) -> LinkPath:
    """How a move from host to host crosses links. `wanted` is the rate in bit/s that was asked for.

    Refused when it is more than a link on the way has.
    """
    site, routes = {host.name: host.site for host in spec.hosts}, Routes(spec.effective_links())
    budgets: dict[Hop, float] = {}
    for hop in routes.route(site[source], site[destination]).hops:
        bandwidth = 8 * routes.bandwidth[hop]
        if math.isinf(bandwidth):
            continue
        if wanted is not None and wanted > bandwidth:
            what = f"a move cannot send {format_rate(wanted)} from site {hop[0]} to site {hop[1]}"
            raise Refused(Code.USAGE, what, f"the link has {format_rate(bandwidth)}", "give a smaller --bandwidth")
        budgets[hop] = max(SHARE * bandwidth, wanted or 0)
    rate = min(budgets.values(), default=None) if wanted is None else float(wanted)
    return LinkPath(budgets, rate)


class LinkAdmission:
    """Who fills which link. One for all moves of an instance."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: dict[object, LinkPath] = {}
        """Moves that send or wait, in the order in which they came, each by a ticket of its own."""

    @contextmanager
    def turn(self, mine: LinkPath, waiting: Callable[[], None]) -> Iterator[None]:
        """Holds the links from when the move fits beside all before it. `waiting` is called until then; what it raises
        ends the wait."""
        ticket = object()
        with self._changed:
            self._line[ticket] = mine
        try:
            with self._changed:
                while not self._fits(ticket):
                    waiting()
                    self._changed.wait(_LOOK)
            yield
        finally:
            with self._changed:
                del self._line[ticket]
                self._changed.notify_all()

    def _fits(self, ticket: object) -> bool:
        mine = self._line[ticket]
        ahead = list(self._line.values())[: list(self._line).index(ticket)]
        return all(
            (mine.rate or 0) + sum(other.rate or 0 for other in ahead if name in other.budgets) <= budget
            for name, budget in mine.budgets.items()
        )
