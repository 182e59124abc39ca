"""Accounts: stored secrets, sign-ins, the lifetime of tokens, and the audit log."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import alembic.command
import alembic.config
import pytest
import sqlalchemy as sa
from accounts_world import UNLIMITED, Accounts
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_service import Service

from properties import examples
from wherry.base.errors import Code, Refused
from wherry.base.ids import new_id
from wherry.model.accounts import FIRST_UID, Role, is_account
from wherry.model.paging import Wanted
from wherry.service import account_commands, authentication, passwords
from wherry.service.account_caller import owner_of_account
from wherry.service.authentication import parsed
from wherry.service.rate_limit import source_of
from wherry.store import Store

PASSWORD = "four words are long"


@pytest.fixture
def world(service: Service) -> Accounts:
    return Accounts(service)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that are added to the time by which tokens end."""
    ahead = [0.0]
    monkeypatch.setattr(authentication, "now", lambda: ahead[0] + __import__("time").time())
    yield ahead


def sign_in(world: Accounts, user: str, password: str, address: str = "192.0.2.7") -> int:
    world.address = address
    return world.ask("", "POST", "/v1/session", {"user": user, "password": password}).status_code


def test_a_uid_is_given_once(world: Accounts) -> None:
    first = world.add("ann").uid
    assert first >= FIRST_UID and is_account(first)
    world.root.remove_user("ann")
    assert world.add("ann").uid == first + 1
    assert world.project("team", "ann").uid == first + 2


def test_a_uid_of_the_machine_is_left_out(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_commands, "_is_free", lambda uid: uid > FIRST_UID + 6)
    assert world.add("ann").uid == FIRST_UID + 7


@pytest.mark.parametrize("name", ["", "Ann", "a/b", "..", "a" * 33, "<b>", "a\n", "ünn", "1a"])
def test_names_are_names(world: Accounts, name: str) -> None:
    answer = world.ask("root", "POST", "/v1/users", {"name": name})
    assert answer.status_code == 422, answer.text
    assert world.root.users() == []


def test_secrets_are_not_kept(world: Accounts) -> None:
    """Neither the password nor the token's secret is in any file of the instance, nor in an answer but the first."""
    made = world.ask("root", "POST", "/v1/users", {"name": "ann", "password": PASSWORD})
    assert made.json()["has_password"] and PASSWORD not in made.text
    answer = world.ask("", "POST", "/v1/session", {"user": "ann", "password": PASSWORD})
    text = answer.json()["text"]
    secret = text.split(".")[1]
    assert answer.status_code == 201 and len(secret) == 64
    world.tokens["ann"] = text
    for path in ("/v1/tokens", "/v1/me", "/v1/events", "/v1/users", "/v1/audit"):
        told = world.ask("root" if path in ("/v1/users", "/v1/audit") else "ann", "GET", path)
        assert told.status_code == 200, told.text
        assert secret not in told.text and PASSWORD not in told.text and "argon2" not in told.text
    for file in world.service.place.state.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert secret.encode() not in content and PASSWORD.encode() not in content, file


def test_all_that_is_wrong_with_a_sign_in_has_one_answer(world: Accounts) -> None:
    world.root.add_user("ann", Role.USER, UNLIMITED, PASSWORD)
    world.root.add_user("bot", Role.USER, UNLIMITED, None)
    texts = set()
    for number, (user, password) in enumerate(
        (("ann", "wrong" * 4), ("bot", ""), ("bot", "x" * 20), ("nobody", PASSWORD))
    ):
        world.address = f"192.0.2.{number}"
        answer = world.ask("", "POST", "/v1/session", {"user": user, "password": password})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        texts.add(answer.text)
    assert len(texts) == 1
    assert world.root._accounts.tokens() == []


def test_sign_ins_are_bounded_by_address_and_by_account(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "verified", lambda kept, given: given == PASSWORD)
    world.root.add_user("ann", Role.USER, UNLIMITED, PASSWORD)
    world.root.add_user("bob", Role.USER, UNLIMITED, PASSWORD)
    tried = [sign_in(world, f"user{number}", "wrong") for number in range(12)]
    assert tried == [401] * 10 + [429] * 2
    assert sign_in(world, "ann", PASSWORD) == 429, "also with the right password"
    assert sign_in(world, "ann", PASSWORD, "198.51.100.1") == 201
    tried = [sign_in(world, "ann", "wrong", f"203.0.113.{number}") for number in range(12)]
    assert tried[:9] == [401] * 9 and 429 in tried[9:], "the account is guessed from many addresses"
    assert sign_in(world, "bob", PASSWORD, "198.51.100.2") == 201


def test_passwords_are_long_enough(world: Accounts) -> None:
    for password in ("short", "x" * 129):
        assert world.ask("root", "POST", "/v1/users", {"name": "ann", "password": password}).json()["code"] == "USAGE"
    assert world.root.users() == []


