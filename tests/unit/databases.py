"""Databases of SQLite to begin with. Migrations and compiled statements take longer than most tests, so a process has
them once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy.engine import Engine

from wherry.store import database
from wherry.store.database import Database
from wherry.store.store import Store


@pytest.fixture(scope="session", autouse=True)
def compile_once() -> Iterator[None]:
    """All engines of SQLite find statements that one of them has compiled: SQLAlchemy keeps these by its dialect."""
    made, first = database._sqlite, list[Engine]()

    def sharing(path: Path) -> Engine:
        engine = made(path)
        if not first:
            first.append(engine)
        engine.dialect = engine.pool._dialect = first[0].dialect
        engine._compiled_cache = first[0]._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_sqlite", sharing)
        yield


class Migrated(Database):
    """An empty database at a path, as the first store leaves it there; a store of it does not look for migrations."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.write_bytes(_migrated())

    def upgrade(self, revision: str = "head") -> None:
        if revision != "head":
            super().upgrade(revision)


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as directory:
        Store(Path(directory) / "state.db").close()
        return (Path(directory) / "state.db").read_bytes()
