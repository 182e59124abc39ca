"""The schema's migrations, both ways and on both databases; none is made by halves."""

from __future__ import annotations

import json
import os
import signal
from itertools import count
from typing import Any

import alembic.autogenerate
import alembic.migration
import pytest
import sqlalchemy as sa

from wherry.base.errors import Refused
from wherry.model.kept_words import kept_words
from wherry.store import Store, tables
from wherry.store.address import Address
from wherry.store.database import Database, revisions

Schema = dict[str, list[str]]
"""Columns of tables."""

ROWS = {
    "jobs": ("id, cluster, created", "'{0}', 'hello', 1.5", {"state": "running"}),
    "programs": ("key", "'{0}'", {"program": {"uid": 2**32 - 2}}),
    "moves": ("id, node, finished, created", "'{0}', 'hello-0', false, 1.5", {}),
    "operations": ("id, state, created", "'{0}', 'done', 1.5", {}),
}
"""Of tables that had no order of their own: columns, values and record of a row."""


def old_rows(database: Database) -> None:
    """Rows of revision 0003, not in the order of their names."""
    with database.write() as connection:
        for table, (columns, values, record) in ROWS.items():
            for name in ("b", "c", "a"):
                text = f"INSERT INTO {table} ({columns}, record) VALUES ({values.format(name)}, :record)"
                connection.execute(sa.text(text), {"record": json.dumps(record)})
        connection.execute(
            sa.text("INSERT INTO events (time, kind, target, text, data) VALUES (1.5, 'a', 'b', 'c', '{}')")
        )


def names(database: Database, table: str, order: str) -> list[str]:
    key = "key" if table == "programs" else "id"
    with database.read() as connection:
        return list(connection.scalars(sa.text(f"SELECT {key} FROM {table} ORDER BY {order}")))


def schema(database: Database) -> Schema:
    with database.read() as connection:
        found = sa.inspect(connection)
        return {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}


def killed_at(statement: int, address: Address) -> bool:
    """A daemon's first look at its database, killed before a statement, or before the commit if there are not so many:
    then it returns false."""
    child = os.fork()
    if child == 0:
        try:
            database, done = Database(address), count()

            @sa.event.listens_for(database.engine, "before_cursor_execute")
            def _die_there(*_: object) -> None:
                if next(done) == statement:
                    os.kill(os.getpid(), signal.SIGKILL)

            @sa.event.listens_for(database.engine, "commit")
            def _die_in_the_end(_: object) -> None:
                if next(done) <= statement:
                    os._exit(77)

            Store(database)
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (-signal.SIGKILL, 77), ended
    return ended != 77


def test_the_schema_is_what_the_queries_expect(address: Address) -> None:
    database = Store(address).database
    assert database.revision() == revisions()[-1]
    with database.read() as connection:
        options = {"compare_type": True, "compare_server_default": False}
        context = alembic.migration.MigrationContext.configure(connection, opts=options)
        assert alembic.autogenerate.compare_metadata(context, tables.metadata) == []


def test_every_step_goes_both_ways(address: Address) -> None:
    database = Database(address)
    for revision in revisions():
        database.upgrade(revision)
        assert database.revision() == revision
    for revision in revisions()[-2::-1]:
        database.downgrade(revision)
        assert database.revision() == revision
    database.downgrade("base")
    with database.read() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
    Store(database).put_setting("a", "b")


def test_rows_keep_their_order_and_their_values(address: Address) -> None:
    database = Database(address)
    database.upgrade("0003")
    old_rows(database)
    database.upgrade()
    for table in ROWS:
        assert names(database, table, "number") == ["b", "c", "a"], table
    assert [row.target for row in Store(database).events()] == ["b"]
    with database.read() as connection:
        assert set(connection.scalars(sa.select(tables.jobs.c.state))) == {"running"}
        assert set(connection.scalars(sa.select(tables.programs.c.uid))) == {2**32 - 2}
    with database.write() as connection:  # the order is not that of the rows' places any more
        connection.execute(tables.moves.update().where(tables.moves.c.id == "b").values(number=9))
    database.downgrade("0003")
    place = "ctid" if database.postgresql else "rowid"
    assert names(database, "moves", place) == ["c", "a", "b"] and names(database, "jobs", place) == ["b", "c", "a"]
    database.upgrade()
    assert names(database, "moves", "number") == ["c", "a", "b"]


