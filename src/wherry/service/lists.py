"""Lists that can grow, in pages, as a caller may see them.

Invariant: a list has the records that the store as the caller sees it (`seen_store`) has, and no others.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import replace

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import find_cluster
from wherry.model.paging import Key, Page, Wanted, numbered
from wherry.model.program import ProgramProfile
from wherry.model.records import Cluster, Event, Job, Move, Node, Operation
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.seen_store import seen


class Lists:
    """The lists of one caller."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._pages = context, peer, context.store.pages
        self._uids, self._seen = peer.seen_uids, seen(context.store, peer)

    def clusters(self, wanted: Wanted) -> Page[Cluster]:
        """By name, with their leases."""
        found, leases = self._pages.clusters(wanted, self._uids), self._context.store.leases.all()
        return replace(found, rows=[one.model_copy(update={"lease": leases.get(one.name)}) for one in found.rows])

    def nodes(self, wanted: Wanted, cluster: str | None) -> Page[Node]:
        """By cluster and index. NOT_FOUND."""
        return self._pages.nodes(wanted, self._known(cluster), self._uids)

    def jobs(self, wanted: Wanted, cluster: str | None) -> Page[Job]:
        """Oldest first. NOT_FOUND."""
        return self._pages.jobs(wanted, self._known(cluster), self._uids)

    def moves(self, wanted: Wanted) -> Page[Move]:
        """Oldest first; of nodes of clusters that there are, unless the caller sees everything."""
        if self._uids is None:
            return self._pages.moves(wanted)
        made = {cluster.name: cluster.created for cluster in self._seen.clusters()}
        return self._pages.moves(wanted, lambda move: move.created >= made.get(move.cluster, float("inf")))

    def operations(self, wanted: Wanted, running: bool) -> Page[Operation]:
        """Oldest first; all or the running ones."""
        return self._context.operations.page(wanted, running, self._uids)

    def programs(self, wanted: Wanted) -> Page[ProgramProfile]:
        """The profile that was measured last first; users of the machine have those of their own programs."""
        uids = self._uids if self._uids is not None or not self._peer.uid else {self._peer.uid}
        found = self._pages.programs(replace(wanted, newest=True), uids)
        return replace(found, rows=found.rows[::-1])

    def events(self, wanted: Wanted, after: int) -> Page[Event]:
        """After number `after`, in order."""
        number = int(wanted.behind[0]) if wanted.behind else None
        begin = after if wanted.newest or number is None else max(after, number)
        before = number if wanted.newest else None
        found = self._context.store.events(begin, wanted.limit + 1, self._uids, wanted.newest, before)
        return numbered(found, wanted, lambda event: event.id)

    def _known(self, cluster: str | None) -> str | None:
        if cluster is not None:
            find_cluster(self._seen, cluster)
        return cluster


def cursor_of(name: str, key: Key) -> str:
    """The cursor of a list's next page: a text that a client gives back as it is."""
    return base64.urlsafe_b64encode(json.dumps([name, *key]).encode()).decode().rstrip("=")


def key_of(name: str, cursor: str, types: tuple[type, ...]) -> Key:
    """The key in a cursor of this list. USAGE for any other text."""
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        told, *key = json.loads(data.decode())
    except (binascii.Error, ValueError, TypeError, RecursionError):
        told, key = "", []
    fitting = len(key) == len(types) and all(map(lambda part, kind: type(part) is kind, key, types))
    whole = all(part.isprintable() if isinstance(part, str) else abs(part) <= 2**53 for part in key if fitting)
    if told != name or not fitting or not whole:
        why = "it is no cursor that this list has answered"
        raise Refused(Code.USAGE, "the cursor is not valid", why, "follow the header Link of the answer before")
    return tuple(key)
