"""The cost of a set of moves, in seconds of the job's time.

Pure. A job whose ranks wait for each other stops while any of its nodes is frozen, so downtimes add up; while memory
is copied it runs slower. Moves over the same link share its bandwidth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wherry.model.records import Host, Prediction
from wherry.schedule.dirtying import left_by_rounds
from wherry.schedule.routes import Hop, Routes

SLOWER = 0.2
"""Share of its speed that a job loses while memory is copied."""
PARALLEL_MOVES = 4
"""Parallel moves; more would only compete for processors."""
_TRIPS = 10
"""Additional round trips within the downtime of a move over a link."""


def downtime(predicted: Prediction, source: Host, destination: Host, routes: Routes) -> float:
    """The downtime in seconds over the links between two hosts, from the prediction for a move within a site."""
    route = routes.route(source.site, destination.site)
    frozen = float(predicted.bytes if predicted.frozen is None else predicted.frozen)
    wire = routes.seconds_for_moves(dict.fromkeys(route.hops, frozen))
    if predicted.rounds and predicted.written and wire:  # rounds over a slow link leave more
        frozen = max(frozen, left_by_rounds(predicted.bytes, frozen / wire, predicted.written))
        wire = routes.seconds_for_moves(dict.fromkeys(route.hops, frozen))
    return predicted.downtime + 2 * _TRIPS * route.latency + wire


def cost(moves: Sequence[tuple[str, str, str]], costs: Mapping[str, Prediction], hosts: Mapping[str, Host],
         routes: Routes) -> float:  # fmt: skip
    """Seconds of the job's time that the moves (node, source, destination) take."""
    load, frozen, copied = defaultdict[Hop, float](float), 0.0, 0.0
    for node, source, destination in moves:
        predicted, one, other = costs[node], hosts[source], hosts[destination]
        frozen += downtime(predicted, one, other, routes)
        copied += predicted.seconds / PARALLEL_MOVES
        for hop in routes.route(one.site, other.site).hops:
            load[hop] += predicted.bytes
    return frozen + SLOWER * max(copied, routes.seconds_for_moves(load))
