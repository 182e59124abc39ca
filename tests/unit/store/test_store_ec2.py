"""The rows of the EC2 Query API, in either database."""

from __future__ import annotations

from wherry.model.accounts import Quota, Role
from wherry.model.ec2 import KeyPair, PlacementGroup, Reservation, Tags
from wherry.store import Store
from wherry.store.address import Address


def group(id: str, uid: int, name: str) -> PlacementGroup:
    return PlacementGroup(id=id, uid=uid, created=1.0, name=name, strategy="spread")


def test_objects(address: Address) -> None:
    store = Store(address)
    one = group("pg-1", 7, "near")
    assert store.ec2.add(one)
    assert not store.ec2.add(group("pg-2", 7, "near")), "an owner has a name once"
    assert store.ec2.add(group("pg-3", 8, "near")), "and another owner, too"
    assert store.ec2.add(KeyPair(id="pg-1", uid=7, created=1.0, name="near", type="rsa", fingerprint="", public=""))
    assert store.ec2.named(PlacementGroup, 7, "near") == one == store.ec2.one(PlacementGroup, "pg-1")
    assert store.ec2.named(PlacementGroup, 9, "near") is None is store.ec2.one(Tags, "pg-1")
    assert [found.id for found in store.ec2.all(PlacementGroup)] == ["pg-1", "pg-3"]
    store.ec2.put(one.model_copy(update={"strategy": "cluster"}))
    found = store.ec2.one(PlacementGroup, "pg-1")
    assert found and found.strategy == "cluster"
    assert store.ec2.drop(PlacementGroup, "pg-1") and not store.ec2.drop(PlacementGroup, "pg-1")
    assert len(store.ec2.all(KeyPair)) == 1
    store.close()


def test_a_reservation_is_found_by_its_token(address: Address) -> None:
    store = Store(address)
    made = Reservation(id="r-1", uid=7, created=1.0, cluster="c", count=2, type="w1.nano", image="ami-1", token="t")
    assert store.ec2.add(made) and not store.ec2.add(made.model_copy(update={"id": "r-2"}))
    assert store.ec2.named(Reservation, 7, "token t") == made
    assert store.ec2.add(made.model_copy(update={"id": "r-3", "token": ""}))
    store.close()


def test_they_end_with_their_account(address: Address) -> None:
    store = Store(address)
    ann = store.accounts.add_user("ann", Role.USER, Quota(), "", lambda uid: True)
    bob = store.accounts.add_user("bob", Role.USER, Quota(), "", lambda uid: True)
    for number, uid in enumerate((ann.uid, bob.uid)):
        assert store.ec2.add(group(f"pg-{number}", uid, "near"))
    store.accounts.drop_user("ann")
    assert [found.uid for found in store.ec2.all(PlacementGroup)] == [bob.uid]
    store.close()
