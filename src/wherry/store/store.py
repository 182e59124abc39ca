"""All records of an instance, by name or id, in one SQLite database (write-ahead log).

Invariants: a written row survives `kill -9` of this process once the call returns; calls may come from any thread; only
the owner can read the file, which contains the secrets of clusters.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import alembic.command
import alembic.config
import alembic.util
import sqlalchemy as sa
from pydantic import BaseModel, ValidationError
from sqlalchemy.engine import Connection, Engine

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.base.text import printable
from wherry.model.records import Cluster, Event, Job, Move, Node, Operation, OperationState, Phase
from wherry.model.spec.fabric import FabricSpec
from wherry.store import tables
from wherry.store.codec import dump, load

AnyModel = TypeVar("AnyModel", bound=BaseModel)
_FINISHED = (Phase.DONE, Phase.ROLLED_BACK)
_BUSY_SECONDS = 30
_REPEATED = 900.0
"""Seconds within which a client may repeat a request that was not answered (`wherry.client.transport`)."""
_ROW: sa.ColumnElement[int] = sa.literal_column("rowid")
"""The number of a row, larger than those of all rows when it was inserted: the order of rows does not follow from their
times, as the clock can be set."""


class Store:
    """The state of an instance. `put_…` inserts or replaces a row; `drop_…` deletes it, if it exists."""

    def __init__(self, path: Path) -> None:
        """Opens the database and migrates it. Makes a missing directory (0700) and file (0600)."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        self._writing = threading.RLock()
        self.reserving = threading.Lock()
        """Held from the check of a host's room to the write of the row that takes it, as clusters and moves compete for
        that room, which is counted in rows. No host is asked anything while it is held."""
        self.on_event: Callable[[], None] = lambda: None
        """Called after each event that is added, by the thread that added it."""
        self._path = path
        self._engine = _engine(path)
        self._migrate()

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    # The fabric and its hosts.

    def fabric(self) -> FabricSpec | None:
        """The fabric that is up."""
        found = self._all(FabricSpec, tables.fabrics)
        return found[0] if found else None

    def put_fabric(self, spec: FabricSpec | None) -> None:
        """Replaces the fabric; None deletes it."""
        with self._write() as connection:
            connection.execute(tables.fabrics.delete())
            if spec:
                connection.execute(tables.fabrics.insert().values(name=spec.name, record=dump(spec)))

    def host_flag(self, host: str, flag: str) -> bool:
        """True when the flag is set."""
        return flag in self.host_flags(host)

    def host_flags(self, host: str) -> list[str]:
        """The flags that are set at a host, sorted."""
        table = tables.host_flags
        with self._read() as connection:
            rows = connection.execute(sa.select(table.c.flag).where(table.c.host == host, table.c.on))
            return sorted(row.flag for row in rows)

    def set_host_flag(self, host: str, flag: str, on: bool) -> None:
        """Sets or clears a flag such as `drained`."""
        self._put(tables.host_flags, {"host": host, "flag": flag}, {"on": on})

    def drop_host_flag(self, flag: str) -> None:
        """Deletes a flag at all hosts."""
        self._drop(tables.host_flags, flag=flag)

    # Clusters and nodes.

    def clusters(self) -> list[Cluster]:
        """By name."""
        return self._all(Cluster, tables.clusters, order=tables.clusters.c.name)

    def cluster(self, name: str) -> Cluster | None:
        """One cluster."""
        return self._one(Cluster, tables.clusters, name=name)

    def put_cluster(self, cluster: Cluster) -> None:
        """Inserts or replaces a cluster."""
        self._put(tables.clusters, {"name": cluster.name}, {"record": dump(cluster)})

    def drop_cluster(self, name: str) -> None:
        """Deletes a cluster and its nodes."""
        with self._write() as connection:
            connection.execute(tables.nodes.delete().where(tables.nodes.c.cluster == name))
            connection.execute(tables.clusters.delete().where(tables.clusters.c.name == name))

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        keys = {"cluster": cluster} if cluster is not None else {}
        return self._all(Node, tables.nodes, keys, (tables.nodes.c.cluster, tables.nodes.c.position))

    def node(self, name: str) -> Node | None:
        """One node."""
        return self._one(Node, tables.nodes, name=name)

    def put_node(self, node: Node) -> None:
        """Inserts or replaces a node."""
        columns = {"cluster": node.cluster, "position": node.index, "record": dump(node)}
        self._put(tables.nodes, {"name": node.name}, columns)

    def drop_node(self, name: str) -> None:
        """Deletes a node."""
        self._drop(tables.nodes, name=name)

    # Settings of the service.

    def setting(self, name: str) -> str:
        """The value of a setting; empty when it was never set."""
        with self._read() as connection:
            row = connection.execute(sa.select(tables.settings.c.value).where(tables.settings.c.name == name)).first()
        return str(row.value) if row else ""

    def put_setting(self, name: str, value: str) -> None:
        """Changes a setting."""
        self._put(tables.settings, {"name": name}, {"value": value})

    # Secrets: never part of a record.

    def secret(self, name: str) -> str:
        """A secret. NOT_FOUND when there is none."""
        with self._read() as connection:
            row = connection.execute(sa.select(tables.secrets.c.value).where(tables.secrets.c.name == name)).first()
        if row is None:
            raise Refused(Code.NOT_FOUND, f"there is no secret {name!r}", "it was removed", "wherry status")
        return str(row.value)

    def put_secret(self, name: str, value: str) -> None:
        """Inserts or replaces a secret."""
        self._put(tables.secrets, {"name": name}, {"value": value})

    def drop_secret(self, name: str) -> None:
        """Deletes a secret."""
        self._drop(tables.secrets, name=name)

    # Jobs, moves, operations.

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        keys = {"cluster": cluster} if cluster is not None else {}
        return self._all(Job, tables.jobs, keys, _ROW)

    def job(self, id: str) -> Job | None:
        """One job."""
        return self._one(Job, tables.jobs, id=id)

    def put_job(self, job: Job) -> None:
        """Inserts or replaces a job."""
        columns = {"cluster": job.cluster, "created": job.created, "record": dump(job)}
        self._put(tables.jobs, {"id": job.id}, columns)

    def drop_job(self, id: str) -> None:
        """Deletes a job."""
        self._drop(tables.jobs, id=id)

    def moves(self, *, unfinished: bool = False) -> list[Move]:
        """Oldest first; with `unfinished`, those that are neither done nor rolled back."""
        keys = {"finished": False} if unfinished else {}
        return self._all(Move, tables.moves, keys, _ROW)

    def newest_move(self) -> str:
        """Id of the last move that began; empty before the first."""
        query = sa.select(tables.moves.c.id).order_by(_ROW.desc()).limit(1)
        with self._engine.connect() as connection:
            return str(connection.scalar(query) or "")

    def move(self, id: str) -> Move | None:
        """One move."""
        return self._one(Move, tables.moves, id=id)

    def put_move(self, move: Move) -> None:
        """Inserts or replaces a move."""
        finished = move.phase in _FINISHED
        columns = {"node": move.node, "finished": finished, "created": move.created, "record": dump(move)}
        self._put(tables.moves, {"id": move.id}, columns)

    def operations(self, *, running: bool = False) -> list[Operation]:
        """Oldest first."""
        keys = {"state": str(OperationState.RUNNING)} if running else {}
        return self._all(Operation, tables.operations, keys, _ROW)

    def operation(self, id: str) -> Operation | None:
        """One operation."""
        return self._one(Operation, tables.operations, id=id)

    def operation_with_key(self, uid: int, key: str) -> Operation | None:
        """The operation that a user began with this idempotency key."""
        written = json.dumps(key)[1:-1]  # as it stands in the record: quotes and non-ASCII letters are escaped there
        record = tables.operations.c.record
        query = sa.select(record).where(record.contains(written, autoescape=True))
        with self._read() as connection:
            found = [load(Operation, row.record) for row in connection.execute(query)]
        return next((operation for operation in found if (operation.uid, operation.key) == (uid, key)), None)

    def put_operation(self, operation: Operation) -> None:
        """Inserts or replaces an operation."""
        columns = {"state": str(operation.state), "created": operation.created, "record": dump(operation)}
        self._put(tables.operations, {"id": operation.id}, columns)

    # Events.

    def add_event(self, kind: str, target: str, text: str, **data: object) -> Event:
        """Appends an event; its id is larger than every earlier one."""
        event = Event(time=now(), kind=kind, target=target, text=printable(text), data=data)
        columns = event.model_dump(exclude={"id", "data"}) | {"data": json.dumps(data, default=str)}
        with self._write() as connection:
            result = connection.execute(tables.events.insert().values(columns))
        self.on_event()
        return event.model_copy(update={"id": result.lastrowid})

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """The first `limit` events with an id above `after`, in order."""
        table = tables.events
        with self._read() as connection:
            rows = connection.execute(sa.select(table).where(table.c.id > after).order_by(table.c.id).limit(limit))
            return [_event(row) for row in rows]

    def newest_event(self, kind: str, target: str) -> Event | None:
        """The newest event of a kind about a target."""
        table = tables.events
        found = sa.select(table).where(table.c.kind == kind, table.c.target == target)
        with self._read() as connection:
            row = connection.execute(found.order_by(table.c.id.desc()).limit(1)).first()
            return _event(row) if row else None

    def prune(self, events: int = 10_000, others: int = 1_000) -> None:
        """Deletes all but the newest `events` events, `others` ended operations and `others` finished moves.

        Young operations are kept, however many: their idempotency keys keep a repeated request from beginning another.
        """
        running, young = str(OperationState.RUNNING), now() - _REPEATED
        ended = sa.and_(tables.operations.c.state != running, tables.operations.c.created < young)
        for table, which, keep in (
            (tables.events, sa.true(), events),
            (tables.operations, ended, others),
            (tables.moves, tables.moves.c.finished, others),
        ):
            old = sa.select(table.c.id).where(which).order_by(_ROW.desc()).offset(keep)
            with self._write() as connection:
                connection.execute(table.delete().where(table.c.id.in_(old)))

    # Connections and statements.

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._writing, self._refusals("written"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._refusals("read"), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _refusals(self, done: str) -> Iterator[None]:
        """Translates what SQLite says of a disk that is full, broken or read-only, or of a damaged file, into Failed.
        Other errors of the database are our mistakes."""
        try:
            yield
        except sa.exc.DatabaseError as error:
            if type(error) not in (sa.exc.OperationalError, sa.exc.DatabaseError):
                raise
            what, why = f"the instance's database cannot be {done}", f"{self._path}: {error.orig}"
            raise Failed(Code.FAILED, what, why, f"df -h {self._path.parent}, then repeat the command") from error

    def _put(self, table: sa.Table, key: dict[str, Any], columns: dict[str, Any]) -> None:
        with self._write() as connection:
            changed = connection.execute(table.update().where(*_matches(table, key)).values(columns))
            if not changed.rowcount:
                connection.execute(table.insert().values({**key, **columns}))

    def _drop(self, table: sa.Table, **key: Any) -> None:
        with self._write() as connection:
            connection.execute(table.delete().where(*_matches(table, key)))

    def _one(self, kind: type[AnyModel], table: sa.Table, **key: Any) -> AnyModel | None:
        found = self._all(kind, table, key)
        return found[0] if found else None

    def _all(
        self, kind: type[AnyModel], table: sa.Table, key: dict[str, Any] | None = None, order: Any = None
    ) -> list[AnyModel]:
        query = sa.select(table.c.record).where(*_matches(table, key or {}))
        if order is not None:
            query = query.order_by(*order) if isinstance(order, tuple) else query.order_by(order)
        with self._read() as connection:
            rows = [row.record for row in connection.execute(query)]
        try:
            return [load(kind, record) for record in rows]
        except ValidationError as error:
            what, why = f"a {kind.__name__.lower()} in the database cannot be read", f"{self._path}: {error}"
            remedy = "install the version of Wherry that wrote it, or remove the instance: wherry down --all"
            raise Failed(Code.VERSION_MISMATCH, what, why, remedy) from error

    def _migrate(self) -> None:
        config = alembic.config.Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        with self._write() as connection:
            config.attributes["connection"] = connection
            try:
                alembic.command.upgrade(config, "head")
            except alembic.util.CommandError as error:
                what, why = "the instance's database is of a newer version of Wherry", f"{self._path}: {error}"
                remedy = "install that version again, or remove the instance: wherry down --all"
                raise Refused(Code.VERSION_MISMATCH, what, why, remedy) from error


def _matches(table: sa.Table, key: dict[str, Any]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.items()]


def _event(row: sa.Row[Any]) -> Event:
    return Event(**{**row._mapping, "data": json.loads(row.data)})


def _engine(path: Path) -> Engine:
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": _BUSY_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        for setting in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    return engine
