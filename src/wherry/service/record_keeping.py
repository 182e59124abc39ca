"""Backup, restore and migration of an instance's records, by processes of their own, as root.

Invariants: a backup changes nothing and needs nobody's leave; a restore and a migration hold the instance's lock, so no
daemon runs meanwhile; a refused command has changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.base.version import __version__
from wherry.cluster.placements import new_secret, secret_name
from wherry.model.identity import PROVIDER_SECRET
from wherry.service.database_choice import address_of, note_of, open_store
from wherry.service.instance_lock import InstanceLock
from wherry.store import Store
from wherry.store import backup as backups
from wherry.store.address import VARIABLE, shown
from wherry.store.database import Database, revisions
from wherry.store.lease import Lease


def backup(place: Instance, file: Path) -> dict[str, Any]:
    """Writes all records to a file; a daemon may run. NOT_FOUND when the instance has none."""
    if not place.keeps_records():
        raise Refused(Code.NOT_FOUND, f"instance {place.name} has no records", "nothing was ever up", "wherry up FILE")
    database = Database(address_of(place, _given()), create=False)
    try:
        rows = backups.write(database, file, __version__, place.name, now())
    finally:
        database.close()
    return {"file": str(file), "rows": rows, "bytes": file.stat().st_size, "database": database.shown}


def restore(place: Instance, file: Path, keys: Path | None = None) -> dict[str, Any]:
    """Replaces all records by those of a backup, and adds a file of `keys` to those of the instance. WRONG_STATE while
    a daemon runs, a cluster exists, or a fabric is up; see `wherry.store.backup.loaded` for files that are refused.

    Clusters whose secret no key opens get a new one, as their nodes are made again; such access keys are `lost_keys`,
    and `lost_provider` is true when such a secret for the provider of identities was removed.
    """
    with _alone(place), backups.loaded(file, place.keys_file) as (header, scratch):
        store, _lease = open_store(place, _given())
        try:
            _refuse_in_use(store)
            if keys:
                store.sealing.adopt(keys)
            lost = _lost(Store(scratch))
            rows = backups.replace(store.database, scratch)
            written = datetime.fromtimestamp(header.created).isoformat(" ", "seconds")
            text = f"the records of instance {header.instance} of {written} were restored"
            store.add_event("daemon.restored", place.name, text, version=header.version, revision=header.revision)
        finally:
            store.close()
    origin = {"instance": header.instance, "created": header.created, "version": header.version}
    return {"file": str(file), "rows": rows, "database": shown(store.database.address), **origin, **lost}


def _lost(restored: Store) -> dict[str, Any]:
    """The names of clusters that get a new secret here, the access keys that cannot be used, and whether the secret for
    the provider of identities is among the lost."""
    names = restored.lost_secrets()
    for name in names:
        if name == PROVIDER_SECRET:
            restored.drop_secret(name)
        else:
            restored.put_secret(name, new_secret())
    clusters = [cluster.name for cluster in restored.clusters() if secret_name(cluster.name) in names]
    keys = [f"{key.id} ({key.user}: {key.name})" for key in restored.access_keys.lost(restored.sealing)]
    return {"new_secrets": clusters, "lost_keys": keys, "lost_provider": PROVIDER_SECRET in names}


def migrate(place: Instance, revision: str) -> dict[str, Any]:
    """Migrates the records to a revision of the schema, older or newer; WRONG_STATE while a daemon runs."""
    if not place.keeps_records():
        raise Refused(Code.NOT_FOUND, f"instance {place.name} has no records", "nothing was ever up", "wherry up FILE")
    known = revisions()
    if revision not in known:
        remedy = f"wherry daemon migrate {known[-1]}"
        raise Refused(Code.NOT_FOUND, f"there is no revision {revision!r}", f"there are {', '.join(known)}", remedy)
    with _alone(place):
        database, note = Database(address_of(place, _given()), keys=place.keys_file), note_of(place)
        try:
            if note:
                Lease(database).require_own(note.id)
            before = database.revision()
            if before in known and known.index(before) > known.index(revision):
                database.downgrade(revision)
            else:
                database.upgrade(revision)
        finally:
            database.close()
    return {"from": before, "to": revision, "database": database.shown}


def _given() -> str:
    return os.environ.get(VARIABLE, "")


@contextmanager
def _alone(place: Instance) -> Iterator[None]:
    lock = InstanceLock(place)
    try:
        yield
    finally:
        lock.release()


def _refuse_in_use(store: Store) -> None:
    fabric, clusters = store.fabric(), store.clusters()
    if clusters:
        why = f"it has clusters, whose nodes would be forgotten: {', '.join(cluster.name for cluster in clusters)}"
        raise Refused(Code.WRONG_STATE, "the records cannot be replaced", why, "wherry down --all")
    if fabric:
        why = f"fabric {fabric.name} is up, and would be forgotten"
        raise Refused(Code.WRONG_STATE, "the records cannot be replaced", why, "wherry fabric down")
