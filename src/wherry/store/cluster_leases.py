"""Leases of clusters in the database, by the cluster's name.

Invariant: a lease is replaced only by a caller that has read the present one.
"""

from __future__ import annotations

import sqlalchemy as sa

from wherry.model.records import ClusterLease
from wherry.store import tables
from wherry.store.accounts import Opened
from wherry.store.codec import dump, load
from wherry.store.unchanged import Unchanged

_TABLE = tables.leases


class ClusterLeases:
    """The leases; a cluster without one has no end."""

    def __init__(self, read: Opened, write: Opened, unchanged: Unchanged) -> None:
        self._read, self._write, self._unchanged = read, write, unchanged

    def all(self) -> dict[str, ClusterLease]:
        """By cluster, the next end first."""
        query = sa.select(_TABLE.c.cluster, _TABLE.c.record).order_by(_TABLE.c.ends, _TABLE.c.cluster)

        def read() -> dict[str, ClusterLease]:
            with self._read() as connection:
                return {str(row.cluster): load(ClusterLease, row.record) for row in connection.execute(query)}

        return dict(self._unchanged("leases", read))

    def of(self, cluster: str) -> ClusterLease | None:
        """One cluster's."""
        with self._read() as connection:
            record = connection.scalar(sa.select(_TABLE.c.record).where(_TABLE.c.cluster == cluster))
        return load(ClusterLease, str(record)) if record else None

    def put(self, cluster: str, lease: ClusterLease | None) -> None:
        """Replaces it, whatever it was; None: there is none any more."""
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.cluster == cluster))
            if lease:
                connection.execute(_TABLE.insert().values(cluster=cluster, ends=lease.ends, record=dump(lease)))

    def replace(self, cluster: str, before: ClusterLease, after: ClusterLease) -> bool:
        """Replaces `before`; False when it is another one by now."""
        same = (_TABLE.c.cluster == cluster, _TABLE.c.record == dump(before))
        with self._write() as connection:
            row = _TABLE.update().where(*same).values(ends=after.ends, record=dump(after))
            return bool(connection.execute(row).rowcount)
