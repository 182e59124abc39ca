"""Access keys: their users, their lifetime, and how they are stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from accounts_world import ROOT, Accounts
from rest_service import Service

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.cli.key import REGION
from wherry.model.accounts import Role
from wherry.service import access_keys
from wherry.service.credentials import PeerCredentials
from wherry.service.ec2 import signature


@pytest.fixture
def world(service: Service) -> Accounts:
    """Two users and an admin."""
    world = Accounts(service)
    world.add("ann")
    world.add("bob")
    world.add("eve", Role.ADMIN)
    return world


def made(world: Accounts, who: str, **body: Any) -> dict[str, Any]:
    answer = world.ask(who, "POST", "/v1/keys", {"name": "mine", **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_one_has_ones_own(world: Accounts) -> None:
    key = made(world, "ann", days=2)
    assert key["key"]["user"] == "ann" and key["key"]["expires"] == pytest.approx(now() + 2 * 86400, abs=60)
    assert "secret" not in key["key"] and len(key["secret"]) == 40
    listed = world.ask("ann", "GET", "/v1/keys").json()
    assert listed == [key["key"]] and key["secret"] not in json.dumps(listed)
    assert world.ask("bob", "GET", "/v1/keys").json() == []
    assert world.ask("eve", "GET", "/v1/keys").json() == listed
    refused = world.ask("bob", "DELETE", f"/v1/keys/{key['key']['id']}")
    assert (refused.status_code, refused.json()["code"]) == (404, "NOT_FOUND")
    assert world.ask("bob", "POST", "/v1/keys", {"name": "x", "user": "ann"}).status_code == 403
    assert made(world, "eve", user="ann")["key"]["user"] == "ann"
    assert world.ask("eve", "POST", "/v1/keys", {"name": "x", "user": "none"}).status_code == 404
    assert world.ask("ann", "DELETE", f"/v1/keys/{key['key']['id']}").status_code == 200
    assert key["key"] not in world.ask("ann", "GET", "/v1/keys").json()


def test_root_names_the_user(world: Accounts) -> None:
    assert world.ask("root", "POST", "/v1/keys", {"name": "x"}).json()["code"] == "USAGE"
    assert made(world, "root", user="bob")["key"]["user"] == "bob"


def test_it_is_bounded(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_keys, "_MAX_KEYS", 1)
    made(world, "ann")
    assert world.ask("ann", "POST", "/v1/keys", {"name": "y"}).json()["code"] == "NO_CAPACITY"
    for days in (0, 367):
        assert world.ask("bob", "POST", "/v1/keys", {"name": "y", "days": days}).status_code == 422


def test_those_that_ended_do_not_count(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_keys, "_MAX_KEYS", 1)
    old = made(world, "ann", days=1)
    monkeypatch.setattr(access_keys, "now", lambda: now() + 86401)
    new = made(world, "ann")
    assert [key["id"] for key in world.ask("ann", "GET", "/v1/keys").json()] == [new["key"]["id"]] != [old["key"]["id"]]


def test_it_ends_with_the_password_and_with_the_account(world: Accounts) -> None:
    store = world.service.context.store
    one, two = made(world, "ann"), made(world, "bob")
    world.root.set_password("ann", "four words are long", None)
    world.root.remove_user("bob")
    for key in (one, two):
        assert store.access_keys.identity(key["key"]["id"]) is None


def test_a_secret_is_sealed_for_its_own_row(world: Accounts) -> None:
    context, sealing = world.service.context, world.service.context.store.sealing
    one, two = made(world, "ann"), made(world, "bob")
    sealed = {}
    for key in (one, two):
        id = key["key"]["id"]
        found = context.store.access_keys.identity(id)
        assert found and key["secret"] not in found.sealed
        sealed[id] = found.sealed
        assert sealing.open(id, found.sealed) == key["secret"]
    with pytest.raises(Failed):
        sealing.open(one["key"]["id"], sealed[two["key"]["id"]])
    context.instance.keys_file.write_bytes(b"damaged")
    with pytest.raises(Failed):
        sealing.open(one["key"]["id"], sealed[one["key"]["id"]])
    with pytest.raises(Failed):
        access_keys.AccessKeyCommands(context, ROOT).add("ann", "x", 1)


def test_users_of_the_machine_see_none(world: Accounts) -> None:
    with pytest.raises(Refused) as caught:
        access_keys.AccessKeyCommands(world.service.context, PeerCredentials(1234, 1234, frozenset())).all()
    assert caught.value.code is Code.PERMISSION


def test_the_command_line_names_the_region() -> None:
    assert REGION == signature.REGION, "the command line may not import the service"
