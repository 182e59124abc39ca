"""The lease of a PostgreSQL database: which daemon writes, until when, by the server's clock.

Invariants: the epoch only grows, by one with each taking. A transaction of `Database.write` that began under an older
epoch than the present one changes nothing: it holds the row of its epoch until its end, for which taking waits, or
finds no such row. Renewing waits for no writer and keeps none waiting, as it leaves the key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from wherry.base.errors import Code, Refused
from wherry.store.database import Database
from wherry.store.tables import leadership

LEASE_SECONDS = 30.0
"""A leader that has not renewed its lease for so long may be replaced: a leader that died is replaced at once, and a
busy one may get no processor for twenty seconds. More than `database.IDLE_SECONDS`, after which a leader that was
stopped inside a transaction holds nothing any more."""
_TAKING_SECONDS = 2
"""Longest wait for writers under way; then the taking is given up, and may be repeated."""


class LeaseRow(NamedTuple):
    """The lease as it is."""

    epoch: int
    place: str
    """Id of the state directory that the database belongs to; empty before its first leader."""
    holder: str
    valid: bool
    """False when it was not renewed in time."""


class Lease:
    """One daemon's view of the lease. `on_lost` is called, once or more, when another daemon has taken it."""

    def __init__(self, database: Database, on_lost: Callable[[], object] = lambda: None) -> None:
        self._database = database
        self._on_lost = on_lost
        self._epoch: int | None = None

    def read(self) -> LeaseRow:
        """The lease as it is now."""
        with self._database.read() as connection:
            return _row(connection)

    def take(self, place: str, holder: str, certain: bool = False) -> bool:
        """Takes the lease if it has expired, or in any case if it is `certain` that its holder is gone; from then on
        each writing transaction of this process checks it. False when its holder renewed it.

        WRONG_STATE when the database belongs to another state directory, FAILED while writers do not end.
        """
        table, clock = leadership, _clock()
        with self._database.write_unasked() as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_TAKING_SECONDS}s'")
            seen = _row(connection)
            self._require_own(seen, place)
            may = sa.true() if certain else table.c.expires < clock
            new = {"epoch": seen.epoch + 1, "place": place, "holder": holder, "expires": clock + LEASE_SECONDS}
            if not connection.execute(table.update().where(table.c.epoch == seen.epoch, may).values(new)).rowcount:
                return False
        self._epoch = seen.epoch + 1
        self._database.admit = self._check
        return True

    def require_own(self, place: str) -> None:
        """WRONG_STATE when the database belongs to another state directory. Also before the first migration."""
        with self._database.read() as connection:
            if sa.inspect(connection).has_table(leadership.name):
                self._require_own(_row(connection), place)

    def _require_own(self, seen: LeaseRow, place: str) -> None:
        if seen.place not in ("", place):
            why = f"{self._database.shown} has the records of another state directory than this one"
            raise Refused(
                Code.WRONG_STATE, "this database belongs to another instance", why, "createdb NAME, and use that"
            )

    def renew(self) -> bool:
        """Prolongs the lease; false, and `on_lost` is called, when another daemon has taken it."""
        change = leadership.update().where(leadership.c.epoch == self._epoch).values(expires=_clock() + LEASE_SECONDS)
        with self._database.write_unasked() as connection:
            renewed = bool(connection.execute(change).rowcount)
        if not renewed:
            self._on_lost()
        return renewed

    def _check(self, connection: Connection) -> None:
        """Raises WRONG_STATE in a writing transaction when this process does not lead any more."""
        mine = sa.select(leadership.c.epoch).where(leadership.c.epoch == self._epoch)
        if connection.execute(mine.with_for_update(read=True, key_share=True)).first() is None:
            self._on_lost()
            what, why = "this daemon does not lead any more", "another one has taken its place, as it did not respond"
            raise Refused(Code.WRONG_STATE, what, why, "repeat the command")


def _clock() -> sa.ColumnElement[float]:
    """Seconds since the epoch by the server's clock, as it is now and not when the transaction began."""
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float)


def _row(connection: Connection) -> LeaseRow:
    columns = leadership.c
    row = connection.execute(sa.select(columns.epoch, columns.place, columns.holder, columns.expires >= _clock())).one()
    return LeaseRow(*row)