def test_tokens_end(world: Accounts, clock: list[float]) -> None:
    for name in ("ann", "bob", "cat"):
        world.add(name)
    assert [world.ask(name, "GET", "/v1/me").status_code for name in world.tokens] == [200] * 3
    world.root.remove_user("ann")
    world.root.set_password("bob", PASSWORD, None)
    world.root.revoke(world.tokens["cat"].split(".")[0])
    assert [world.ask(name, "GET", "/v1/me").status_code for name in world.tokens] == [401] * 3
    world.add("dan")
    clock[0] = 86_000.0
    assert world.ask("dan", "GET", "/v1/me").status_code == 200
    clock[0] = 86_500.0
    answer = world.ask("dan", "GET", "/v1/me")
    assert answer.status_code == 401 and "ended" in answer.json()["why"]


def test_a_token_of_the_right_id_and_another_secret_is_wrong(world: Accounts) -> None:
    world.add("ann")
    id, secret = world.tokens["ann"].split(".")
    world.tokens["ann"] = f"{id}.{'0' * 64 if secret[0] != '0' else '1' * 64}"
    assert world.ask("ann", "GET", "/v1/me").json()["code"] == "UNAUTHENTICATED"


def test_wrong_tokens_are_bounded_and_right_ones_are_not(world: Accounts) -> None:
    world.add("ann")
    codes = [world.ask("", "GET", "/v1/me").status_code for _ in range(25)]
    assert codes[:20] == [401] * 20 and codes[-1] == 429
    assert world.ask("ann", "GET", "/v1/me").status_code == 200
    world.address = "198.51.100.1"
    assert world.ask("", "GET", "/v1/me").status_code == 401


def test_one_changes_ones_own_password_by_the_old_one(world: Accounts) -> None:
    world.add("ann")
    world.add("bob")
    world.root.set_password("ann", PASSWORD, None)
    world.tokens["ann"] = authentication.new_token(world.service.context, "ann", "x", 1)[1]
    new = {"password": "another long one"}
    assert world.ask("bob", "PUT", "/v1/users/ann/password", new | {"old": PASSWORD}).status_code == 403
    assert world.ask("ann", "PUT", "/v1/users/ann/password", new).status_code == 403
    assert world.ask("ann", "PUT", "/v1/users/ann/password", new | {"old": "wrong" * 4}).status_code == 403
    assert world.ask("ann", "PUT", "/v1/users/ann/password", new | {"old": PASSWORD}).status_code == 200
    assert world.ask("ann", "GET", "/v1/me").status_code == 401
    assert sign_in(world, "ann", "another long one") == 201


def test_the_owner_of_a_project_chooses_its_members(world: Accounts) -> None:
    for name in ("ann", "bob", "cat"):
        world.add(name)
    world.project("team", "ann", "bob")
    assert world.ask("bob", "PUT", "/v1/projects/team/members/cat", {}).status_code == 403
    assert world.ask("cat", "PUT", "/v1/projects/team/members/cat", {}).status_code == 404
    assert world.ask("ann", "PUT", "/v1/projects/team/members/cat", {}).json()["members"] == ["ann", "bob", "cat"]
    assert world.ask("ann", "PUT", "/v1/projects/team/members/nobody", {}).status_code == 404
    assert world.ask("ann", "DELETE", "/v1/projects/team/members/ann").json()["code"] == "WRONG_STATE"
    assert world.ask("ann", "DELETE", "/v1/projects/team/members/cat").json()["members"] == ["ann", "bob"]
    assert [one["name"] for one in world.ask("bob", "GET", "/v1/projects").json()] == ["team"]
    assert world.ask("cat", "GET", "/v1/projects").json() == []


def test_the_audit_log_says_who_what_from_where_and_how_it_ended(world: Accounts) -> None:
    world.add("ann")
    world.ask("ann", "DELETE", "/v1/clusters/none")
    world.ask("ann", "GET", "/v1/users")
    world.ask("", "GET", "/v1/clusters")
    world.ask("ann", "GET", "/v1/clusters")
    world.ask("root", "PUT", "/v1/balance", {"auto": False})
    seen = [(e.who, e.address, e.what, e.status, e.code) for e in world.root.audit(Wanted(), 0, None).rows]
    assert seen == [
        ("ann", "192.0.2.7", "DELETE /v1/clusters/none", 404, "NOT_FOUND"),
        ("ann", "192.0.2.7", "GET /v1/users", 403, "PERMISSION"),
        ("", "192.0.2.7", "GET /v1/clusters", 401, "UNAUTHENTICATED"),
        ("root", "socket", "PUT /v1/balance", 200, ""),
    ]
    assert [e.who for e in world.root.audit(Wanted(), 0, "root").rows] == ["root"]
    world.service.context.store.accounts.prune_audit(2)
    assert [e.status for e in world.root.audit(Wanted(), 0, None).rows] == [401, 200]


def test_the_audit_log_names_the_operation(world: Accounts) -> None:
    from rest_service import CLUSTER

    world.add("ann", Role.ADMIN)
    operation = world.ended("ann", "POST", "/v1/clusters", {"spec": CLUSTER})
    assert operation["by"] == "ann"
    entry = world.root.audit(Wanted(), 0, "ann").rows[0]
    assert (entry.status, entry.operation) == (202, operation["id"])
    events = [event for event in world.service.context.store.events() if event.kind == "cluster.up"]
    assert [event.by for event in events] == ["ann"]


