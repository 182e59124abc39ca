"""Admission of moves to links between sites.

Each direction of a link has a budget for moves, a share of its bandwidth. A move has a rate, and is admitted when the
rates of all moves ahead of it leave room for its own: so moves at full speed run one after another, and slow ones side
by side. Invariants: the rates of admitted moves never exceed a budget (a move that prepares warms its TCP windows up
beside them, with at most 2.5 round trips' worth of data); admission is first come, first served on each link, so no
move starves; a waiting node runs on.
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
from wherry.schedule.routes import QUIET_SHARE, SHARE, Hop, Routes

_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether a waiting move was cancelled."""


@dataclass(frozen=True)
class LinkPath:
    """The links on a move's route: the budget in bit/s of each that declares a bandwidth, the move's rate (None:
    unlimited), and the bit/s that it may send besides while the links' queues are empty."""

    budgets: dict[Hop, float] = field(default_factory=dict)
    rate: float | None = None
    spare: float = 0.0


def link_path(spec: FabricSpec, source: str, destination: str, bandwidth: int | None = None) -> LinkPath:
    """The link path of a move from host to host. `bandwidth` is the user's option, in bit/s, if it was given.

    Refused when it exceeds the bandwidth of a link on the route.
    """
    site, routes = {host.name: host.site for host in spec.hosts}, Routes(spec.effective_links())
    budgets: dict[Hop, float] = {}
    for hop in routes.route(site[source], site[destination]).hops:
        link = 8 * routes.bandwidth[hop]
        if math.isinf(link):
            continue
        if bandwidth is not None and bandwidth > link:
            what = f"a move cannot send {format_rate(bandwidth)} from site {hop[0]} to site {hop[1]}"
            raise Refused(Code.USAGE, what, f"the link has {format_rate(link)}", "give a smaller --bandwidth")
        budgets[hop] = max(SHARE * link, bandwidth or 0)
    if bandwidth is not None:
        return LinkPath(budgets, float(bandwidth))
    rate = min(budgets.values(), default=None)
    return LinkPath(budgets, rate, (rate or 0.0) * (QUIET_SHARE / SHARE - 1))


class LinkAdmission:
    """The queue of moves for links, shared by all moves of an instance."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: dict[object, LinkPath] = {}
        """By ticket, in order of arrival, the moves that are admitted or wait."""

    @contextmanager
    def admitted(self, mine: LinkPath, waiting: Callable[[], None]) -> Iterator[None]:
        """Waits until the move is admitted, and then holds its links. Calls `waiting` while it waits; an
        exception from it ends the wait."""
        ticket = object()
        with self._changed:
            self._queue[ticket] = mine
        try:
            with self._changed:
                while not self._fits(ticket):
                    waiting()
                    self._changed.wait(_CHECK_INTERVAL)
            yield
        finally:
            with self._changed:
                del self._queue[ticket]
                self._changed.notify_all()

    def _fits(self, ticket: object) -> bool:
        mine = self._queue[ticket]
        ahead = list(self._queue.values())[: list(self._queue).index(ticket)]
        return all(
            (mine.rate or 0) + sum(other.rate or 0 for other in ahead if name in other.budgets) <= budget
            for name, budget in mine.budgets.items()
        )
