"""The steps that follow from the allocations that a batch system has given: hosts that join or leave, the times of
drains, and whether another allocation is asked for.

Pure. Invariants: a host with nodes leaves only when its allocation has ended; an allocation is given back only when no
host of it is present; while a requested one waits, no other is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from wherry.model.allocations import Allocation


@dataclass(frozen=True)
class Terms:
    """Whether allocations are asked for; how many seconds before the end of one its hosts are left, and the next one is
    asked for."""

    asks: bool
    leave: float
    early: float


@dataclass(frozen=True)
class Steps:
    """Hosts that join, each by its allocation; hosts that leave, and whether they may still have nodes; when hosts that
    stay, or join, are drained (seconds from now), each by its allocation; whether another allocation is asked for; and
    the allocations that are given back."""

    admit: Mapping[str, Allocation]
    dismiss: Mapping[str, bool]
    drain: Mapping[str, tuple[float, Allocation]]
    ask: bool
    release: tuple[int, ...]


def next_steps(
    allocations: Sequence[Allocation],
    present: Collection[str],
    with_nodes: Collection[str],
    drained: Collection[str],
    terms: Terms,
) -> Steps:
    """The steps that follow. `with_nodes` are hosts that have nodes, `drained` hosts take none."""
    of = _longest(allocations)
    admit = {host: one for host, one in of.items() if host not in present and _left(one) > terms.leave}
    dismiss = dict[str, bool]()
    for host in present:
        if host not in of:
            dismiss[host] = True
        elif host in drained and host not in with_nodes and _left(of[host]) <= terms.leave:
            dismiss[host] = False
    drain = {
        host: (max(0.0, one.left - terms.leave), one)
        for host, one in of.items()
        if one.left is not None and host not in dismiss and (host in present or host in admit)
    }
    stay = (set(present) | set(admit)) - set(dismiss)
    over = [one for one in allocations if one.runs and _left(one) <= terms.leave and not stay.intersection(one.hosts)]
    longest = max((_left(one) for one in allocations if one.runs), default=0.0)
    waits = any(not one.runs for one in allocations)
    ask = terms.asks and not waits and longest <= terms.early and any(host in of for host in with_nodes)
    return Steps(admit, dismiss, drain, ask, tuple(one.id for one in over) if terms.asks else ())


def _longest(allocations: Sequence[Allocation]) -> dict[str, Allocation]:
    """The allocation of each host: of several the last to end."""
    of = dict[str, Allocation]()
    for one in sorted((each for each in allocations if each.runs), key=_left):
        of.update(dict.fromkeys(one.hosts, one))
    return of


def _left(allocation: Allocation) -> float:
    return float("inf") if allocation.left is None else allocation.left
