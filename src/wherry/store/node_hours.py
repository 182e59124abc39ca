"""Seconds for which accounts and projects had nodes that are gone.

Invariant: a node's seconds are added in the transaction that deletes its row, so each is counted once, whichever daemon
deletes it and whenever one is killed. Nodes that there are count from their rows.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from wherry.base.clock import now
from wherry.model.accounts import is_account
from wherry.store import tables
from wherry.store.accounts import Opened

_TABLE, _NODES, _CLUSTERS = tables.node_hours, tables.nodes, tables.clusters


class NodeHours:
    """The seconds by uid."""

    def __init__(self, read: Opened) -> None:
        self._read = read

    def seconds(self, uid: int) -> float:
        """Of nodes that are gone."""
        with self._read() as connection:
            return float(connection.scalar(sa.select(_TABLE.c.seconds).where(_TABLE.c.uid == uid)) or 0.0)


def charge(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Adds the seconds of nodes that the caller is about to delete to their owners'."""
    query = sa.select(_NODES.c.record, _CLUSTERS.c.record.label("cluster"))
    found = connection.execute(query.join(_CLUSTERS, _CLUSTERS.c.name == _NODES.c.cluster).where(which)).all()
    for row in found:
        cluster, since = json.loads(row.cluster), json.loads(row.record).get("since")
        uid, seconds = int(cluster["owner_uid"]), max(0.0, now() - (since or cluster["created"]))
        if is_account(uid):
            more = {"seconds": _TABLE.c.seconds + seconds}
            if not connection.execute(_TABLE.update().where(_TABLE.c.uid == uid).values(**more)).rowcount:
                connection.execute(_TABLE.insert().values(uid=uid, seconds=seconds))