def test_the_audit_log_says_who_signed_in(world: Accounts) -> None:
    world.root.add_user("ann", Role.USER, UNLIMITED, PASSWORD)
    assert [sign_in(world, "ann", "wrong" * 4), sign_in(world, "ann", PASSWORD)] == [401, 201]
    assert [(e.who, e.status) for e in world.root.audit(Wanted(), 0, None).rows] == [("", 401), ("ann", 201)]


def test_who_was_removed_meanwhile_gets_nothing_more(world: Accounts) -> None:
    """Between the plan and the moment in which room is taken."""
    from rest_service import CLUSTER

    from wherry.model.spec.cluster import ClusterSpec
    from wherry.model.spec.parse import parse

    clusters = world.service.context.require_managers().clusters
    plan = clusters.plan(parse(ClusterSpec, CLUSTER, "test"), owner_of_account(world.add("ann").uid))
    world.root.remove_user("ann")
    with pytest.raises(Refused) as caught:
        clusters.apply(plan)
    assert caught.value.code is Code.PERMISSION and world.service.context.store.clusters() == []


def test_an_account_with_clusters_stays(world: Accounts) -> None:
    from rest_service import CLUSTER

    world.add("ann", Role.ADMIN)
    world.done("ann", "POST", "/v1/clusters", {"spec": CLUSTER})
    with pytest.raises(Refused) as caught:
        world.root.remove_user("ann")
    assert caught.value.code is Code.WRONG_STATE and "wherry down hello" in caught.value.next
    world.done("ann", "DELETE", "/v1/clusters/hello")
    world.root.remove_user("ann")


def test_the_migration_goes_both_ways(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    event = store.add_event("x", "y", "kept")
    store.close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'wherry.db'}")
    config = alembic.config.Config()
    where = Path(sa.__file__) and Path(__file__).resolve().parents[3] / "src/wherry/store/migrations"
    config.set_main_option("script_location", str(where))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"], config.attributes["sealing"] = connection, store.sealing
        alembic.command.downgrade(config, "0003")
    tables = {row[0] for row in sqlite3.connect(tmp_path / "wherry.db").execute("SELECT name FROM sqlite_master")}
    made = {"users", "tokens", "projects", "members", "audit", "access_keys", "ec2_objects"}
    assert "events" in tables and not made & tables
    again = Store(tmp_path / "wherry.db")
    assert again.events() == [event] and again.accounts.users() == []


def test_passwords_are_hashed_as_rfc_9106_says() -> None:
    """By the module as it is: tests have a cheaper one."""
    found = importlib.util.find_spec("wherry.service.passwords")
    assert found and found.loader
    fresh = importlib.util.module_from_spec(found)
    found.loader.exec_module(fresh)
    kept = fresh.hashed(PASSWORD)
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert fresh.verified(kept, PASSWORD)
    assert not fresh.verified(kept, PASSWORD + "x") and not fresh.verified("", PASSWORD)


# The parsers of input from unknown senders: the header with the token, and addresses.


SECRET = "0123456789abcdef" * 4
TOKEN = re.compile(rb"[Bb]earer wt-[0-9a-z]{1,20}\.[0-9a-f]{64}")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=3))
def test_any_headers_give_a_token_or_none(values: list[bytes]) -> None:
    found = parsed(values)
    assert (found is not None) == (len(values) == 1 and bool(TOKEN.fullmatch(values[0])))


@settings(max_examples=examples(300), deadline=None)
@given(st.from_regex(TOKEN, fullmatch=True), st.integers(0, 120), st.integers(0, 255))
def test_a_token_with_one_byte_changed_is_that_token_or_none(value: bytes, at: int, byte: int) -> None:
    assert parsed([value]) is not None
    changed = bytearray(value)
    changed[at % len(changed)] = byte
    found = parsed([bytes(changed)])
    if found:
        assert len(found[1]) == 64 and found[0].startswith("wt-")
        assert changed.endswith(f"earer {found[0]}.{found[1]}".encode())


def test_what_is_made_is_parsed() -> None:
    id = new_id("wt")
    assert parsed([f"Bearer {id}.{SECRET}".encode()]) == (id, SECRET)
    for wrong in (
        f"Basic {id}.{SECRET}",
        f"Bearer  {id}.{SECRET}",
        f"Bearer {id}.{SECRET}\n",
        f"Bearer {id}.{SECRET[1:]}",
    ):
        assert parsed([wrong.encode()]) is None
    assert parsed([f"Bearer {id}.{SECRET}".encode()] * 2) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=60))
def test_any_address_is_one_source(text: str) -> None:
    assert isinstance(source_of(text), str)


def test_sources() -> None:
    assert source_of("192.0.2.7") == source_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert source_of("fe80::1%eth0") == "fe80::/64"
