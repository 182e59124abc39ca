"""Secrets at rest: sealed in the database and in backups, in old databases too, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from test_backup import instance_at, store_of
from test_store import cluster

from wherry.base.errors import Failed, Refused
from wherry.base.paths import Instance
from wherry.model.accounts import AccessKey
from wherry.model.identity import PROVIDER_SECRET
from wherry.service.database_choice import forget
from wherry.service.record_keeping import backup, migrate, restore
from wherry.store import Store, account_tables, tables
from wherry.store.access_keys import AccessKeys
from wherry.store.address import Address
from wherry.store.database import Database
from wherry.store.sealing import Sealing

PLAIN = "c0ffee" * 8
NAME = "cluster:hello"


@pytest.fixture
def sealing(tmp_path: Path) -> Sealing:
    """With a file of its own, which is not there yet."""
    return Sealing(tmp_path / "keys" / "secrets.key")


@pytest.fixture
def place(address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance with a cluster and an access key."""
    place = instance_at(tmp_path / "one", address, monkeypatch)
    store = store_of(place)
    store.put_cluster(cluster())
    store.put_secret(NAME, PLAIN)
    add_key(store, "WKIA1", store.sealing.seal("WKIA1", "of ann"))
    store.close()
    return place


def add_key(store: Store, id: str, sealed: str) -> None:
    record = AccessKey(id=id, user="ann", name="mine", created=1.0, expires=2.0).model_dump_json()
    with store.database.write() as connection:
        connection.execute(account_tables.access_keys.insert().values(id=id, user="ann", sealed=sealed, record=record))


def value(database: Database, name: str = NAME) -> str:
    with database.read() as connection:
        return str(connection.scalar(sa.select(tables.secrets.c.value).where(tables.secrets.c.name == name)))


def test_a_secret_opens_under_its_own_name_by_its_own_key(sealing: Sealing, tmp_path: Path) -> None:
    sealed = sealing.seal("hello", "a b\u00e9")
    assert sealing.open("hello", sealed) == "a b\u00e9" and "a b" not in sealed
    assert sealing.path.stat().st_mode & 0o777 == 0o600
    for other, name in ((sealing, "hallo"), (Sealing(tmp_path / "other.key"), "hello")):
        other.seal("any", "")
        with pytest.raises(Failed, match=f"the secret of {name} cannot be read"):
            other.open(name, sealed)
    assert not sealing.opens("hello", sealed[:-2])


def test_keys_that_are_lost_damaged_or_open_are_named_and_not_replaced(sealing: Sealing) -> None:
    sealed = sealing.seal("hello", "x")
    keys = sealing.path.read_bytes()
    sealing.path.chmod(0o640)
    with pytest.raises(Failed, match="is not used") as caught:
        sealing.open("hello", sealed)
    assert caught.value.next == f"chmod 600 {sealing.path}"
    sealing.path.chmod(0o600)
    for content in (b"", b"damaged"):
        sealing.path.write_bytes(content)
        with pytest.raises(Failed, match="has no keys"):
            sealing.seal("hello", "y")
    sealing.path.write_bytes(keys)
    assert sealing.open("hello", sealed) == "x"
    sealing.path.unlink()
    with pytest.raises(Failed, match="has no keys"):
        sealing.open("hello", sealed)


def test_keys_of_another_machine_open_and_ones_own_seal(sealing: Sealing, tmp_path: Path) -> None:
    other = Sealing(tmp_path / "other.key")
    mine, theirs = sealing.seal("a", "1"), other.seal("b", "2")
    sealing.adopt(other.path)
    sealing.adopt(other.path)
    assert (sealing.open("a", mine), sealing.open("b", theirs)) == ("1", "2")
    assert len(sealing.path.read_bytes().split()) == 2
    assert not other.opens("c", sealing.seal("c", "3"))


def test_no_secret_is_plain_in_the_database_and_its_backup(place: Instance, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    backup(place, file)
    kept = [file, *place.state.glob("wherry.db*")]
    assert not [path.name for path in kept if PLAIN.encode() in path.read_bytes()]
    assert PLAIN not in value(store_of(place).database) and store_of(place).secret(NAME) == PLAIN


def test_secrets_of_an_earlier_database_are_sealed_and_opened_again(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a deleted one leaves no trace in the file; the key of access keys is taken over, and handed back."""
    place = instance_at(tmp_path / "one", address, monkeypatch)
    migrate(place, "0008")
    earlier, deleted = place.state / "ec2.key", "deadbeef" * 8
    key = Fernet.generate_key()
    earlier.write_bytes(key)
    earlier.chmod(0o600)
    database = Database(store_address(place), keys=place.keys_file)
    with database.write() as connection:
        for name, secret in ((NAME, PLAIN), ("cluster:gone", deleted)):
            connection.execute(tables.secrets.insert().values(name=name, value=secret))
    with database.write() as connection:
        connection.execute(tables.secrets.delete().where(tables.secrets.c.name == "cluster:gone"))
    store = Store(database)
    add_key(store, "WKIA1", Fernet(key).encrypt(b"WKIA1 of ann").decode())
    assert value(database) != PLAIN and store.secret(NAME) == PLAIN
    assert store.sealing.open("WKIA1", sealed_key(store)) == "of ann"
    files = [path.read_bytes() for path in place.state.glob("wherry.db*")]
    assert not any(secret.encode() in content for content in files for secret in (PLAIN, deleted))
    earlier.unlink()
    store.close()
    migrate(place, "0008")
    assert value(database) == PLAIN
    assert Fernet(earlier.read_bytes()).decrypt(sealed_key(store).encode()) == b"WKIA1 of ann"


def store_address(place: Instance) -> Address:
    store = store_of(place)
    store.database.downgrade("0008")
    store.close()
    return store.database.address


def sealed_key(store: Store) -> str:
    with store.database.read() as connection:
        return str(connection.scalar(sa.select(account_tables.access_keys.c.sealed)))


def test_no_way_back_without_the_keys_but_an_end(place: Instance) -> None:
    place.keys_file.unlink()
    with pytest.raises(Failed, match="has no keys"):
        migrate(place, "0008")
    assert Database(store_of(place).database.address).revision() >= "0009"
    assert forget(place) == ""


def test_a_restore_elsewhere_tells_which_keys_are_lost(place: Instance, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    store_of(place).put_secret(PROVIDER_SECRET, "theirs")
    backup(place, file)
    other = instance_at(tmp_path / "two", tmp_path / "two" / "state" / "wherry.db", pytest.MonkeyPatch())
    told = restore(other, file)
    assert told["new_secrets"] == ["hello"] and told["lost_keys"] == ["WKIA1 (ann: mine)"] and told["lost_provider"]
    store = store_of(other)
    with pytest.raises(Refused, match="there is no secret"):
        store.secret(PROVIDER_SECRET)
    assert store.secret(NAME) != PLAIN and len(store.secret(NAME)) == 64, "wherry up repairs the cluster by it"
    assert isinstance(store.access_keys, AccessKeys) and len(store.access_keys.lost(store.sealing)) == 1
    store.sealing.adopt(place.keys_file)
    assert store.access_keys.lost(store.sealing) == [], "the keys may come later"
    store.drop_cluster("hello")
    told = restore(other, file, place.keys_file)
    assert told["new_secrets"] == told["lost_keys"] == [] and not told["lost_provider"]
    assert store_of(other).secret(NAME) == PLAIN and store_of(other).secret(PROVIDER_SECRET) == "theirs"
