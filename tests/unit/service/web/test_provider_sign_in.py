"""Sign-in by a provider of identities: the right person, the right browser, and tokens that are wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts_world import Accounts
from joserfc.jwk import RSAKey
from provider_world import CLIENT, SECRET, Elsewhere, Provider, running_provider
from rest_service import Service
from web_world import ORIGIN, Browser

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.accounts import Role
from wherry.model.identity import PROVIDER_SECRET
from wherry.model.paging import Wanted
from wherry.service import identity_provider
from wherry.service.identity_provider import IdentityProvider


@pytest.fixture(scope="module")
def provider_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with running_provider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture
def provider(provider_here: Provider) -> Provider:
    provider_here.claims, provider_here.metadata = {}, {}
    provider_here.signing, provider_here.algorithm = provider_here.key, "RS256"
    return provider_here


@pytest.fixture
def world(service: Service, provider: Provider) -> Accounts:
    world = Accounts(service)
    for name, role in (("ann", Role.USER), ("eve", Role.ADMIN)):
        world.add(name, role)
    setting = {"issuer": provider.issuer, "client": CLIENT, "ca": provider.ca, "url": ORIGIN}
    answer = world.ask("root", "PUT", "/v1/provider", {"setting": setting, "secret": SECRET})
    assert answer.status_code == 200, answer.text
    assert answer.json()["callback"] == f"{ORIGIN}/web/provider/callback"
    world.root.set_identity("ann", "ann@example.org")
    return world


def test_a_person_signs_in(world: Accounts, provider: Provider) -> None:
    there = Elsewhere(world, provider)
    assert f"Sign in by {provider.issuer.removeprefix('https://')}" in there.browser.get("/web/sign-in").text
    answer = there.sign_in()
    assert answer.status_code == 200 and 'content="0; url=/web"' in answer.text, answer.text
    session = next(line for line in answer.headers.get_list("set-cookie") if line.startswith("__Host-wherry=wt-"))
    assert "SameSite=Strict" in session
    there.browser.cookie = session.partition("=")[2].partition(";")[0]
    assert "ann" in there.browser.get("/web").text
    (entry,) = (one for one in world.root.audit(Wanted(), 0, "ann").rows if "callback" in one.what)
    assert entry.what == "GET /web/provider/callback" and entry.status == 200


def test_secrets_are_in_no_row_and_in_no_answer(world: Accounts, provider: Provider) -> None:
    Elsewhere(world, provider).sign_in()
    for file in world.service.place.state.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file
    assert world.service.context.store.secret(PROVIDER_SECRET) == SECRET
    assert SECRET not in world.ask("eve", "GET", "/v1/provider").text
    assert world.ask("root", "PUT", "/v1/provider", {"setting": None}).json()["setting"] is None
    with pytest.raises(Refused, match="there is no secret"):
        world.service.context.store.secret(PROVIDER_SECRET)
    assert Browser(world).ask("GET", "/web/provider").status_code == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"email": "eve@example.org"}, "no account has the identity"),
    ({"email_verified": False}, "has not verified"),
    ({"email_verified": "true"}, "has not verified"),
    ({"email": None}, "has no email"),
    ({"sub": None}, "not right"),
    ({"iss": "https://localhost/other"}, "not right"),
    ({"aud": "another"}, "not right"),
    ({"aud": ["another", CLIENT], "azp": "another"}, "another client"),
    ({"nonce": "replayed"}, "not right"),
    ({"nonce": None}, "not right"),
    ({"exp": 1_000_000_000}, "not right"),
    ({"exp": None}, "not right"),
]


@pytest.mark.parametrize(("claims", "why"), WRONG)
def test_a_token_that_is_wrong(world: Accounts, provider: Provider, claims: dict[str, Any], why: str) -> None:
    provider.claims = claims
    there = Elsewhere(world, provider)
    answer = there.sign_in()
    assert answer.status_code == 401 and why in answer.text, answer.text
    assert not any("wt-" in line for line in answer.headers.get_list("set-cookie"))


def test_a_token_that_another_key_signed_or_none(world: Accounts, provider: Provider) -> None:
    provider.signing = RSAKey.generate_key(2048, parameters={"kid": "one"})
    for algorithm in ("RS256", "HS256", "none"):
        provider.algorithm = algorithm
        answer = Elsewhere(world, provider).sign_in()
        assert answer.status_code == 401 and "ID token is not right" in answer.text, (algorithm, answer.text)


def test_an_answer_is_for_the_browser_that_asked_and_counts_once(world: Accounts, provider: Provider) -> None:
    there, other = Elsewhere(world, provider), Elsewhere(world, provider)
    query = provider.sign_in(there.begin())
    other.begin()
    for cookie in ("", other.bound):  # somebody's own answer, sent to others, would have them work in its account
        query = provider.sign_in(there.begin())
        assert there.come_back(query, cookie).status_code == 401
        assert there.come_back(query).status_code == 401, "an answer that was refused counts no more"
    query = provider.sign_in(there.begin())
    assert there.come_back(query).status_code == 200
    assert there.come_back(query).status_code == 401
    assert there.come_back({"error": "access_denied"}).status_code == 401


def test_an_answer_that_comes_late(world: Accounts, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Elsewhere(world, provider)
    monkeypatch.setattr(identity_provider, "BEGUN_SECONDS", -1.0)
    assert there.sign_in().status_code == 401


def test_an_identity_keeps_the_person_of_its_first_sign_in(world: Accounts, provider: Provider) -> None:
    there = Elsewhere(world, provider)
    assert there.sign_in().status_code == 200
    provider.claims = {"sub": "4712"}  # the address was given to somebody else
    answer = there.sign_in()
    assert answer.status_code == 401 and "another person" in answer.text
    world.root.set_identity("ann", "ann@example.org")  # an admin has decided
    assert there.sign_in().status_code == 200


def test_sessions_end_when_an_identity_changes(world: Accounts, provider: Provider) -> None:
    browser = Browser(world).enter("ann")
    world.root.set_identity("ann", "")
    assert browser.get("/web").status_code == 303
    assert Elsewhere(world, provider).sign_in().status_code == 401


def test_an_identity_is_one_accounts(world: Accounts) -> None:
    answer = world.ask("root", "PUT", "/v1/users/eve/identity", {"identity": "ann@example.org"})
    assert answer.status_code == 403 and answer.json()["code"] == "NAME_TAKEN"
    assert world.ask("root", "PUT", "/v1/users/eve/identity", {"identity": None}).json()["identity"] == ""


def test_a_provider_is_looked_at_before_it_is_taken(world: Accounts, provider: Provider, tmp_path: Path) -> None:
    setting = {"issuer": provider.issuer, "client": CLIENT, "ca": provider.ca, "url": ORIGIN}

    def refused(**change: Any) -> str:
        answer = world.ask("root", "PUT", "/v1/provider", {"setting": {**setting, **change}, "secret": "x"})
        assert answer.status_code >= 400
        return str(answer.json()["code"])

    assert refused(ca=None) == "UNREACHABLE"  # its TLS is nobody's whom the machine trusts
    assert refused(ca=str(tmp_path / "missing.pem")) == "UNREACHABLE"
    assert refused(issuer=f"{provider.issuer}/other") == "FAILED"
    assert refused(issuer="http://localhost/realm") == "USAGE"
    provider.metadata = {"issuer": "https://localhost/another"}
    assert refused() == "FAILED"
    provider.metadata = {"token_endpoint": "http://localhost/token"}
    assert refused() == "FAILED"
    provider.metadata = {}
    assert Elsewhere(world, provider).sign_in().status_code == 200, "the provider before is in force"


def test_a_provider_that_takes_the_secret_in_the_form(world: Accounts, provider: Provider) -> None:
    provider.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    assert Elsewhere(world, provider).sign_in().status_code == 200


def test_sign_ins_under_way_are_bounded(service: Service, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Accounts(service)
    found = IdentityProvider(service.context)
    setting = identity_provider.ProviderSetting(issuer=provider.issuer, client=CLIENT, ca=provider.ca, url=ORIGIN)
    found.change(setting, SECRET)
    monkeypatch.setattr(identity_provider, "_MAX_BEGUN", 2)
    queries = [provider.sign_in(found.begin(f"browser {n}", world.address)) for n in range(3)]
    with pytest.raises(WherryError) as caught:
        found.finish("browser 0", queries[0]["state"], queries[0]["code"])
    assert caught.value.code is Code.UNAUTHENTICATED
    assert found.finish("browser 2", queries[2]["state"], queries[2]["code"]).identity == "ann@example.org"
    with pytest.raises(WherryError) as caught:
        for number in range(30):
            found.begin(f"browser {number}", "198.51.100.1")
    assert caught.value.code is Code.TOO_MANY
    assert found.begin("another", "198.51.100.2")


def test_two_answers_at_once_count_once(world: Accounts, provider: Provider) -> None:
    there = Elsewhere(world, provider)
    query = provider.sign_in(there.begin())
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(there.come_back(query).status_code)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200, 401, 401, 401]
