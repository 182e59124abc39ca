"""Backups: all records of an instance as JSON lines, which either database can be filled from.

First a header, then one line for each row, then the number of rows and the SHA-256 of all lines before. Invariants: a
backup is one snapshot; a file that is damaged, incomplete or of a newer schema changes nothing, as it is loaded into a
database of its own first.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from wherry.base.errors import Code, Failed, Refused
from wherry.store.database import Database, revisions

_FORMAT = 1
_ROWS = 500
"""Rows that are read and written at once."""
_OURS = ("alembic_version", "leadership")
"""Tables that belong to a database, not to the records in it."""


@dataclass(frozen=True)
class Header:
    """The first line of a backup."""

    wherry_backup: int
    """Of the format."""
    revision: str
    """Of the schema."""
    version: str
    instance: str
    created: float


def write(database: Database, path: Path, version: str, instance: str, created: float) -> int:
    """Writes all rows of a database and returns their number. The file (0600) appears when it is complete.

    FAILED when it cannot be written, NOT_FOUND when the database has no records yet.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                number = _write(database, file, version, instance, created)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Failed(Code.FAILED, f"{path} cannot be written", str(error), f"df -h {path.parent}") from error
    return number


def _write(database: Database, file: BinaryIO, version: str, instance: str, created: float) -> int:
    digest, number = hashlib.sha256(), 0

    def line(value: object) -> None:
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        digest.update(data)
        file.write(data)

    with database.snapshot() as connection:
        metadata = _present(connection)
        if "alembic_version" not in metadata.tables:
            raise Refused(Code.NOT_FOUND, "there are no records yet", database.shown, "wherry daemon start")
        revision = str(connection.scalar(sa.select(metadata.tables["alembic_version"].c.version_num)))
        _require_known(revision, database.shown)
        line(asdict(Header(_FORMAT, revision, version, instance, created)))
        place = "ctid" if database.postgresql else "rowid"
        for table in metadata.sorted_tables:
            if table.name not in _OURS:
                for row in connection.execute(sa.select(table).order_by(_order(table, place))).mappings():
                    line({"table": table.name, "row": dict(row)})
                    number += 1
    file.write(json.dumps({"rows": number, "sha256": digest.hexdigest()}).encode() + b"\n")
    return number


def _order(table: sa.Table, place: str) -> sa.ColumnElement[int]:
    """The order in which rows were inserted; in schemas that do not note it, where they stand."""
    return table.c.number if "number" in table.c else sa.literal_column(place)


@contextmanager
def loaded(path: Path, keys: Path) -> Iterator[tuple[Header, Database]]:
    """A backup in a temporary database, migrated to the newest revision; secrets in plain text are sealed by `keys`.

    NOT_FOUND without the file, INVALID_FILE when it is damaged, VERSION_MISMATCH when it is of a newer schema.
    """
    with tempfile.TemporaryDirectory(prefix="wherry-restore-") as directory:
        scratch = Database(Path(directory) / "scratch.db", keys=keys)
        try:
            try:
                with open(path, "rb") as file:
                    header = _load(file, scratch, path)
            except OSError as error:
                raise Refused(Code.NOT_FOUND, f"{path} cannot be read", str(error), f"ls -l {path}") from error
            except (ValueError, KeyError, TypeError, AttributeError, sa.exc.SQLAlchemyError) as error:
                remedy = "use another backup; nothing was changed"
                reason = str(getattr(error, "orig", None) or error)
                raise Refused(Code.INVALID_FILE, f"{path} is not a whole backup", reason, remedy) from error
            scratch.upgrade()
            yield header, scratch
        finally:
            scratch.close()


def replace(database: Database, scratch: Database) -> int:
    """Replaces all records by those of `loaded`, in one transaction, and returns the number of rows."""
    number = 0
    with scratch.read() as source, database.write() as connection:
        theirs = _present(source).tables
        records = [table for table in _present(connection).sorted_tables if table.name not in _OURS]
        for table in reversed(records):
            connection.execute(table.delete())
        for table in records:
            found = theirs[table.name]
            rows = source.execute(sa.select(found).order_by(_order(found, "rowid"))).mappings()
            for part in rows.partitions(_ROWS):
                connection.execute(table.insert(), [dict(row) for row in part])
                number += len(part)
            if database.postgresql and table.autoincrement_column is not None:
                _continue_numbers(connection, table, table.autoincrement_column.name)
    return number


def _continue_numbers(connection: Connection, table: sa.Table, column: str) -> None:
    """Has new rows numbered above all that are there and all that ever were, as clients resume by these numbers."""
    sequence = connection.scalar(sa.text(f"SELECT pg_get_serial_sequence('{table.name}', '{column}')"))
    if sequence:
        largest = f"GREATEST((SELECT last_value FROM {sequence}), (SELECT max({column}) FROM {table.name}))"
        connection.execute(sa.text(f"SELECT setval('{sequence}', {largest})"))


def _load(file: BinaryIO, scratch: Database, path: Path) -> Header:
    lines = _Checked(file)
    header = Header(**json.loads(next(lines, b"")))
    if header.wherry_backup != _FORMAT:
        what = f"{path} is of a newer version of Wherry"
        raise Refused(Code.VERSION_MISMATCH, what, f"its format is {header.wherry_backup}", "install that version")
    _require_known(header.revision, str(path))
    scratch.upgrade(header.revision)
    with scratch.write() as connection:
        known = {name: table for name, table in _present(connection).tables.items() if name not in _OURS}
        for name, group in groupby(map(json.loads, lines), _table_name):
            if name not in known:
                raise ValueError(f"revision {header.revision} has no table {name!r}")
            table = known[name]
            rows = (_fitting(table, line["row"]) for line in group)
            while batch := list(islice(rows, _ROWS)):
                connection.execute(table.insert(), batch)
    lines.require_whole()
    return header


def _table_name(line: Any) -> str:
    if not (isinstance(line, dict) and line.keys() == {"table", "row"} and isinstance(line["row"], dict)):
        raise ValueError("a line of it is no row of a table")
    return str(line["table"])


class _Checked(Iterator[bytes]):
    """The lines of a backup except the last, which has the number of rows and their checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._number = -1  # the header is no row
        self._next = file.readline()

    def __next__(self) -> bytes:
        line, after = self._next, self._file.readline()
        if not after:
            raise StopIteration
        self._digest.update(line)
        self._number, self._next = self._number + 1, after
        return line

    def require_whole(self) -> None:
        """ValueError unless the last line fits those before it."""
        if json.loads(self._next) != {"rows": self._number, "sha256": self._digest.hexdigest()}:
            raise ValueError("its rows do not have the number and checksum of its last line")


def _fitting(table: sa.Table, row: dict[str, Any]) -> dict[str, Any]:
    """The row; ValueError unless it has all columns of the table, no others, and values of their types."""
    if set(row) != set(table.c.keys()):
        raise ValueError(f"a row of {table.name} has other columns")
    for column in table.c:
        value, kind = row[column.name], column.type.python_type
        if value is None and column.nullable or type(value) is kind or (kind is float and type(value) is int):
            continue
        raise ValueError(f"{column.name} of a row of {table.name} is no {kind.__name__}")
    return row


def _present(connection: Connection) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return metadata


def _require_known(revision: str, where: str) -> None:
    known = revisions()
    if revision not in known:
        why = f"its revision is {revision}, the newest one known here is {known[-1]}"
        raise Refused(Code.VERSION_MISMATCH, f"{where} is of a newer version of Wherry", why, "install that version")
