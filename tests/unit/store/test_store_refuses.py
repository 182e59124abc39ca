"""A refusal of SQLite reaches the user as an error with a reason and a remedy, not as a mistake of ours."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from wherry.base.errors import Code, Failed, Refused
from wherry.service.operations import Operations
from wherry.store import Store


def test_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    operations = Operations(store)
    store.close()

    @sa.event.listens_for(store._engine, "connect")
    def _full(connection, _record) -> None:
        connection.execute("PRAGMA max_page_count=1")

    with pytest.raises(Failed) as refused:
        for number in range(1000):
            store.put_setting(f"name {number}", "x" * 10_000)
    assert refused.value.code is Code.FAILED and "full" in refused.value.why and refused.value.next.startswith("df -h ")
    with pytest.raises(Failed, match="cannot be written"):
        operations.start("up", "x" * 10_000, lambda _: None)
    assert operations.conflicting_operation(exclusive=["cluster x"]) is None
    assert store.setting("name 1") in ("", "x" * 10_000)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "wherry.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Failed) as refused:
        Store(tmp_path / "wherry.db")
    assert "not a database" in refused.value.why and str(tmp_path) in refused.value.why


def test_a_newer_database(tmp_path: Path) -> None:
    Store(tmp_path / "wherry.db").close()
    with sqlite3.connect(tmp_path / "wherry.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Refused) as refused:
        Store(tmp_path / "wherry.db")
    assert refused.value.code is Code.VERSION_MISMATCH and "newer" in refused.value.what


def test_a_mistake_of_ours_stays_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    with pytest.raises(sa.exc.IntegrityError), store._write() as connection:
        connection.execute(sa.text("INSERT INTO settings (name, value) VALUES ('a', NULL)"))


def test_a_row_of_another_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    with sqlite3.connect(tmp_path / "wherry.db") as connection:
        record = '{"id": "job-1", "of_later": 1}'
        connection.execute("INSERT INTO jobs (id, cluster, created, record) VALUES ('job-1', 'a', 1.0, ?)", [record])
    with pytest.raises(Failed) as refused:
        store.jobs()
    assert refused.value.code is Code.VERSION_MISMATCH and "of_later" in refused.value.why
    assert "wherry down --all" in refused.value.next
