"""The database that an instance uses, and that no password is ever shown."""

from __future__ import annotations

import json
import logging
import os
import traceback
from pathlib import Path

import pytest
from rest_service import Here

from postgresql_server import PASSWORD, QUOTED, Server
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import as_root
from wherry.client import identity
from wherry.model.owner import Owner
from wherry.service import doctor
from wherry.service.database_choice import address_of, forget, note_of, open_store, taken_variable
from wherry.store import Store
from wherry.store.address import VARIABLE, database_url, shown
from wherry.store.database import Database

SECRET = "s3cr3t"


def told(error: BaseException) -> str:
    """All that a log would have of an error."""
    texts = json.dumps(error.to_dict()) if isinstance(error, WherryError) else ""
    return texts + "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://u:{SECRET}@h:x{SECRET}/d",
        f"postgresql://u:a@{SECRET}@h/d",
        f"postgresql://u:{SECRET}@h",
        f"postgresql://u:{SECRET}@h/",
        f"mysql://u:{SECRET}@h/d",
        f"u:{SECRET}@h/d",
        f"postgresql://[{SECRET}",
        f"sqlite:///{SECRET}",
        SECRET,
    ],
)
def test_what_is_no_url_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(Refused) as caught:
        database_url(text)
    assert caught.value.code is Code.USAGE and SECRET not in told(caught.value) and caught.value.next


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"postgresql://u:{SECRET}@h:5433/d", "postgresql://u@h:5433/d"),
        (f"postgres://u:{SECRET}@h/d?sslmode=require", "postgresql://u@h/d"),
        (f"postgresql+psycopg://h/d?user=u&password={SECRET}", "postgresql://h/d"),
        (f"postgresql://u:{SECRET}@/d?host=/run/pg", "postgresql://u@/run/pg/d"),
    ],
)
def test_what_is_shown_has_no_password(text: str, expected: str) -> None:
    assert shown(database_url(text)) == expected


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failed) as caught:
        Store(database_url(f"postgresql://u:{SECRET}@/d?host={tmp_path}&password={SECRET}2"))
    assert SECRET not in told(caught.value) and "No such file" in caught.value.why


@pytest.mark.parametrize(("user", "reason"), [(f"wherry:{SECRET}", "authentication"), (f"wherry:{QUOTED}", "exist")])
def test_what_the_server_refuses(postgresql: Server, user: str, reason: str) -> None:
    url = f"postgresql://{user}@/none?host={postgresql.directory}"
    with pytest.raises(Failed) as caught:
        Store(database_url(url))
    assert reason in caught.value.why and "server" in caught.value.next
    assert not any(word in told(caught.value) for word in (SECRET, PASSWORD, QUOTED))


def test_a_user_without_rights(postgresql: Server) -> None:
    url = postgresql.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    with postgresql.connect(name) as connection:
        connection.execute(f"CREATE ROLE guest{name} LOGIN PASSWORD '{SECRET}'")
    with pytest.raises(Failed, match="permission denied") as caught:
        Store(database_url(f"postgresql://guest{name}:{SECRET}@/{name}?host={postgresql.directory}"))
    assert SECRET not in told(caught.value)


def test_no_parameter_of_a_statement_is_in_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They may have secrets. The error here is a mistake of ours, which is logged whole."""
    store = Store(tmp_path / "wherry.db")
    try:
        store.put_setting(SECRET, None)  # type: ignore[arg-type]
    except Exception:
        logging.getLogger("wherry").exception("a mistake")
    assert "IntegrityError" in caplog.text and SECRET not in caplog.text


def test_the_variable_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"postgresql://u:{SECRET}@h/d")
    monkeypatch.setenv("WHERRY_INSTANCE", "main")
    command = as_root(["up", "FILE"])
    assert SECRET not in command and f"--preserve-env={VARIABLE}" in command and "WHERRY_INSTANCE=main" in command
    assert VARIABLE not in identity.environment(Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd="/"))
    assert SECRET in taken_variable() and VARIABLE not in os.environ


def test_an_instance_keeps_to_its_database(postgresql: Server, tmp_path: Path) -> None:
    place, url = Here("one", tmp_path), postgresql.new_database()
    place.state.mkdir()
    assert address_of(place, "") == place.database_file and not place.keeps_records()
    store, lease = open_store(place, url)
    store.put_setting("a", "b")
    store.close()
    assert lease and place.keeps_records() and not place.database_file.exists()
    assert place.database_note.stat().st_mode & 0o777 == 0o600
    again, _ = open_store(place, "")  # by a shell that lacks the variable
    assert again.setting("a") == "b"
    again.close()
    with pytest.raises(Refused, match="another database") as caught:
        open_store(place, postgresql.new_database())
    assert QUOTED not in told(caught.value) and PASSWORD not in told(caught.value) and "backup" in caught.value.next
    url = f"{url}&application_name=x"  # the same database
    open_store(place, url)[0].close()
    note = note_of(place)
    assert note and "application_name" in note.url


def test_an_instance_of_sqlite_does_not_begin_anew(tmp_path: Path) -> None:
    place = Here("one", tmp_path)
    open_store(place, "")[0].close()
    with pytest.raises(Refused, match="another database"):
        open_store(place, "postgresql://h/d")
    assert not place.database_note.exists()


def test_a_database_has_one_instance(postgresql: Server, tmp_path: Path) -> None:
    url, one, other = postgresql.new_database(), Here("one", tmp_path / "1"), Here("two", tmp_path / "2")
    for place in (one, other):
        place.state.mkdir(parents=True)
    open_store(one, url)[0].close()
    with pytest.raises(Refused, match="belongs to another instance"):
        open_store(other, url)
    assert not other.keeps_records()
    assert forget(other) == "" and forget(one) == ""
    assert Database(database_url(url)).revision() == ""
    open_store(other, url)[0].close()
    assert "belongs to another" in forget(one), "the later records of another instance are not removed"


def test_a_damaged_note(tmp_path: Path) -> None:
    place = Here("one", tmp_path)
    place.state.mkdir()
    place.database_note.write_text('{"url": 1')
    with pytest.raises(Failed, match="cannot be read"):
        open_store(place, "")
    assert "cannot be read" in forget(place) and not place.database_file.exists()


def test_the_doctor_names_the_database(postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Here("one", tmp_path)
    monkeypatch.setattr(doctor, "instance", lambda: place)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert [finding.text for finding in doctor._database()] == [f"SQLite, {place.database_file}"]
    monkeypatch.setenv(VARIABLE, postgresql.new_database())
    (finding,) = doctor._database()
    assert finding.text.startswith("PostgreSQL 1") and "postgresql://wherry@/" in finding.text
    monkeypatch.setenv(VARIABLE, f"postgresql://u:{SECRET}@/d?host={tmp_path}")
    (finding,) = doctor._tried("database", doctor._database)
    assert finding.health == "missing" and SECRET not in json.dumps(finding.to_dict())
