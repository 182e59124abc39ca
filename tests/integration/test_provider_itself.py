"""Sign-in by a real provider of identities: Debian's Glewlwyd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from accounts_world import Accounts
from glewlwyd import PROGRAM, SECRET, Glewlwyd, running
from provider_world import CLIENT, Elsewhere
from rest_service import Service, service  # noqa: F401 - fixture
from web_world import ORIGIN

from wherry.model.accounts import Role

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="Glewlwyd is not there: scripts/setup-test")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glewlwyd]:
    with running(tmp_path_factory.mktemp("glewlwyd")) as made:
        made.add("ann", verified=True)
        made.add("bob", verified=False)
        yield made


@pytest.fixture
def world(service: Service, provider: Glewlwyd) -> Accounts:  # noqa: F811
    """Ann and Bob have accounts, and the daemon has the provider."""
    world = Accounts(service)
    for name in ("ann", "bob"):
        world.add(name, Role.USER)
        world.root.set_identity(name, f"{name}@example.org")
    told(world, provider, SECRET)
    return world


def told(world: Accounts, provider: Glewlwyd, secret: str) -> None:
    setting = {"issuer": provider.issuer, "client": CLIENT, "ca": provider.ca, "url": ORIGIN}
    answer = world.ask("root", "PUT", "/v1/provider", {"setting": setting, "secret": secret})
    assert answer.status_code == 200, answer.text


def test_a_person_signs_in_there(world: Accounts, provider: Glewlwyd) -> None:
    there = Elsewhere(world, provider.person("ann"))
    answer = there.sign_in()
    assert answer.status_code == 200 and 'content="0; url=/web"' in answer.text, answer.text
    session = next(line for line in answer.headers.get_list("set-cookie") if line.startswith("__Host-wherry=wt-"))
    there.browser.cookie = session.partition("=")[2].partition(";")[0]
    assert "ann" in there.browser.get("/web").text


def test_a_mail_address_that_the_provider_has_not_verified(world: Accounts, provider: Glewlwyd) -> None:
    answer = Elsewhere(world, provider.person("bob")).sign_in()
    assert answer.status_code == 401 and "has not verified your mail address" in answer.text


def test_the_provider_refuses_another_secret(world: Accounts, provider: Glewlwyd) -> None:
    told(world, provider, "another")
    answer = Elsewhere(world, provider.person("ann")).sign_in()
    assert answer.status_code == 401 and "the provider refused the code" in answer.text


def test_a_code_counts_once(world: Accounts, provider: Glewlwyd) -> None:
    """Also for the provider, when a second question of ours is answered by it."""
    there = Elsewhere(world, provider.person("ann"))
    first = provider.person("ann").sign_in(there.begin())
    assert there.come_back(first).status_code == 200
    second = provider.person("ann").sign_in(there.begin())
    answer = there.come_back({**second, "code": first["code"]})
    assert answer.status_code == 401 and "the provider refused the code" in answer.text
