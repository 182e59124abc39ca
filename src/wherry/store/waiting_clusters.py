"""Clusters that wait for room, in the database.

Invariants: the order is that in which they entered; no two wait for one name.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from wherry.model.queue import WaitingCluster
from wherry.store import tables
from wherry.store.accounts import Opened
from wherry.store.codec import dump, load
from wherry.store.unchanged import Unchanged

_TABLE = tables.queue


class WaitingClusters:
    """By the operation that makes them."""

    def __init__(self, read: Opened, write: Opened, unchanged: Unchanged) -> None:
        self._read, self._write, self._unchanged = read, write, unchanged

    def all(self) -> list[WaitingCluster]:
        """In the order in which they entered."""
        query = sa.select(_TABLE.c.record).order_by(_TABLE.c.number)

        def read() -> list[WaitingCluster]:
            with self._read() as connection:
                return [load(WaitingCluster, row.record) for row in connection.execute(query)]

        return list(self._unchanged("queue", read))

    def add(self, waiting: WaitingCluster) -> bool:
        """Adds one behind all others; False when one waits for its name."""
        number = sa.select(sa.func.coalesce(sa.func.max(_TABLE.c.number), 0) + 1).scalar_subquery()
        row = {"operation": waiting.operation, "cluster": waiting.spec.name, "record": dump(waiting)}
        try:
            with self._write() as connection:
                connection.execute(_TABLE.insert().values(**row, number=number))
        except IntegrityError:
            return False
        return True

    def drop(self, operation: str) -> None:
        """Deletes one."""
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.operation == operation))
