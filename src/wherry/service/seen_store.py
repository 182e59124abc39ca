"""The part of the store that a caller may see, for the commands to look things up in.

Invariant: things of others are not there, so they are NOT_FOUND and no suggestion for a misspelt name. Every method is
filtered: a missing method is an error of the program, not a leak.
"""

from __future__ import annotations

from typing import cast

from wherry.model.records import Cluster, Event, Job, Move, Node
from wherry.service.credentials import PeerCredentials
from wherry.store import Store


class SeenStore:
    """The part of the store that belongs to some uids."""

    def __init__(self, store: Store, uids: frozenset[int]) -> None:
        self._store, self._uids = store, uids

    def clusters(self) -> list[Cluster]:
        """By name."""
        return self._store.clusters(self._uids)

    def cluster(self, name: str) -> Cluster | None:
        """One cluster."""
        found = self._store.cluster(name)
        return found if found and found.owner_uid in self._uids else None

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        if cluster is not None:
            return self._store.nodes(cluster) if self.cluster(cluster) else []
        names = {one.name for one in self.clusters()}
        return [node for node in self._store.nodes() if node.cluster in names] if names else []

    def node(self, name: str) -> Node | None:
        """One node."""
        found = self._store.node(name)
        return found if found and self.cluster(found.cluster) else None

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        return [job for job in self._store.jobs(cluster) if job.uid in self._uids]

    def job(self, id: str) -> Job | None:
        """One job."""
        found = self._store.job(id)
        return found if found and found.uid in self._uids else None

    def moves(self) -> list[Move]:
        """Those of nodes of clusters that there are, oldest first: a name may have been another user's before."""
        made = {cluster.name: cluster.created for cluster in self.clusters()}
        return [move for move in self._store.moves() if move.created >= made.get(move.cluster, float("inf"))]

    def move(self, id: str) -> Move | None:
        """One move."""
        found = self._store.move(id)
        cluster = self.cluster(found.cluster) if found else None
        return found if found and cluster and found.created >= cluster.created else None

    def events(self, after: int = 0, limit: int = 1000, *, newest: bool = False) -> list[Event]:
        """In order."""
        return self._store.events(after, limit, self._uids, newest)

    def newest_event(self, kind: str, target: str, among: str = "") -> Event | None:
        """The newest event of a kind about a target."""
        found = self._store.newest_event(kind, target, among)
        return found if found and found.owner in self._uids else None


def seen(store: Store, peer: PeerCredentials) -> Store:
    """The store as `peer` may see it: all of it, or the part that is its own."""
    uids = peer.seen_uids
    return store if uids is None else cast(Store, SeenStore(store, uids))
