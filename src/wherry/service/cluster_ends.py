"""Ends clusters for a reason of the daemon's own, as `wherry down NAME --yes` does.

Invariant: an end that is refused, as a move is undecided, or that fails, is tried again, and reported once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from wherry.base.errors import WherryError
from wherry.model.records import Cluster, OperationState
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials

_AGAIN = 30.0
"""Seconds until a removal that failed is tried again."""
_DAEMON = PeerCredentials(0, 0, frozenset())


class ClusterEnds:
    """The ends that are under way."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._ending: dict[str, tuple[str, float]] = {}
        """The operation that removes a cluster, and when it began, by the cluster."""
        self._told: set[str] = set()
        """Clusters whose delay was reported."""

    def forget(self, besides: Collection[str]) -> None:
        """Forgets clusters that are not to end any more."""
        self._told &= set(besides)
        self._ending = {name: ending for name, ending in self._ending.items() if name in besides}

    def end(self, cluster: Cluster, reason: str, still: Callable[[], None]) -> None:
        """Begins to remove a cluster, unless that is under way. `reason`: `its lease ended at …`; `still` refuses when
        it does not hold any more."""
        name, store = cluster.name, self._context.store
        if self._waits(name):
            return
        why = f"its cluster {name} was taken down, as {reason}"
        try:
            operation = Commands(self._context, _DAEMON).end(name, why, still)
        except WherryError as error:  # a move is undecided, or another operation has the cluster
            if name not in self._told:
                self._told.add(name)
                text = f"{name} cannot be removed yet, though {reason}: {error}"
                store.add_event("cluster.lease-delayed", name, text, cluster.owner_uid)
            return
        self._ending[name] = operation.id, time.monotonic()
        text = f"{name} is removed by {operation.id}, as {reason}"
        store.add_event("cluster.lease-ended", name, text, cluster.owner_uid, operation=operation.id)

    def _waits(self, name: str) -> bool:
        """Whether the cluster is being removed, or that failed a moment ago."""
        id, began = self._ending.get(name, ("", -_AGAIN))
        if id and self._context.operations.get(id).state is OperationState.RUNNING:
            return True
        return time.monotonic() - began < _AGAIN
