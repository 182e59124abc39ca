"""Accounts whose password the machine's PAM checks (PAM itself: tests/integration/test_pam_itself.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from accounts_world import UNLIMITED, Accounts
from rest_service import Service

from wherry.base.errors import Code, LostContact, Refused
from wherry.model.accounts import PAM, Role
from wherry.service import pam

PASSWORD = "the machine's password"


@pytest.fixture
def world(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Accounts:
    (tmp_path / "wherry").touch()
    monkeypatch.setattr(pam, "CONFIGURATION", tmp_path / "wherry")
    monkeypatch.setattr(pam, "verified", lambda user, password: (user, password) == ("ann", PASSWORD))
    world = Accounts(service)
    made = world.ask("root", "POST", "/v1/users", {"name": "ann", "by_pam": True})
    assert made.status_code == 201 and made.json()["by_pam"], made.text
    return world


def sign_in(world: Accounts, user: str, password: str) -> int:
    return world.ask("", "POST", "/v1/session", {"user": user, "password": password}).status_code


def test_pam_checks_the_password(world: Accounts) -> None:
    assert sign_in(world, "ann", PASSWORD) == 201
    assert [sign_in(world, *given) for given in (("ann", "wrong"), ("ann", PAM), ("ann", ""))] == [401] * 3


def test_others_keep_their_own_passwords(world: Accounts) -> None:
    world.root.add_user("bob", Role.USER, UNLIMITED, PASSWORD)
    world.root.add_user("bot", Role.USER, UNLIMITED, None)
    assert sign_in(world, "bob", PASSWORD) == 201
    assert [sign_in(world, name, PASSWORD) for name in ("bot", "nobody")] == [401] * 2


def test_the_machines_password_is_not_changed_here(world: Accounts) -> None:
    world.tokens["ann"] = world.ask("", "POST", "/v1/session", {"user": "ann", "password": PASSWORD}).json()["text"]
    change = {"password": "four words are long", "old": PASSWORD}
    answer = world.ask("ann", "PUT", "/v1/users/ann/password", change)
    assert answer.status_code == 409 and answer.json()["code"] == "WRONG_STATE"
    assert world.root.set_password("ann", "four words are long", None).by_pam is False, "root may"
    assert sign_in(world, "ann", PASSWORD) == 401 and sign_in(world, "ann", "four words are long") == 201
    assert world.root.set_password("ann", "", None, by_pam=True).by_pam
    assert sign_in(world, "ann", PASSWORD) == 201


def test_an_account_does_not_choose_pam_for_itself(world: Accounts) -> None:
    world.root.add_user("bob", Role.USER, UNLIMITED, PASSWORD)
    world.tokens["bob"] = world.ask("", "POST", "/v1/session", {"user": "bob", "password": PASSWORD}).json()["text"]
    answer = world.ask("bob", "PUT", "/v1/users/bob/password", {"by_pam": True, "old": PASSWORD})
    assert answer.status_code == 409 and not world.root._user("bob").by_pam


def test_a_machine_without_the_service_is_refused(world: Accounts) -> None:
    pam.CONFIGURATION.unlink()
    with pytest.raises(Refused) as caught:
        world.root.add_user("bob", Role.USER, UNLIMITED, None, by_pam=True)
    assert caught.value.code is Code.UNSUPPORTED and str(pam.CONFIGURATION) in caught.value.next
    assert (
        world.ask("root", "POST", "/v1/users", {"name": "b", "by_pam": True, "password": PASSWORD}).status_code == 422
    )


def test_pam_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(*_: object, **given: float) -> None:
        raise subprocess.TimeoutExpired("pam", given["timeout"])

    monkeypatch.setattr(pam, "CONFIGURATION", tmp_path)
    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(LostContact) as caught:
        pam.verified("ann", PASSWORD)
    assert caught.value.code is Code.UNREACHABLE
