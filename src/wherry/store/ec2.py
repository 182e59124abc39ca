"""Records of the EC2 Query API: reservations, key pairs, placement groups, and tags of anything.

Invariant: of one kind and owner a name is there once.
"""

from __future__ import annotations

from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from wherry.model.ec2 import Kept
from wherry.store.account_tables import ec2_objects as _TABLE
from wherry.store.accounts import Opened
from wherry.store.codec import dump, load

One = TypeVar("One", bound=Kept)


class Ec2Objects:
    """Objects by their id; each kind is a class of `wherry.model.ec2`."""

    def __init__(self, read: Opened, write: Opened) -> None:
        self._read, self._write = read, write

    def all(self, kind: type[One], uid: int | None = None) -> list[One]:
        """All of a kind, of one owner or of every, by id."""
        query = sa.select(_TABLE.c.record).where(_TABLE.c.kind == kind.__name__).order_by(_TABLE.c.id)
        query = query if uid is None else query.where(_TABLE.c.uid == uid)
        with self._read() as connection:
            return [load(kind, row.record) for row in connection.execute(query)]

    def one(self, kind: type[One], id: str) -> One | None:
        """One by its id."""
        query = sa.select(_TABLE.c.record).where(_TABLE.c.kind == kind.__name__, _TABLE.c.id == _row_id(kind, id))
        with self._read() as connection:
            row = connection.execute(query).first()
            return load(kind, row.record) if row else None

    def named(self, kind: type[One], uid: int, name: str) -> One | None:
        """An owner's by its name."""
        found = (_TABLE.c.kind == kind.__name__, _TABLE.c.uid == uid, _TABLE.c.name == name)
        with self._read() as connection:
            row = connection.execute(sa.select(_TABLE.c.record).where(*found)).first()
            return load(kind, row.record) if row else None

    def add(self, one: Kept) -> bool:
        """Inserts one; False when its owner has one of that name."""
        try:
            with self._write() as connection:
                connection.execute(_TABLE.insert().values(**_row(one)))
        except IntegrityError:
            return False
        return True

    def put(self, *ones: Kept) -> None:
        """Replaces some, or inserts them; all or none."""
        with self._write() as connection:
            for row in map(_row, ones):
                if not connection.execute(_TABLE.update().where(_TABLE.c.id == row["id"]).values(**row)).rowcount:
                    connection.execute(_TABLE.insert().values(**row))

    def drop(self, kind: type[Kept], id: str) -> bool:
        """Deletes one; False when there is none."""
        found = (_TABLE.c.kind == kind.__name__, _TABLE.c.id == _row_id(kind, id))
        with self._write() as connection:
            return bool(connection.execute(_TABLE.delete().where(*found)).rowcount)


def _row_id(kind: type[Kept], id: str) -> str:
    return f"{kind.__name__} {id}"


def _row(one: Kept) -> dict[str, object]:
    kind = type(one)
    return {
        "id": _row_id(kind, one.id), "kind": kind.__name__, "uid": one.uid, "name": one.key, "record": dump(one),
    }  # fmt: skip
