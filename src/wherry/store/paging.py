"""Lists of the store in pages.

Invariants: a row that is there all the while is in exactly one page of a walk; both databases answer the same queries,
by an index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel

from wherry.model.paging import Key, Page, Wanted
from wherry.model.program import ProgramProfile
from wherry.model.records import Cluster, Job, Move, Node, Operation
from wherry.store import tables
from wherry.store.accounts import Opened

Model = TypeVar("Model", bound=BaseModel)
Loaded = Callable[[type[Model], Sequence[str]], list[Model]]


class Pages:
    """The lists of a store that can grow. `uids`: only records of these users."""

    def __init__(self, read: Opened, load: Any) -> None:
        self._read, self._load = read, load

    def clusters(self, wanted: Wanted, uids: Collection[int] | None = None) -> Page[Cluster]:
        """By name."""
        table = tables.clusters
        return self._page(Cluster, table, (table.c.name,), wanted, [_of(table.c.uid, uids)])

    def nodes(self, wanted: Wanted, cluster: str | None = None, uids: Collection[int] | None = None) -> Page[Node]:
        """By cluster and index; of one cluster, if given."""
        table = tables.nodes
        where = [] if cluster is None else [table.c.cluster == cluster]
        if uids is not None:
            owned = sa.select(tables.clusters.c.name).where(tables.clusters.c.uid.in_(list(uids)))
            where.append(table.c.cluster.in_(owned))
        return self._page(Node, table, (table.c.cluster, table.c.position), wanted, where)

    def jobs(self, wanted: Wanted, cluster: str | None = None, uids: Collection[int] | None = None) -> Page[Job]:
        """Oldest first; of one cluster, if given."""
        table = tables.jobs
        where = [] if cluster is None else [table.c.cluster == cluster]
        return self._page(Job, table, (table.c.number,), wanted, where, lambda job: uids is None or job.uid in uids)

    def moves(self, wanted: Wanted, keep: Callable[[Move], bool] = lambda _: True) -> Page[Move]:
        """Oldest first; moves to `keep` only."""
        table = tables.moves
        return self._page(Move, table, (table.c.number,), wanted, [], keep)

    def operations(
        self,
        wanted: Wanted,
        running: bool = False,
        uids: Collection[int] | None = None,
        keep: Callable[[Operation], bool] = lambda _: True,
    ) -> Page[Operation]:
        """Oldest first; if `running`, operations that run or wait only; and only operations to `keep`."""
        table = tables.operations
        where: list[sa.ColumnElement[bool]] = [table.c.state.in_(tables.UNDER_WAY)] if running else []
        if uids is not None:
            where.append(sa.or_(table.c.uid.in_(list(uids)), table.c.owner.in_(list(uids))))
        return self._page(Operation, table, (table.c.number,), wanted, where, keep)

    def programs(self, wanted: Wanted, uids: Collection[int] | None = None) -> Page[ProgramProfile]:
        """The profile that was measured longest ago first."""
        table = tables.programs
        return self._page(ProgramProfile, table, (table.c.number,), wanted, [_of(table.c.uid, uids)])

    def _page(
        self,
        kind: type[Model],
        table: sa.Table,
        order: tuple[sa.Column[Any], ...],
        wanted: Wanted,
        where: Sequence[sa.ColumnElement[bool]],
        keep: Callable[[Any], bool] = lambda _: True,
    ) -> Page[Model]:
        """Looks again while less than a page of the rows is kept."""
        found, behind = list[tuple[Key, Model]](), wanted.behind
        sorting = [column.desc() if wanted.newest else column for column in order]
        while len(found) <= wanted.limit:
            query = sa.select(*order, table.c.record).where(*where).order_by(*sorting).limit(wanted.limit + 1)
            if behind:
                query = query.where(_beyond(order, behind, wanted.newest))
            with self._read() as connection:
                rows = connection.execute(query).all()
            records = self._load(kind, [row.record for row in rows])
            found += [(tuple(row[:-1]), one) for row, one in zip(rows, records, strict=True) if keep(one)]
            if len(rows) <= wanted.limit:
                break
            behind = tuple(rows[-1][:-1])
        shown = found[: wanted.limit]
        next = shown[-1][0] if len(found) > len(shown) else None
        records = [one for _, one in shown]
        return Page(records[::-1] if wanted.newest else records, next)


def _of(column: sa.Column[Any], uids: Collection[int] | None) -> sa.ColumnElement[bool]:
    return sa.true() if uids is None else column.in_(list(uids))


def _beyond(order: tuple[sa.Column[Any], ...], behind: Key, before: bool) -> sa.ColumnElement[bool]:
    columns, values = sa.tuple_(*order), sa.tuple_(*(sa.literal(value) for value in behind))
    return columns < values if before else columns > values
