"""Databases of SQLite to begin with: the migrations take longer than most tests, so they are done once in a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.store.store import Store


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as directory:
        Store(Path(directory) / "state.db").close()
        return (Path(directory) / "state.db").read_bytes()


def migrated(path: Path) -> Path:
    """An empty database at the path, as a store leaves it that made it, beside directories of its own."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(_migrated())
    return path
