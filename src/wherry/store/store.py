"""All records of an instance, by name or id, in one database: SQLite or PostgreSQL, by the same queries.

Invariants: a written row survives `kill -9` of this process once the call returns, and a power cut while the fabric's
nodes run on other machines; calls may come from any thread; only the owner can read a file of SQLite; a secret that is
kept is sealed or a hash.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError
from sqlalchemy.engine import Connection

from wherry.base.acting import acting
from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.base.text import printable
from wherry.model.operation_step import OperationStep
from wherry.model.program import ProgramProfile
from wherry.model.records import (
    Cluster,
    Event,
    Job,
    JobState,
    Move,
    Node,
    Operation,
    Phase,
)
from wherry.model.spec.fabric import FabricSpec
from wherry.store import tables
from wherry.store.access_keys import AccessKeys
from wherry.store.accounts import Accounts, events_of, owner_of
from wherry.store.address import Address
from wherry.store.cluster_leases import ClusterLeases
from wherry.store.codec import dump, load
from wherry.store.database import Database
from wherry.store.ec2 import Ec2Objects
from wherry.store.node_hours import NodeHours, charge
from wherry.store.operation_steps import OperationSteps
from wherry.store.paging import Pages
from wherry.store.waiting_clusters import WaitingClusters

AnyModel = TypeVar("AnyModel", bound=BaseModel)
_FINISHED = (Phase.DONE, Phase.ROLLED_BACK)
_ON_OTHER_MACHINES = ("libvirt", "ssh", "slurm")
"""Drivers of fabrics whose nodes run on when the power of this machine is cut."""
_REPEATED = 900.0
"""Seconds within which a client may repeat a request that was not answered (`wherry.client.transport`)."""


class Store:
    """The state of an instance. `put_…` inserts or replaces a row; `drop_…` deletes it, if it exists."""

    def __init__(self, where: Address | Database, keys: Path | None = None) -> None:
        """Opens the database and migrates it. Makes a missing file of SQLite (0600) and its directory (0700). `keys` is
        as of `Database`."""
        self.database = where if isinstance(where, Database) else Database(where, keys=keys)
        self.sealing = self.database.sealing
        self.reserving = threading.Lock()
        """Held from the check of a host's room to the write of the row that takes it, as clusters and moves compete for
        that room, which is counted in rows. No host is asked anything while it is held."""
        self.on_event: Callable[[], None] = lambda: None
        """Called after each event that is added, by the thread that added it."""
        self._engine = self.database.engine
        self._unchanged = self.database.unchanged.read
        self.database.upgrade()
        with self._read() as connection:
            self.database.lasting = any(map(_on_other_machines, connection.scalars(sa.select(tables.fabrics.c.record))))
        self.steps = OperationSteps(self._read)
        self.pages = Pages(self._read, self._loaded)
        self.accounts = Accounts(self._read, self._write, self._unchanged)
        self.access_keys = AccessKeys(self._read, self._write)
        self.ec2 = Ec2Objects(self._read, self._write)
        self.leases = ClusterLeases(self._read, self._write, self._unchanged)
        self.node_hours = NodeHours(self._read)
        self.queue = WaitingClusters(self._read, self._write, self._unchanged)

    def close(self) -> None:
        """Closes every connection."""
        self.database.close()

    # The fabric and its hosts.

    def fabric(self) -> FabricSpec | None:
        """The fabric that is up."""
        found = self._all(FabricSpec, tables.fabrics)
        return found[0] if found else None

    def put_fabric(self, spec: FabricSpec | None) -> None:
        """Replaces the fabric; None deletes it."""
        lasting = spec is not None and spec.driver in _ON_OTHER_MACHINES
        self.database.lasting |= lasting
        with self._write() as connection:
            connection.execute(tables.fabrics.delete())
            if spec:
                connection.execute(tables.fabrics.insert().values(name=spec.name, record=dump(spec)))
        self.database.lasting = lasting

    def host_flag(self, host: str, flag: str) -> bool:
        """True when the flag is set."""
        return flag in self.host_flags(host)

    def host_flags(self, host: str) -> list[str]:
        """The flags that are set at a host, sorted."""
        table = tables.host_flags
        with self._read() as connection:
            rows = connection.execute(sa.select(table.c.flag).where(table.c.host == host, table.c.on))
            return sorted(row.flag for row in rows)

    def flags_of_hosts(self) -> dict[str, list[str]]:
        """The flags that are set, sorted, of the hosts that have some."""
        table, query = tables.host_flags, sa.select(tables.host_flags.c.host, tables.host_flags.c.flag)

        def read() -> list[tuple[str, str]]:
            with self._read() as connection:
                return sorted((row.host, row.flag) for row in connection.execute(query.where(table.c.on)))

        found = dict[str, list[str]]()
        for host, flag in self._unchanged("flags", read):
            found.setdefault(host, []).append(flag)
        return found

    def set_host_flag(self, host: str, flag: str, on: bool) -> None:
        """Sets or clears a flag such as `drained`."""
        if on:
            self._put(tables.host_flags, {"host": host, "flag": flag}, {"on": True})
        else:
            self._drop(tables.host_flags, host=host, flag=flag)

    def drop_host_flag(self, flag: str) -> None:
        """Deletes a flag at all hosts."""
        self._drop(tables.host_flags, flag=flag)

    # Clusters and nodes.

    def clusters(self, uids: Collection[int] | None = None) -> list[Cluster]:
        """By name; those of some users, if given."""
        owned = None if uids is None else tables.clusters.c.uid.in_(list(uids))

        def read() -> list[Cluster]:
            return self._all(Cluster, tables.clusters, order=tables.clusters.c.name, where=owned)

        return list(self._unchanged("clusters", read)) if uids is None else read()

    def cluster(self, name: str) -> Cluster | None:
        """One cluster."""
        return self._unchanged(("cluster", name), lambda: self._one(Cluster, tables.clusters, name=name))

    def put_cluster(self, cluster: Cluster) -> None:
        """Inserts or replaces a cluster."""
        self._put(tables.clusters, {"name": cluster.name}, {"record": dump(cluster), "uid": cluster.owner_uid})

    def drop_cluster(self, name: str) -> None:
        """Deletes a cluster with its nodes and its lease."""
        with self._write() as connection:
            charge(connection, tables.nodes.c.cluster == name)
            connection.execute(tables.leases.delete().where(tables.leases.c.cluster == name))
            connection.execute(tables.nodes.delete().where(tables.nodes.c.cluster == name))
            connection.execute(tables.clusters.delete().where(tables.clusters.c.name == name))

    def nodes(self, cluster: str | None = None) -> list[Node]:
        """By cluster and index."""
        keys = {"cluster": cluster} if cluster is not None else {}
        order = tables.nodes.c.cluster, tables.nodes.c.position
        return list(self._unchanged(("nodes", cluster), lambda: self._all(Node, tables.nodes, keys, order)))

    def node(self, name: str) -> Node | None:
        """One node."""
        return self._unchanged(("node", name), lambda: self._one(Node, tables.nodes, name=name))

    def put_node(self, node: Node) -> None:
        """Inserts or replaces a node."""
        columns = {"cluster": node.cluster, "position": node.index, "record": dump(node)}
        self._put(tables.nodes, {"name": node.name}, columns)

    def drop_node(self, name: str) -> None:
        """Deletes a node, whose time its owner has used from then on."""
        with self._write() as connection:
            charge(connection, tables.nodes.c.name == name)
            connection.execute(tables.nodes.delete().where(tables.nodes.c.name == name))

    # Settings of the service.

    def setting(self, name: str) -> str:
        """The value of a setting; empty when it was never set."""

        def read() -> str:
            query = sa.select(tables.settings.c.value).where(tables.settings.c.name == name)
            with self._read() as connection:
                row = connection.execute(query).first()
            return str(row.value) if row else ""

        return self._unchanged(("setting", name), read)

    def put_setting(self, name: str, value: str) -> None:
        """Changes a setting."""
        self._put(tables.settings, {"name": name}, {"value": value})

    # Secrets: never part of a record.

    def secret(self, name: str) -> str:
        """A secret. NOT_FOUND when there is none, FAILED when the keys that open it are lost."""

        def read() -> sa.Row[Any] | None:
            with self._read() as connection:
                query = sa.select(tables.secrets.c.value).where(tables.secrets.c.name == name)
                return connection.execute(query).first()

        row = self._unchanged(("secret", name), read)
        if row is None:
            raise Refused(Code.NOT_FOUND, f"there is no secret {name!r}", "it was removed", "wherry status")
        return self.sealing.open(name, str(row.value))

    def lost_secrets(self) -> list[str]:
        """The names of secrets that no key opens, sorted."""
        with self._read() as connection:
            rows = connection.execute(sa.select(tables.secrets.c.name, tables.secrets.c.value)).all()
        return sorted(row.name for row in rows if not self.sealing.opens(row.name, row.value))

    def put_secret(self, name: str, value: str) -> None:
        """Inserts or replaces a secret."""
        self._put(tables.secrets, {"name": name}, {"value": self.sealing.seal(name, value)})

    def drop_secret(self, name: str) -> None:
        """Deletes a secret."""
        self._drop(tables.secrets, name=name)

    # Jobs, moves, operations.

    def jobs(self, cluster: str | None = None) -> list[Job]:
        """Oldest first."""
        keys = {"cluster": cluster} if cluster is not None else {}
        return self._all(Job, tables.jobs, keys, tables.jobs.c.number)

    def job_states(self) -> dict[str, int]:
        """The number of jobs by state."""
        state = tables.jobs.c.state
        with self._read() as connection:
            rows = connection.execute(sa.select(state, sa.func.count()).group_by(state))
            return {name: number for name, number in rows}

    def jobs_under_way(self) -> list[Job]:
        """Jobs whose end is not known, oldest first."""
        under_way = tables.jobs.c.state.in_([str(state) for state in JobState if state.under_way])
        order = tables.jobs.c.number
        return list(self._unchanged("jobs", lambda: self._all(Job, tables.jobs, order=order, where=under_way)))

    def job(self, id: str) -> Job | None:
        """One job."""
        return self._one(Job, tables.jobs, id=id)

    def put_job(self, job: Job) -> None:
        """Inserts or replaces a job."""
        columns = {"cluster": job.cluster, "created": job.created, "state": str(job.state), "record": dump(job)}
        self._put(tables.jobs, {"id": job.id}, columns)

    def drop_job(self, id: str) -> None:
        """Deletes a job."""
        self._drop(tables.jobs, id=id)

    def programs(self, uid: int | None = None) -> list[ProgramProfile]:
        """The profiles of programs of all users or of one, that measured longest ago first."""
        keys = {} if uid is None else {"uid": uid}
        return self._all(ProgramProfile, tables.programs, keys, tables.programs.c.number)

    def program(self, key: str) -> ProgramProfile | None:
        """One profile."""
        return self._one(ProgramProfile, tables.programs, key=key)

    def put_program(self, profile: ProgramProfile, keep: int = 500) -> None:
        """Inserts or replaces a profile; of more than `keep` of its user those measured longest ago are deleted."""
        table, uid = tables.programs, profile.program.uid
        old = sa.select(table.c.key).where(table.c.uid == uid).order_by(table.c.number.desc()).offset(keep)
        values = {"key": profile.key, "uid": uid, "record": dump(profile)}
        with self._write() as connection:  # deleted before, so that its row is the newest
            connection.execute(table.delete().where(table.c.key == profile.key))
            connection.execute(table.insert().values(**values, number=_next_number(table)))
            connection.execute(table.delete().where(table.c.key.in_(old)))

    def drop_program(self, key: str) -> None:
        """Deletes a profile."""
        self._drop(tables.programs, key=key)

    def moves(self, *, unfinished: bool = False) -> list[Move]:
        """Oldest first; with `unfinished`, moves that are neither done nor rolled back."""
        keys = {"finished": False} if unfinished else {}
        return self._all(Move, tables.moves, keys, tables.moves.c.number)

    def newest_moves(self, number: int) -> list[Move]:
        """The moves that began last, oldest first."""
        return self._all(Move, tables.moves, order=tables.moves.c.number.desc(), limit=number)[::-1]

    def newest_move(self) -> str:
        """Id of the last move that began; empty before the first."""
        query = sa.select(tables.moves.c.id).order_by(tables.moves.c.number.desc()).limit(1)
        with self._read() as connection:
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
        """Oldest first; with `running`, operations that run or wait."""
        where = tables.operations.c.state.in_(tables.UNDER_WAY) if running else None
        return self._all(Operation, tables.operations, order=tables.operations.c.number, where=where)

    def operation(self, id: str) -> Operation | None:
        """One operation."""
        return self._one(Operation, tables.operations, id=id)

    def operation_with_key(self, uid: int, key: str) -> Operation | None:
        """The operation that a user began with this idempotency key."""
        return self._one(Operation, tables.operations, uid=uid, key=key)

    def put_operation(self, operation: Operation, *steps: OperationStep) -> None:
        """Inserts or replaces an operation, and appends steps of it."""
        columns = {"state": str(operation.state), "created": operation.created, "record": dump(operation)}
        by = {"uid": operation.uid, "key": operation.key, "owner": operation.owner}
        with self._write() as connection:
            _put(connection, tables.operations, {"id": operation.id}, columns | by)
            self.steps.add(connection, operation.id, steps)

    # Events.

    def add_event(self, kind: str, target: str, text: str, owner: int | None = None, /, **data: object) -> Event:
        """Appends an event; its id is larger than every earlier one. `owner` is the uid whose it is, by default that of
        the cluster, node or job that is its target."""
        target = printable(target)
        event = Event(time=now(), kind=kind, target=target, text=printable(text), data=data, by=acting.get())
        columns = event.model_dump(exclude={"id", "data", "owner"}) | {"data": json.dumps(data, default=str)}
        with self._write() as connection:
            event = event.model_copy(update={"owner": owner_of(connection, kind, target) if owner is None else owner})
            columns["owner"] = event.owner
            key = connection.execute(tables.events.insert().values(columns)).inserted_primary_key
            assert key is not None
        self.on_event()
        return event.model_copy(update={"id": key[0]})

    def events(
        self,
        after: int = 0,
        limit: int = 1000,
        owners: Collection[int] | None = None,
        newest: bool = False,
        before: int | None = None,
    ) -> list[Event]:
        """The first `limit` events with an id above `after`, or the `newest` of them, in order; only events `before` an
        id and of some `owners`, if given."""
        table = tables.events
        which = sa.select(table).where(table.c.id > after, events_of(owners))
        which = which if before is None else which.where(table.c.id < before)
        with self._read() as connection:
            rows = connection.execute(which.order_by(table.c.id.desc() if newest else table.c.id).limit(limit)).all()
            return [_event(row) for row in (reversed(rows) if newest else rows)]

    def newest_event_id(self) -> int:
        """The number of the newest event; 0 before the first."""
        with self._read() as connection:
            return int(connection.scalar(sa.select(sa.func.max(tables.events.c.id))) or 0)

    def newest_event(self, kind: str, target: str, among: str = "") -> Event | None:
        """The newest event of a kind about a target; or of kind `among`, whose data name it."""
        table, target = tables.events, printable(target)
        named = sa.and_(table.c.kind == among, table.c.data.contains(json.dumps(target), autoescape=True))
        found = sa.select(table).where(sa.or_(sa.and_(table.c.kind == kind, table.c.target == target), named))
        with self._read() as connection:
            row = connection.execute(found.order_by(table.c.id.desc()).limit(1)).first()
            return _event(row) if row else None

    def prune(self, events: int = 10_000, others: int = 1_000) -> None:
        """Deletes all but the newest `events` events, `others` ended operations and `others` finished moves.

        Young operations are kept, however many: their idempotency keys keep a repeated request from beginning another.
        """
        young = now() - _REPEATED
        ended = sa.and_(tables.operations.c.state.not_in(tables.UNDER_WAY), tables.operations.c.created < young)
        for table, which, order, keep in (
            (tables.events, sa.true(), tables.events.c.id, events),
            (tables.operations, ended, tables.operations.c.number, others),
            (tables.moves, tables.moves.c.finished, tables.moves.c.number, others),
        ):
            old = sa.select(table.c.id).where(which).order_by(order.desc()).offset(keep)
            with self._write() as connection:
                connection.execute(table.delete().where(table.c.id.in_(old)))
                if table is tables.operations:
                    self.steps.prune(connection)

    # Connections and statements.

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self.database.write() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self.database.read() as connection:
            yield connection

    def _put(self, table: sa.Table, key: dict[str, Any], columns: dict[str, Any]) -> None:
        with self._write() as connection:
            _put(connection, table, key, columns)

    def _drop(self, table: sa.Table, **key: Any) -> None:
        with self._write() as connection:
            connection.execute(table.delete().where(*_matches(table, key)))

    def _one(self, kind: type[AnyModel], table: sa.Table, **key: Any) -> AnyModel | None:
        found = self._all(kind, table, key)
        return found[0] if found else None

    def _all(
        self,
        kind: type[AnyModel],
        table: sa.Table,
        key: dict[str, Any] | None = None,
        order: Any = None,
        limit: int | None = None,
        where: sa.ColumnElement[bool] | None = None,
    ) -> list[AnyModel]:
        key = key or {}
        if any(isinstance(value, str) and "\0" in value for value in key.values()):  # PostgreSQL refuses to compare it
            return []
        query = sa.select(table.c.record).where(*_matches(table, key)).limit(limit)
        if where is not None:
            query = query.where(where)
        if order is not None:
            query = query.order_by(*order) if isinstance(order, tuple) else query.order_by(order)
        with self._read() as connection:
            rows = [row.record for row in connection.execute(query)]
        return self._loaded(kind, rows)

    def _loaded(self, kind: type[AnyModel], rows: Sequence[str]) -> list[AnyModel]:
        """The records. VERSION_MISMATCH when one cannot be read."""
        try:
            return [load(kind, record) for record in rows]
        except ValidationError as error:
            what, why = f"a {kind.__name__.lower()} in the database cannot be read", f"{self.database.shown}: {error}"
            remedy = "install the version of Wherry that wrote it, or remove the instance: wherry down --all"
            raise Failed(Code.VERSION_MISMATCH, what, why, remedy) from error


def _put(connection: Connection, table: sa.Table, key: dict[str, Any], columns: dict[str, Any]) -> None:
    changed = connection.execute(table.update().where(*_matches(table, key)).values(columns))
    if not changed.rowcount:
        number = {"number": _next_number(table)} if "number" in table.c else {}
        connection.execute(table.insert().values({**key, **columns, **number}))


def _matches(table: sa.Table, key: dict[str, Any]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.items()]


def _on_other_machines(fabric: str) -> bool:
    try:
        return json.loads(fabric).get("driver") in _ON_OTHER_MACHINES
    except ValueError:  # a damaged record, which is reported when it is read
        return True


def _event(row: sa.Row[Any]) -> Event:
    return Event(**{**row._mapping, "data": json.loads(row.data)})


def _next_number(table: sa.Table) -> sa.ColumnElement[int]:
    """The place of a new row behind all others. There is one writer (`Database.write`), so no two rows get the same."""
    return sa.select(sa.func.coalesce(sa.func.max(table.c.number), 0) + 1).correlate(None).scalar_subquery()
