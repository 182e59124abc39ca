"""What a set of moves costs a job, in seconds of its time.

Pure. A job whose ranks wait for each other stands while one of its nodes is frozen, so downtimes add up; while memory
is copied it is slower. Moves that cross a link share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wherry.model.objects import Host, Prediction
from wherry.schedule.routes import Hop, Routes

SLOWER = 0.2
"""Share of a job's speed that copying takes while it lasts."""
AT_ONCE = 4
"""Moves at the same time: beyond that they only take the processors from each other."""
_TRIPS = 10
"""Round trips that the freeze of a move over a link has more than a local one."""
_LEFT = 11
"""With rounds, one part in so many of what is sent is sent while the node is frozen."""


def downtime(predicted: Prediction, source: Host, destination: Host, routes: Routes) -> float:
    """Seconds for which a node is frozen, from the prediction for a move within its site."""
    route = routes.route(source.site, destination.site)
    frozen = predicted.bytes / _LEFT if predicted.rounds else predicted.bytes
    return predicted.downtime + 2 * _TRIPS * route.latency + routes.seconds_for_moves(dict.fromkeys(route.hops, frozen))


def cost(moves: Sequence[tuple[str, str, str]], costs: Mapping[str, Prediction], hosts: Mapping[str, Host],
         routes: Routes) -> float:  # fmt: skip
    """Seconds that the moves (node, source, destination) take of the job's time."""
    load, frozen, copied = defaultdict[Hop, float](float), 0.0, 0.0
    for node, source, destination in moves:
        predicted, one, other = costs[node], hosts[source], hosts[destination]
        frozen += downtime(predicted, one, other, routes)
        copied += predicted.seconds / AT_ONCE
        for hop in routes.route(one.site, other.site).hops:
            load[hop] += predicted.bytes
    return frozen + SLOWER * max(copied, routes.seconds_for_moves(load))
