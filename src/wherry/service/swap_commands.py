"""The command that swaps two nodes."""

from __future__ import annotations

from typing import Any

from wherry.cluster.leases import require_lease
from wherry.cluster.lookup import find_cluster, find_node
from wherry.model.records import Gain, Operation
from wherry.move.swap import Swaps
from wherry.service.claims import FABRIC, cluster_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen
from wherry.service.task import Task


def swaps(context: ServiceContext, managers: Managers) -> Swaps:
    """The swaps on a fabric."""
    return Swaps(context.store, managers.fabric, managers.moves)


def swap_now(context: ServiceContext, task: Task, one: str, other: str, gain: Gain, of: str) -> list[dict[str, Any]]:
    """Swaps two nodes, whose claims the task has, by a plan of balancing for the gain of cluster `of`; the records
    of both moves."""
    swapper = swaps(context, context.require_managers())
    plan = swapper.plan(one, other, gain, of)
    moves = swapper.apply(plan, task.progress, task.cancelled, operation=task.operation.id)
    return [move.model_dump(mode="json") for move in moves]


class SwapCommands:
    """The commands of one peer."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._seen = context, peer, seen(context.store, peer)

    def swap(self, one: str, other: str, fault: str | None = None) -> Operation:
        """Swaps two nodes live. `fault` makes the second move fail on purpose (see `wherry.move.faults`)."""
        clusters = {find_node(self._seen, name).cluster for name in (one, other)}
        owners = {name: find_cluster(self._seen, name).owner_uid for name in clusters}
        for name, uid in owners.items():
            self._peer.require(uid, f"cluster {name}")
            require_lease(self._context.store, name)
        swapper = swaps(self._context, self._context.require_managers())
        plan = swapper.plan(one, other, fault=fault)

        def body(task: Task) -> dict[str, Any]:
            moves = swapper.apply(plan, task.progress, task.cancelled, task.operation.id)
            return {"moves": [move.model_dump(mode="json") for move in moves]}

        shared = [FABRIC, *map(cluster_claim, sorted(clusters))]
        exclusive = [node_claim(one), node_claim(other)]
        target, uid, owner = f"{one} and {other}", self._peer.uid, next(iter(owners.values()))
        return self._context.operations.start(
            "swap", target, body, uid=uid, owner=owner, shared=shared, exclusive=exclusive
        )
