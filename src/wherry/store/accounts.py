"""Accounts, projects, tokens and the audit log in the database.

Invariants: a uid is given once, also when its account is removed; tokens end with their account and with a change of
its password; no secret is in a record that is returned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from wherry.base.clock import now
from wherry.base.components import installed
from wherry.base.errors import Code, Refused
from wherry.model.accounts import FIRST_UID, LAST_UID, PAM, Account, AuditEntry, Project, Quota, Role, Token, TokenKind
from wherry.store import account_tables, tables
from wherry.store.codec import dump, load
from wherry.store.unchanged import Unchanged

_NEXT_UID = "accounts.next"
"""Setting: the uid of the next account or project."""
_USED_SECONDS = 60.0
"""How exactly it is kept when a token was used last: a row is not written for each request."""
_OF_ALL = ("fabric", "host", "link", "daemon", "image")
"""First words of kinds of events that are nobody's."""
Opened = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Identity:
    """Whose a token is: with the digest of its secret, which the caller compares."""

    token: Token
    digest: str
    account: Account
    projects: tuple[Project, ...]


class Accounts:
    """Accounts in the database. A name that does not exist gives None, or False when it was to be removed."""

    def __init__(self, read: Opened, write: Opened, unchanged: Unchanged) -> None:
        self._read, self._write, self._unchanged = read, write, unchanged

    # Users.

    def users(self) -> list[Account]:
        """By name."""
        table = account_tables.users
        with self._read() as connection:
            return [_account(row) for row in connection.execute(sa.select(table).order_by(table.c.name))]

    def user(self, name: str) -> Account | None:
        """One account."""
        table = account_tables.users
        with self._read() as connection:
            row = connection.execute(sa.select(table).where(table.c.name == name)).first()
        return _account(row) if row else None

    def add_user(self, name: str, role: Role, quota: Quota, password: str, free: Callable[[int], bool]) -> Account:
        """Makes an account with the next uid that is `free` on this machine. `password` is its hash, PAM, or empty.
        NAME_TAKEN."""
        table = account_tables.users
        with self._write() as connection:
            if connection.execute(sa.select(table.c.uid).where(table.c.name == name)).first():
                raise Refused(Code.NAME_TAKEN, f"there is a user {name!r} already", "", "wherry user list")
            uid = _next_uid(connection, free)
            account = Account(name=name, uid=uid, role=role, created=now(), quota=quota)
            connection.execute(table.insert().values(name=name, uid=uid, password=password, record=dump(account)))
        return account.model_copy(update=_told_of(password))

    def put_user(self, account: Account) -> None:
        """Replaces the record of an account that exists."""
        with self._write() as connection:
            _put_user(connection, account)

    def password(self, name: str) -> str:
        """The hash of an account's password; empty when it has none, or does not exist."""
        table = account_tables.users
        with self._read() as connection:
            row = connection.execute(sa.select(table.c.password).where(table.c.name == name)).first()
        return str(row.password) if row else ""

    def set_password(self, name: str, password: str, end_tokens: bool = True) -> None:
        """Replaces the hash of an account's password. With `end_tokens` its tokens and access keys end."""
        table, of = account_tables.users, account_tables.tokens
        with self._write() as connection:
            connection.execute(table.update().where(table.c.name == name).values(password=password))
            if end_tokens:
                keys = account_tables.access_keys
                connection.execute(of.delete().where(of.c.user == name))
                connection.execute(keys.delete().where(keys.c.user == name))

    def set_identity(self, name: str, identity: str) -> None:
        """Replaces how the provider of identities names the account (empty: it does not), and ends its sessions.
        NAME_TAKEN when it names another account so."""
        table, tokens = account_tables.users, account_tables.tokens
        with self._write() as connection:
            accounts = [_account(row) for row in connection.execute(sa.select(table))]
            if other := next((one for one in accounts if one.name != name and one.identity == identity != ""), None):
                remedy = f"wherry user identity {other.name} --none"
                raise Refused(Code.NAME_TAKEN, f"{identity!r} is the identity of user {other.name}", "", remedy)
            for account in accounts:
                if account.name == name:
                    _put_user(connection, account.model_copy(update={"identity": identity, "subject": ""}))
            for row in connection.execute(sa.select(tokens).where(tokens.c.user == name)).all():
                if load(Token, row.record).kind is TokenKind.SESSION:
                    connection.execute(tokens.delete().where(tokens.c.id == row.id))

    def identified(self, identity: str, subject: str) -> Account | None:
        """The account with this identity. It keeps the `subject` of its first sign-in, and is None for any other."""
        table = account_tables.users
        with self._write() as connection:
            for row in connection.execute(sa.select(table)).all():
                account = _account(row)
                if account.identity == identity != "" and account.subject in ("", subject):
                    found = account.model_copy(update={"subject": subject})
                    if account.subject != subject:
                        _put_user(connection, found)
                    return found
        return None

    def drop_user(self, name: str) -> None:
        """Deletes an account with its tokens, access keys and memberships."""
        users = account_tables.users
        with self._write() as connection:
            _drop_rows_of(connection, sa.select(users.c.uid).where(users.c.name == name))
            for table, column in (
                (account_tables.tokens, account_tables.tokens.c.user),
                (account_tables.access_keys, account_tables.access_keys.c.user),
                (account_tables.members, account_tables.members.c.user),
                (account_tables.users, account_tables.users.c.name),
            ):
                connection.execute(table.delete().where(column == name))

    # Tokens.

    def tokens(self, user: str | None = None) -> list[Token]:
        """Those of an account, or all; by id, which is by age."""
        table = account_tables.tokens
        query = sa.select(table.c.record).order_by(table.c.id)
        if user is not None:
            query = query.where(table.c.user == user)
        with self._read() as connection:
            return [load(Token, row.record) for row in connection.execute(query)]

    def token(self, id: str) -> Token | None:
        """One token."""
        return next((token for token in self.tokens() if token.id == id), None)

    def add_token(self, token: Token, digest: str) -> None:
        """Inserts a token. NOT_FOUND when its account is gone."""
        table, users = account_tables.tokens, account_tables.users
        with self._write() as connection:
            if not connection.execute(sa.select(users.c.uid).where(users.c.name == token.user)).first():
                raise Refused(Code.NOT_FOUND, f"there is no user {token.user!r}", "", "wherry user list")
            connection.execute(table.insert().values(id=token.id, user=token.user, digest=digest, record=dump(token)))

    def drop_token(self, id: str) -> None:
        """Deletes a token."""
        with self._write() as connection:
            connection.execute(account_tables.tokens.delete().where(account_tables.tokens.c.id == id))

    def used_token(self, token: Token) -> None:
        """Keeps that a token was used now, unless that is known to the minute."""
        table, time = account_tables.tokens, now()
        if token.used is None or abs(time - token.used) > _USED_SECONDS:
            with self._write() as connection:
                row = connection.execute(sa.select(table.c.record).where(table.c.id == token.id)).first()
                if row is not None:  # read again: its end may be another by now
                    record = dump(load(Token, row.record).model_copy(update={"used": time}))
                    connection.execute(table.update().where(table.c.id == token.id).values(record=record))

    def shorten_token(self, id: str, expires: float) -> bool:
        """Has a token end then; False when it is gone, or ends before."""
        table = account_tables.tokens
        with self._write() as connection:
            row = connection.execute(sa.select(table.c.record).where(table.c.id == id)).first()
            token = load(Token, row.record) if row else None
            if token is None or token.expires <= expires:
                return False
            record = dump(token.model_copy(update={"expires": expires}))
            connection.execute(table.update().where(table.c.id == id).values(record=record))
        return True

    def identity(self, token: str) -> Identity | None:
        """The account of a token with this id, whether or not it has ended."""
        tokens = account_tables.tokens
        with self._read() as connection:
            row = connection.execute(sa.select(tokens).where(tokens.c.id == token)).first()
            found = account_and_projects(connection, str(row.user)) if row else None
            if row is None or found is None:
                return None
            return Identity(load(Token, row.record), str(row.digest), *found)

    # Projects.

    def projects(self, user: str | None = None) -> list[Project]:
        """Those of which an account is a member, or all; by name."""
        with self._read() as connection:
            return list(_projects_of(connection, user))

    def project(self, name: str) -> Project | None:
        """One project."""
        return next((project for project in self.projects() if project.name == name), None)

    def add_project(self, name: str, owner: str, quota: Quota, free: Callable[[int], bool]) -> Project:
        """Makes a project whose first member and owner is `owner`. NAME_TAKEN, NOT_FOUND."""
        table = account_tables.projects
        with self._write() as connection:
            if connection.execute(sa.select(table.c.uid).where(table.c.name == name)).first():
                raise Refused(Code.NAME_TAKEN, f"there is a project {name!r} already", "", "wherry project list")
            _require_user(connection, owner)
            project = Project(name=name, uid=_next_uid(connection, free), created=now(), quota=quota)
            connection.execute(table.insert().values(name=name, uid=project.uid, record=dump(project)))
            connection.execute(account_tables.members.insert().values(project=name, user=owner, owner=True))
        return project.model_copy(update={"members": (owner,), "owners": (owner,)})

    def put_project(self, project: Project) -> None:
        """Replaces the record of a project that exists; its members stay."""
        table, record = account_tables.projects, dump(project.model_copy(update={"members": (), "owners": ()}))
        with self._write() as connection:
            connection.execute(table.update().where(table.c.name == project.name).values(record=record))

    def drop_project(self, name: str) -> None:
        """Deletes a project with its memberships."""
        members, table = account_tables.members, account_tables.projects
        with self._write() as connection:
            _drop_rows_of(connection, sa.select(table.c.uid).where(table.c.name == name))
            connection.execute(members.delete().where(members.c.project == name))
            connection.execute(table.delete().where(table.c.name == name))

    def set_member(self, project: str, user: str, owner: bool) -> None:
        """Adds a member, or changes whether it is an owner. NOT_FOUND when the account is gone."""
        table = account_tables.members
        where = (table.c.project == project, table.c.user == user)
        with self._write() as connection:
            _require_user(connection, user)
            if not connection.execute(table.update().where(*where).values(owner=owner)).rowcount:
                connection.execute(table.insert().values(project=project, user=user, owner=owner))

    def drop_member(self, project: str, user: str) -> None:
        """Removes a member."""
        table = account_tables.members
        with self._write() as connection:
            connection.execute(table.delete().where(table.c.project == project, table.c.user == user))

    def of_uid(self, uid: int) -> Account | Project | None:
        """The account or project with this uid, which is asked for every second."""

        def read() -> Account | Project | None:
            with self._read() as connection:
                users, projects = account_tables.users, account_tables.projects
                if row := connection.execute(sa.select(users).where(users.c.uid == uid)).first():
                    return _account(row)
                row = connection.execute(sa.select(projects).where(projects.c.uid == uid)).first()
                return load(Project, row.record) if row else None

        return self._unchanged(("owner", uid), read)

    # The audit log.

    def add_audit(self, entry: AuditEntry) -> None:
        """Appends an entry; its id is larger than every earlier one."""
        with self._write() as connection:
            connection.execute(account_tables.audit.insert().values(entry.model_dump(exclude={"id"})))

    def audit(
        self, after: int, limit: int, who: str | None = None, newest: bool = False, before: int | None = None
    ) -> list[AuditEntry]:
        """The first `limit` entries with an id above `after`, or the `newest` of them, in order; only entries `before`
        an id, if given."""
        table = account_tables.audit
        query = sa.select(table).where(table.c.id > after).limit(limit)
        query = query if before is None else query.where(table.c.id < before)
        query = query.order_by(table.c.id.desc() if newest else table.c.id)
        if who is not None:
            query = query.where(table.c.who == who)
        with self._read() as connection:
            found = [AuditEntry(**row._mapping) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def prune_audit(self, keep: int = 50_000) -> None:
        """Deletes all but the newest entries."""
        table = account_tables.audit
        old = sa.select(table.c.id).order_by(table.c.id.desc()).offset(keep)
        with self._write() as connection:
            connection.execute(table.delete().where(table.c.id.in_(old)))


def owner_of(connection: Connection, kind: str, target: str) -> int | None:
    """The uid to whom the cluster, node or job belongs that an event is about; None when it is about none."""
    first = kind.split(".")[0]
    if first in _OF_ALL or any(first in component.events for component in installed()):
        return None
    name = target.partition(" ")[0]
    clusters, nodes, jobs = tables.clusters, tables.nodes, tables.jobs
    if row := connection.execute(sa.select(jobs.c.record).where(jobs.c.id == name)).first():
        return int(json.loads(row.record)["uid"])
    if row := connection.execute(sa.select(nodes.c.cluster).where(nodes.c.name == name)).first():
        name = str(row.cluster)
    row = connection.execute(sa.select(clusters.c.record).where(clusters.c.name == name)).first()
    return int(json.loads(row.record)["owner_uid"]) if row else None


def account_and_projects(connection: Connection, name: str) -> tuple[Account, tuple[Project, ...]] | None:
    """An account with the projects of which it is a member."""
    users = account_tables.users
    row = connection.execute(sa.select(users).where(users.c.name == name)).first()
    return (_account(row), _projects_of(connection, name)) if row else None


def events_of(owners: Collection[int] | None) -> sa.ColumnElement[bool]:
    """Selects the events that a caller with these uids may see; None: all."""
    return sa.true() if owners is None else tables.events.c.owner.in_(list(owners))


def _account(row: sa.Row[tuple[object, ...]]) -> Account:
    return load(Account, row.record).model_copy(update=_told_of(row.password))


def _told_of(password: str) -> dict[str, bool]:
    """The fields of an account that follow from the hash of its password."""
    return {"has_password": bool(password), "by_pam": password == PAM}


def _put_user(connection: Connection, account: Account) -> None:
    table, record = account_tables.users, dump(account.model_copy(update=_told_of("")))
    connection.execute(table.update().where(table.c.name == account.name).values(record=record))


def _projects_of(connection: Connection, user: str | None) -> tuple[Project, ...]:
    table, members = account_tables.projects, account_tables.members
    query = sa.select(table.c.record).order_by(table.c.name)
    if user is not None:
        query = query.join(members, members.c.project == table.c.name).where(members.c.user == user)
    found = [load(Project, row.record) for row in connection.execute(query)]
    if not found:
        return ()
    rows = connection.execute(
        sa.select(members).where(members.c.project.in_([one.name for one in found])).order_by(members.c.user)
    ).all()

    def complete(project: Project) -> Project:
        here = [row for row in rows if row.project == project.name]
        names = {"members": tuple(row.user for row in here), "owners": tuple(row.user for row in here if row.owner)}
        return project.model_copy(update=names)

    return tuple(map(complete, found))


def _drop_rows_of(connection: Connection, uids: sa.Select[tuple[int]]) -> None:
    """Deletes the records of the EC2 Query API of these uids, and their node-hours."""
    for table in (account_tables.ec2_objects, tables.node_hours):
        connection.execute(table.delete().where(table.c.uid.in_(uids)))


def _require_user(connection: Connection, name: str) -> None:
    users = account_tables.users
    if not connection.execute(sa.select(users.c.uid).where(users.c.name == name)).first():
        raise Refused(Code.NOT_FOUND, f"there is no user {name!r}", "", "wherry user list")


def _next_uid(connection: Connection, free: Callable[[int], bool]) -> int:
    """The next uid that was never given; the one after it is kept in the same transaction."""
    table = tables.settings
    row = connection.execute(sa.select(table.c.value).where(table.c.name == _NEXT_UID)).first()
    uid = int(row.value) if row else FIRST_UID
    while not free(uid):
        uid += 1
    if uid > LAST_UID:
        raise Refused(Code.NO_CAPACITY, "no more users can be made", "all their numbers were given", "")
    if row:
        connection.execute(table.update().where(table.c.name == _NEXT_UID).values(value=str(uid + 1)))
    else:
        connection.execute(table.insert().values(name=_NEXT_UID, value=str(uid + 1)))
    return uid
