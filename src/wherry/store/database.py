"""A database of an instance, SQLite (write-ahead log) or PostgreSQL: connections, transactions, migrations.

Invariants: a committed row survives `kill -9` of this process, and with `lasting` a power cut; there is one writing
transaction at a time in a process, and none after another daemon took the lease; a migration is made whole or not at
all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import alembic.script
import alembic.util
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from wherry.base.errors import Code, Failed, Refused
from wherry.store.address import Address, shown, without_password
from wherry.store.sealing import Sealing
from wherry.store.unchanged import UnchangedReads

_BUSY_SECONDS = 30
"""How long a statement waits for another process's lock."""
_CONNECT_SECONDS = 30
IDLE_SECONDS = 25
"""After this time PostgreSQL ends a session that is idle inside a transaction, as that of a stopped process."""
_SILENT_SERVER = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""For libpq: a server that answers no more is given up after half a minute."""
_CONNECTIONS = 20
_SYNCHRONOUS = "synchronous"
"""SQLite's setting, and an option of engines, which connections that write keep in their `info`."""
_SEALED = "0009"
"""The revision from which on no secret is in plain text."""
_OF_THE_SERVER = ("42501", "3F000", "25006", "25P03")
"""Codes of PostgreSQL that are no mistakes of ours: no right, no schema, read-only, an idle session."""


