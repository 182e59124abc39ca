"""Backups: of one database and into the other, as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rest_service import Here
from test_store import FABRIC, cluster, node

from postgresql_server import Server
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.model.records import Job, JobState, Move, Operation, OperationState, Phase
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.database_choice import address_of, open_store
from wherry.service.instance_lock import InstanceLock
from wherry.service.record_keeping import backup, migrate, restore
from wherry.store import Store, tables
from wherry.store.address import VARIABLE, Address
from wherry.store.database import Database, revisions

TIME = 1_764_217_990.123_456_7


def fill(store: Store) -> None:
    store.put_fabric(parse(FabricSpec, FABRIC, "test"))
    store.set_host_flag("a1", "drained", True)
    store.put_cluster(cluster())
    for index in range(3):
        store.put_node(node(index))
    store.put_secret("hello", "k\u00e9y \"'\\")
    store.put_setting("balance", "on")
    for name in ("b", "c", "a"):
        move = Move(
            id=name, node="hello-1", cluster="hello", source="a1", destination="b1", phase=Phase.DONE, created=TIME
        )
        store.put_move(move)
        store.put_operation(Operation(id=name, kind="up", target="a", state=OperationState.RUNNING, created=TIME))
    job = Job(
        id="job-1", cluster="hello", argv=("./a", "\0"), ranks=4, mpi="openmpi", uid=0, gid=0, cwd="/",
        state=JobState.RUNNING, created=TIME,
    )  # fmt: skip
    store.put_job(job)
    columns = {"time": TIME, "kind": "test", "target": "hello", "by": "ann", "owner": 2**40}
    rows = [{**columns, "text": f"{number} \u20ac", "data": f'{{"number": {number}}}'} for number in range(1199)]
    with store.database.write() as connection:
        connection.execute(tables.events.insert(), rows)
    store.add_event("test", "hello", "1199 \u20ac", number=1199)


def records(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """All rows but for the event of the restore."""
    found = {}
    with database.read() as connection:
        for table in tables.metadata.sorted_tables:
            if table.name != "leadership":
                rows = connection.execute(sa.select(table).order_by(*table.primary_key)).all()
                found[table.name] = [tuple(row) for row in rows if "daemon.restored" not in row]
    return found


@pytest.fixture
def place(address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """An instance with records in either database, and no daemon."""
    return instance_at(tmp_path / "one", address, monkeypatch)


def instance_at(top: Path, address: Address, monkeypatch: pytest.MonkeyPatch) -> Here:
    place = Here("one", top)
    place.state.mkdir(parents=True)
    given = "" if isinstance(address, Path) else address.render_as_string(hide_password=False)
    monkeypatch.setenv(VARIABLE, given)
    open_store(place, given)[0].close()
    monkeypatch.delenv(VARIABLE)
    return place


def store_of(place: Instance) -> Store:
    return Store(address_of(place, ""), place.keys_file)


@pytest.mark.parametrize("other", ["postgresql", pytest.param("sqlite", marks=pytest.mark.thorough)])
def test_from_either_database_into_either(
    place: Here, other: str, postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file = store_of(place), tmp_path / "backup"
    fill(store)
    told = backup(place, file)
    expected = records(store.database)
    assert told["rows"] == sum(map(len, expected.values())) and file.stat().st_mode & 0o777 == 0o600
    copy = Here("two", tmp_path / "two")
    copy.state.mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, postgresql.new_schema() if other == "postgresql" else "")
    assert restore(copy, file, place.keys_file)["rows"] == told["rows"]
    monkeypatch.delenv(VARIABLE)
    restored = store_of(copy)
    assert records(restored.database) == expected and restored.secret("hello") == store.secret("hello")
    assert [move.id for move in restored.moves()] == ["b", "c", "a"]
    last = restored.events(after=1200)
    assert [event.kind for event in last] == ["daemon.restored"] and "instance one" in last[0].text
    assert restored.add_event("test", "a", "b").id > last[0].id


def test_a_backup_is_one_moment_of_a_store_that_is_written(place: Here, tmp_path: Path) -> None:
    """Each write puts the same number into a setting and an event: none of the backups has one without the other."""
    store, end = store_of(place), threading.Event()

    def write() -> None:
        number = 0
        while not end.is_set():
            number += 1
            with store.database.write() as connection:
                connection.execute(tables.settings.delete())
                connection.execute(tables.secrets.delete())
                for table in (tables.secrets, tables.settings):
                    connection.execute(table.insert().values(name="n", value=str(number)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for number in range(10):
            backup(place, tmp_path / str(number))
            rows = map(json.loads, (tmp_path / str(number)).read_text().splitlines())
            values = [row["row"]["value"] for row in rows if row.get("table") in ("settings", "secrets")]
            assert len(values) in (0, 2) and len(set(values)) <= 1, values
            seen |= set(values)
    finally:
        end.set()
        writer.join()
    assert len(seen) > 1


def reseal(lines: list[bytes]) -> bytes:
    """The lines with a last line that fits them."""
    whole = b"".join(lines)
    last = json.dumps({"rows": len(lines) - 1, "sha256": hashlib.sha256(whole).hexdigest()}).encode()
    return whole + last + b"\n"


def change(lines: list[bytes], number: int, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """One line changed on purpose, with the right checksum."""
    value = json.loads(lines[number])
    edit(value)
    return reseal([*lines[:number], json.dumps(value).encode() + b"\n", *lines[number + 1 : -1]])


DAMAGES: dict[str, Callable[[list[bytes]], bytes]] = {
    "empty": lambda lines: b"",
    "without its end": lambda lines: b"".join(lines[:-1]),
    "cut in a line": lambda lines: b"".join(lines)[:-30],
    "a letter": lambda lines: b"".join(lines).replace(b"hello", b"hallo", 1),
    "a row less": lambda lines: b"".join([*lines[:3], *lines[4:]]),
    "a row more": lambda lines: b"".join([*lines[:-1], lines[-2], lines[-1]]),
    "appended": lambda lines: b"".join(lines) + b"{}\n",
    "no JSON": lambda lines: reseal([*lines[:2], b"\xff\n"]),
    "no header": lambda lines: reseal(lines[1:-1]),
    "a header of another kind": lambda lines: change(lines, 0, lambda line: line.update(more=1)),
    "an unknown table": lambda lines: change(lines, 1, lambda line: line.update(table="users2")),
    "a table that is not the records'": lambda lines: change(lines, 1, lambda line: line.update(table="leadership")),
    "a missing column": lambda lines: change(lines, 1, lambda line: line["row"].popitem()),
    "a further column": lambda lines: change(lines, 1, lambda line: line["row"].update(more=1)),
    "a number for a text": lambda lines: change(lines, 1, lambda line: line["row"].update(name=5)),
    "nothing for a text": lambda lines: change(lines, 1, lambda line: line["row"].update(record=None)),
    "a row twice": lambda lines: reseal([*lines[:2], lines[1], *lines[2:-1]]),
    "a list": lambda lines: reseal([lines[0], b"[1]\n"]),
}


def test_a_damaged_file_changes_nothing(place: Here, tmp_path: Path) -> None:
    other = Store(tmp_path / "other.db")
    other.put_cluster(cluster())
    other.put_node(node(0))
    other.put_node(node(1))
    file = tmp_path / "backup"
    from wherry.store import backup as backups

    backups.write(other.database, file, "1", "other", TIME)
    lines = file.read_bytes().splitlines(keepends=True)
    store = store_of(place)
    store.put_setting("mine", "x")
    before = records(store.database)
    for name, damage in DAMAGES.items():
        file.write_bytes(damage(lines))
        with pytest.raises(Refused) as caught:
            restore(place, file)
            pytest.fail(f"{name} was not seen")
        error = caught.value
        assert error.code is Code.INVALID_FILE and len(error.why.split()) > 3, name
        assert "nothing was changed" in error.next, name
        assert records(store.database) == before, name


def test_a_newer_revision_or_format_is_refused(place: Here, tmp_path: Path) -> None:
    file, lines = tmp_path / "backup", list[bytes]()
    backup(place, file)
    lines = file.read_bytes().splitlines(keepends=True)
    for key, value in (("revision", "9999"), ("wherry_backup", 2)):
        file.write_bytes(change(lines, 0, lambda line, pair=(key, value): line.update([pair])))
        with pytest.raises(Refused, match="newer version") as caught:
            restore(place, file)
        assert caught.value.code is Code.VERSION_MISMATCH and str(value) in caught.value.why


def test_a_backup_of_an_older_revision_is_migrated(place: Here, tmp_path: Path) -> None:
    store = store_of(place)
    for name in ("b", "a"):
        store.put_operation(Operation(id=name, kind="up", target="a", state=OperationState.DONE, created=TIME))
    store.close()
    assert migrate(place, "0003")["from"] == revisions()[-1]
    file = tmp_path / "backup"
    assert backup(place, file)["rows"] == 2 and json.loads(file.read_bytes().splitlines()[0])["revision"] == "0003"
    assert migrate(place, revisions()[-1])["from"] == "0003"
    assert restore(place, file)["rows"] == 2
    assert [operation.id for operation in store_of(place).operations()] == ["b", "a"]


def test_a_restore_needs_an_instance_that_is_down(place: Here, tmp_path: Path) -> None:
    file, store = tmp_path / "backup", store_of(place)
    backup(place, file)
    daemon = InstanceLock(place)
    for act in (lambda: restore(place, file), lambda: migrate(place, "0003")):
        with pytest.raises(Refused, match="a daemon of this instance runs already"):
            act()
    daemon.release()
    store.put_fabric(parse(FabricSpec, FABRIC, "test"))
    with pytest.raises(Refused, match="cannot be replaced") as caught:
        restore(place, file)
    assert caught.value.code is Code.WRONG_STATE and "fabric two is up" in caught.value.why
    store.put_cluster(cluster())
    with pytest.raises(Refused, match="cannot be replaced") as caught:
        restore(place, file)
    assert "hello" in caught.value.why and store.cluster("hello")


def test_files_that_cannot_be(place: Here, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        restore(place, tmp_path / "missing")
    assert refused.value.code is Code.NOT_FOUND
    with pytest.raises(Failed, match="cannot be written"):
        backup(place, tmp_path / "no" / "directory")
    with pytest.raises(Refused, match="has no records"):
        backup(Here("two", tmp_path / "two"), tmp_path / "backup")
    with pytest.raises(Refused, match="no revision '0000'"):
        migrate(place, "0000")
    assert not [name for name in os.listdir(tmp_path) if "backup" in name], "nothing is left of a failed backup"


def test_every_column_is_of_a_type_that_a_backup_carries(address: Address) -> None:
    """JSON has no bytes and no dates."""
    with Store(address).database.read() as connection:
        metadata = sa.MetaData()
        metadata.reflect(connection)
        kinds = {column.type.python_type for table in metadata.tables.values() for column in table.c}
    assert kinds <= {str, int, float, bool}