def test_a_migration_that_fails_changes_nothing(address: Address) -> None:
    """A row of which no column can be made is met when columns and indexes were added already."""
    database = Database(address)
    database.upgrade("0003")
    old_rows(database)
    with database.write() as connection:
        connection.execute(sa.text("UPDATE programs SET record = 'damaged' WHERE key = 'a'"))

    before = schema(database)
    with pytest.raises(ValueError):
        database.upgrade()
    assert schema(database) == before and database.revision() == "0003"


@pytest.mark.parametrize("revision", ["", "0003"])
def test_a_daemon_that_is_killed_in_a_migration_starts_again(address: Address, revision: str) -> None:
    """At many a statement of its first start, or of an upgrade, and before their commit."""
    database = Database(address)
    if revision:
        database.upgrade(revision)
        old_rows(database)
    before = schema(database)
    statements = 0
    while killed_at(statements, address):
        assert schema(database) == before and database.revision() == revision, statements
        statements += 7
    assert statements > 10 and schema(database) == before and database.revision() == revision
    store = Store(address)
    assert [event.target for event in store.events()] == (["b"] if revision else [])
    assert store.database.revision() == revisions()[-1]


def test_rows_of_long_command_lines_become_short(address: Address) -> None:
    """Those of jobs, and of the operations that started them; and a key finds its operation by an index."""
    database, argv = Database(address), ["prog", *("word" for _ in range(100_000))]
    database.upgrade("0006")
    long = {"argv": argv, "program": {"arguments": argv[1:]}}
    short = {"argv": ["prog"], "program": {"arguments": []}}
    begun = {"uid": 7, "key": "long", "result": {"job": long}}
    rows: dict[str, dict[str, dict[str, Any]]] = {
        "jobs": {"long": long, "short": short},
        "programs": {"long": {"program": long["program"]}, "short": {"program": short["program"]}},
        "operations": {
            "long": begun,
            "short": {"result": {"job": short}},
            "up": {"result": {"nodes": []}},
            "failed": {},
        },
    }
    with database.write() as connection:
        for table, records in rows.items():
            columns, values, _ = ROWS[table]
            for name, record in records.items():
                text = f"INSERT INTO {table} ({columns}, record) VALUES ({values.format(name)}, :record)"
                connection.execute(sa.text(text), {"record": json.dumps(record)})
    database.upgrade("0007")
    with database.read() as connection:
        found = {
            table: {row[0]: json.loads(row.record) for row in connection.execute(sa.text(f"SELECT * FROM {table}"))}
            for table in rows
        }
        query = "SELECT id, uid FROM operations WHERE key = 'long'"
        assert connection.execute(sa.text(query)).one() == ("long", 7)
        assert ["key"] in [index["column_names"] for index in sa.inspect(connection).get_indexes("operations")]
    kept, cut = kept_words(argv)
    assert found["jobs"]["long"] == {"argv": list(kept), "argv_cut": cut, "program": None}
    assert found["operations"]["long"] == {**begun, "result": {"job": found["jobs"]["long"]}}
    assert found["programs"].keys() == {"short"}
    for name, records in rows.items():
        assert all(found[name][id] == record for id, record in records.items() if id != "long"), name
    database.downgrade("0006")
    with database.read() as connection:
        assert "key" not in {column["name"] for column in sa.inspect(connection).get_columns("operations")}


def test_the_engines_view_of_a_downtime_has_its_name_in_rows_that_were_kept(address: Address) -> None:
    """In moves and in results of operations, and its earlier name again when the database goes back."""
    database = Database(address)
    database.upgrade("0007")
    rows = {"moves": {"downtime_criu": 0.5}, "operations": {"result": {"move": {"downtime_criu": 0.5}}}}
    with database.write() as connection:
        for table, record in rows.items():
            columns, values, _ = ROWS[table]
            text = f"INSERT INTO {table} ({columns}, record) VALUES ({values.format('one')}, :record)"
            connection.execute(sa.text(text), {"record": json.dumps(record, separators=(",", ":"))})

    def found() -> dict[str, Any]:
        with database.read() as connection:
            return {
                table: json.loads(connection.execute(sa.text(f"SELECT record FROM {table}")).scalar_one())
                for table in rows
            }

    database.upgrade("0008")
    assert found() == {"moves": {"downtime_engine": 0.5}, "operations": {"result": {"move": {"downtime_engine": 0.5}}}}
    database.downgrade("0007")
    assert found() == rows


def test_a_way_that_does_not_exist(address: Address) -> None:
    database = Store(address).database
    with pytest.raises(Refused, match="no way to 9999"):
        database.downgrade("9999")