class Database:
    """One database. `admit`, if set, is called in each writing transaction before its first statement, and raises when
    this process may not write any more."""

    def __init__(self, address: Address, create: bool = True, keys: Path | None = None) -> None:
        """Opens nothing yet, but makes a missing directory (0700) and file (0600) of SQLite, with `create`. `keys` is
        the file of keys that seal secrets; beside a file of SQLite unless it is given."""
        self.address = address
        beside = address.with_name("secrets.key") if isinstance(address, Path) else Path("/nonexistent/secrets.key")
        self.sealing = Sealing(keys or beside)
        self.shown = shown(address)
        self.admit: Callable[[Connection], None] = lambda _connection: None
        self.lasting = False
        """Whether SQLite has a row on the disk when its commit returns. PostgreSQL does as its server is configured."""
        self.unchanged = UnchangedReads(address if isinstance(address, Path) else None)
        self._writing = threading.RLock()
        if isinstance(address, Path):
            if create:
                address.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(address, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                address.chmod(0o600)
            self.engine = _sqlite(address)
        else:
            self.engine = _postgresql(address)
        self._writers = {
            lasting: self.engine.execution_options(**{_SYNCHRONOUS: "FULL" if lasting else "NORMAL"})
            for lasting in (False, True)
        }

    @property
    def postgresql(self) -> bool:
        """Whether it is PostgreSQL."""
        return isinstance(self.address, sa.URL)

    def close(self) -> None:
        """Closes every connection."""
        self.unchanged.close()
        self.engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One writing transaction. Errors of the server or the disk become FAILED."""
        with self._writing, self.write_unasked() as connection:
            self.admit(connection)
            yield connection

    @contextmanager
    def write_unasked(self) -> Iterator[Connection]:
        """A writing transaction that `admit` is not asked about, and that waits for no other of this process."""
        with self._refusals("written"), self._writers[self.lasting].begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One reading transaction."""
        with self._refusals("read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A reading transaction whose statements all see the same state, while others write."""
        level = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True} if self.postgresql else {}
        with self._refusals("read"), self.engine.connect().execution_options(**level) as connection:
            if self.postgresql:  # the rows may be written to a slow disk meanwhile
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            yield connection

    @contextmanager
    def _refusals(self, done: str) -> Iterator[None]:
        """Translates errors of the database about a disk that is full, broken or read-only, a damaged file, or a
        server that is gone or refuses, into Failed. Other errors are our mistakes."""
        try:
            yield
        except sa.exc.DatabaseError as error:
            state = getattr(error.orig, "sqlstate", None)
            if type(error) not in (sa.exc.OperationalError, sa.exc.DatabaseError) and state not in _OF_THE_SERVER:
                raise
            raise self._failed(done, str(error.orig)) from (None if self.postgresql else error)
        except sa.exc.TimeoutError as error:  # all connections are in use
            raise self._failed(done, str(error)) from None

    def _failed(self, done: str, reason: str) -> Failed:
        what = f"the instance's database cannot be {done}"
        why = f"{self.shown}: {without_password(reason.strip(), self.address)}"
        return Failed(Code.FAILED, what, why, f"{self._remedy()}, then repeat the command")

    def _remedy(self) -> str:
        if isinstance(self.address, Path):
            return f"df -h {self.address.parent}"
        return "look after the database's server"

    def server_version(self) -> str:
        """Of PostgreSQL, as `15.8`. FAILED when it cannot be reached."""
        with self.read() as connection:
            return str(connection.scalar(sa.text("SHOW server_version"))).partition(" ")[0]

    # The schema.

    def revision(self) -> str:
        """The schema's revision; empty before its first migration."""
        with self.read() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return ""
            return str(connection.scalar(sa.text("SELECT version_num FROM alembic_version")) or "")

    def upgrade(self, revision: str = "head") -> None:
        """Migrates to a revision or the newest. VERSION_MISMATCH when the database is of a newer version."""
        before = self.revision()
        with self.write_unasked() as connection:
            try:
                alembic.command.upgrade(_config(connection, self.sealing), revision)
            except alembic.util.CommandError as error:
                what = "the instance's database is of a newer version of Wherry"
                why = f"{self.shown}: {error}; the newest revision of this version is {revisions()[-1]}"
                remedy = "install that version again (its `wherry daemon migrate` goes back to the revision of this)"
                raise Refused(Code.VERSION_MISMATCH, what, why, remedy) from error
        if before and before < _SEALED <= self.revision():
            self._forget_old_pages()

    def _forget_old_pages(self) -> None:
        """Rewrites the tables: replaced and deleted rows are in no file of the database any more."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if self.postgresql:
                connection.exec_driver_sql("VACUUM FULL secrets")
            else:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql("VACUUM")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def downgrade(self, revision: str) -> None:
        """Migrates back to a revision; `base` removes all tables. Refused for an unknown or newer revision."""
        with self.write_unasked() as connection:
            try:
                alembic.command.downgrade(_config(connection, self.sealing), revision)
            except alembic.util.CommandError as error:
                known = ", ".join(revisions())
                raise Refused(
                    Code.NOT_FOUND, f"there is no way to {revision}", str(error), f"one of {known}"
                ) from error


def revisions() -> list[str]:
    """All revisions of the schema in this version, oldest first."""
    script = alembic.script.ScriptDirectory.from_config(_config(None))
    return [found.revision for found in script.walk_revisions()][::-1]


def _config(connection: Connection | None, sealing: Sealing | None = None) -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["sealing"] = sealing
    return config


def _sqlite(path: Path) -> Engine:
    connect = {"check_same_thread": False, "timeout": _BUSY_SECONDS}
    engine = sa.create_engine(f"sqlite:///{path}", connect_args=connect, hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the module begins no transaction before CREATE or SELECT
        for setting in ("journal_mode=WAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        wanted = connection.get_execution_options().get(_SYNCHRONOUS)  # of a transaction that writes
        if wanted and connection.info.get(_SYNCHRONOUS) != wanted:
            connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")
            connection.info[_SYNCHRONOUS] = wanted
        # A transaction that writes waits for another process's lock before it reads.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if wanted else "BEGIN")

    return engine


def _postgresql(url: sa.URL) -> Engine:
    connect = {"connect_timeout": _CONNECT_SECONDS, "application_name": "wherryd", **_SILENT_SERVER}
    engine = sa.create_engine(
        url,
        connect_args={name: value for name, value in connect.items() if name not in url.query},
        hide_parameters=True,
        pool_pre_ping=True,  # after a restart of the server
        pool_size=_CONNECTIONS // 2,
        max_overflow=_CONNECTIONS // 2,
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.autocommit = True
        connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        connection.execute(f"SET lock_timeout = '{_BUSY_SECONDS}s'")
        connection.autocommit = False

    return engine
