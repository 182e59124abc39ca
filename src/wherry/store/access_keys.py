"""Access keys of accounts in the database; their secrets are encrypted by the caller."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.model.accounts import AccessKey, Account, Project
from wherry.store import account_tables
from wherry.store.accounts import Opened, account_and_projects
from wherry.store.codec import dump, load
from wherry.store.sealing import Sealing

_USED_SECONDS = 60.0
"""How exactly it is kept when a key was used last: a row is not written for each request."""
_TABLE = account_tables.access_keys


@dataclass(frozen=True)
class KeyIdentity:
    """Whose an access key is, with its encrypted secret."""

    key: AccessKey
    sealed: str
    account: Account
    projects: tuple[Project, ...]


class AccessKeys:
    """Access keys in the database."""

    def __init__(self, read: Opened, write: Opened) -> None:
        self._read, self._write = read, write

    def all(self, user: str | None = None) -> list[AccessKey]:
        """Those of an account, or all; oldest first."""
        query = sa.select(_TABLE.c.record)
        if user is not None:
            query = query.where(_TABLE.c.user == user)
        with self._read() as connection:
            found = [load(AccessKey, row.record) for row in connection.execute(query)]
        return sorted(found, key=lambda key: (key.created, key.id))

    def lost(self, sealing: Sealing) -> list[AccessKey]:
        """Access keys with a secret that no key opens, oldest first."""
        with self._read() as connection:
            rows = connection.execute(sa.select(_TABLE.c.id, _TABLE.c.sealed)).all()
        lost = {row.id for row in rows if not sealing.opens(row.id, row.sealed)}
        return [key for key in self.all() if key.id in lost]

    def add(self, key: AccessKey, sealed: str) -> None:
        """Inserts a key. NOT_FOUND when its account is gone."""
        users = account_tables.users
        with self._write() as connection:
            if not connection.execute(sa.select(users.c.uid).where(users.c.name == key.user)).first():
                raise Refused(Code.NOT_FOUND, f"there is no user {key.user!r}", "", "wherry user list")
            connection.execute(_TABLE.insert().values(id=key.id, user=key.user, sealed=sealed, record=dump(key)))

    def drop(self, id: str) -> None:
        """Deletes a key."""
        with self._write() as connection:
            connection.execute(_TABLE.delete().where(_TABLE.c.id == id))

    def drop_ended(self, user: str, time: float) -> None:
        """Deletes the keys of an account that ended before a time."""
        for key in self.all(user):
            if key.expires <= time:
                self.drop(key.id)

    def used(self, key: AccessKey) -> None:
        """Keeps that a key was used now, unless that is known to the minute."""
        time = now()
        if key.used is None or abs(time - key.used) > _USED_SECONDS:
            record = dump(key.model_copy(update={"used": time}))
            with self._write() as connection:
                connection.execute(_TABLE.update().where(_TABLE.c.id == key.id).values(record=record))

    def identity(self, id: str) -> KeyIdentity | None:
        """The account of a key with this id, whether or not it has ended."""
        with self._read() as connection:
            row = connection.execute(sa.select(_TABLE).where(_TABLE.c.id == id)).first()
            found = account_and_projects(connection, str(row.user)) if row else None
            if row is None or found is None:
                return None
            return KeyIdentity(load(AccessKey, row.record), str(row.sealed), *found)
