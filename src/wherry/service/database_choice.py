"""The choice of the database for the records of an instance, and its opening.

Invariants: an instance that has records in one database never begins with another, whatever variables the shell has
from which its daemon is started: the first daemon with WHERRY_DATABASE_URL notes the URL in `state/database` (0600).
A database that has the records of another state directory is refused before anything in it is changed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance
from wherry.service.instance_lock import holder_text
from wherry.store import Store, tables
from wherry.store.address import VARIABLE, Address, database_url, same, shown
from wherry.store.database import Database
from wherry.store.lease import Lease


@dataclass(frozen=True)
class Note:
    """The note of an instance on its PostgreSQL database."""

    url: str
    id: str
    """Of the state directory; the database has it too."""


def note_of(place: Instance) -> Note | None:
    """The note; None for SQLite. FAILED when it is damaged."""
    try:
        return Note(**json.loads(place.database_note.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        what = f"{place.database_note} cannot be read"
        remedy = f"remove it, and name the database again by {VARIABLE}"
        raise Failed(Code.FAILED, what, "no daemon has written it", remedy) from None


def address_of(place: Instance, given: str) -> Address:
    """The database of the instance; `given` is the value of the variable, or empty. WRONG_STATE when the instance has
    its records in another one."""
    note, url = note_of(place), database_url(given) if given else None
    if url is None:
        return database_url(note.url) if note else place.database_file
    noted: Address = database_url(note.url) if note else place.database_file
    if same(noted, url) or not (note or place.database_file.exists()):
        return url
    what, why = f"{VARIABLE} names another database", f"instance {place.name} has its records in {shown(noted)}"
    remedy = f"unset {VARIABLE}; to change it: wherry daemon backup FILE, wherry down --all, wherry daemon restore FILE"
    raise Refused(Code.WRONG_STATE, what, why, remedy)


def taken_variable() -> str:
    """The value of the variable, which is removed from this process's environment: programs that it starts, some of
    them as users, need no password."""
    return os.environ.pop(VARIABLE, "")


def open_store(place: Instance, given: str, on_lost: Callable[[], object] = lambda: None) -> tuple[Store, Lease | None]:
    """The store of the instance, for the holder of its lock; with the lease of a PostgreSQL database, which is taken.

    `on_lost` is called when another daemon has taken the lease.
    """
    address = address_of(place, given)
    if isinstance(address, Path):
        return Store(address, place.keys_file), None
    before = note_of(place)
    id = before.id if before else secrets.token_hex(16)
    database = Database(address, keys=place.keys_file)
    lease = Lease(database, on_lost)
    lease.require_own(id)
    new = Note(address.render_as_string(hide_password=False), id)
    if new != before:  # first: a database that had the id, and a state directory that has not, would be nobody's
        write_atomically(place.database_note, json.dumps(asdict(new)).encode(), lasting=True)
    try:
        store = Store(database)
        lease.take(id, holder_text(os.getpid()), certain=True)  # the holder of the instance's lock is alone
    except BaseException:
        if before is None:
            place.database_note.unlink(missing_ok=True)
        raise
    return store, lease


def forget(place: Instance) -> str:
    """Removes the instance's tables from its PostgreSQL database; why that failed, or an empty text."""
    try:
        note = note_of(place)
        if note is None:
            return ""
        database = Database(database_url(note.url))
        try:
            Lease(database).require_own(note.id)
            if database.revision():
                with database.write_unasked() as connection:  # the keys that open them may be lost
                    connection.execute(tables.secrets.delete())
                database.upgrade()
                database.downgrade("base")
        finally:
            database.close()
    except WherryError as error:
        return str(error)
    return ""
