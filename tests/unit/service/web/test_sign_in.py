"""Sessions of browsers: cookies, requests of other sites, secrets that are exchanged, links that sign in once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from accounts_world import UNLIMITED, Accounts
from rest_service import Service
from web_world import ORIGIN, Browser

from wherry.base.errors import WherryError
from wherry.model.accounts import Role, TokenKind
from wherry.model.paging import Wanted
from wherry.service import authentication, passwords, sign_in_links
from wherry.service.account_commands import AccountCommands
from wherry.service.authentication import COOKIE, csrf_of, session_in
from wherry.service.sign_in_links import SignInLinks
from wherry.store import accounts as stored_accounts

PASSWORD = "four words are long"


@pytest.fixture
def world(service: Service) -> Accounts:
    world = Accounts(service)
    world.add("ann")
    world.add("eve", Role.ADMIN)
    return world


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that are added to the time by which sessions end."""
    ahead = [0.0]
    for module in (authentication, stored_accounts):
        monkeypatch.setattr(module, "now", lambda: time.time() + ahead[0])
    yield ahead


def sessions(world: Accounts, user: str = "ann") -> int:
    return sum(token.kind is TokenKind.SESSION for token in world.root._accounts.tokens(user))


def sign_in(browser: Browser, user: str, password: str, origin: str = ORIGIN) -> int:
    form = {"user": user, "password": password}
    return browser.ask("POST", "/web/sign-in", form, {"Origin": origin}).status_code


def test_sign_in_by_password(world: Accounts) -> None:
    world.root.add_user("bob", Role.USER, UNLIMITED, PASSWORD)
    browser = Browser(world)
    answer = browser.ask("POST", "/web/sign-in", {"user": "bob", "password": PASSWORD}, {"Origin": ORIGIN})
    assert answer.status_code == 303
    (line,) = answer.headers.get_list("set-cookie")
    pair, *attributes = line.split("; ")
    assert pair.startswith("__Host-wherry=wt-")
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict", "Secure"]
    assert "bob" in browser.get("/web").text
    (entry,) = (one for one in world.root.audit(Wanted(), 0, None).rows if one.what == "POST /web/sign-in")
    assert entry.who == "bob" and entry.status == 303
    secret = browser.cookie.partition(".")[2]
    for file in world.service.place.state.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


def test_all_that_is_wrong_with_a_sign_in_has_one_answer(world: Accounts) -> None:
    world.root.add_user("bob", Role.USER, UNLIMITED, PASSWORD)
    texts = set()
    for number, (user, password) in enumerate((("bob", "wrong" * 4), ("ann", ""), ("nobody", PASSWORD))):
        world.address = f"192.0.2.{number}"
        form = {"user": user, "password": password}
        answer = Browser(world).ask("POST", "/web/sign-in", form, {"Origin": ORIGIN})
        assert answer.status_code == 401 and "set-cookie" not in answer.headers
        assert "www-authenticate" not in answer.headers
        texts.add(answer.text.replace(f'value="{user}"', ""))
    assert len(texts) == 1


def test_sign_ins_are_bounded(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "verified", lambda kept, given: False)
    tried = [sign_in(Browser(world), f"user{number}", "wrong") for number in range(12)]
    assert tried == [401] * 10 + [429] * 2


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://daemon.example:7443", ""])
@pytest.mark.parametrize("path", ["/web/sign-in", "/web/enter"])
def test_sign_in_comes_from_the_page(world: Accounts, origin: str, path: str) -> None:
    """Else another site could sign somebody in as its own account."""
    browser = Browser(world)
    code = browser.authentication.link("ann")
    headers = {"Origin": origin} if origin else {}
    answer = browser.ask("POST", path, {"user": "ann", "password": PASSWORD, "code": code}, headers)
    assert answer.status_code == 403 and not browser.cookie
    answer = browser.ask("POST", "/web/enter", {"code": code}, {"Origin": ORIGIN})
    assert answer.status_code == 303, "it was not used up"


def test_a_session_is_no_token_nor_the_reverse(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    bearer = world.tokens["ann"]
    world.tokens["ann"] = browser.cookie
    assert world.ask("ann", "GET", "/v1/me").status_code == 401
    other = Browser(world)
    other.cookie = bearer
    assert other.get("/web").status_code == 303
    assert other.ask("GET", "/v1/me").status_code == 401


def test_a_session_reads_rest(world: Accounts) -> None:
    assert Browser(world).enter("ann").ask("GET", "/v1/me").json()["name"] == "ann"


def test_nothing_is_changed_without_what_the_page_sends_along(world: Accounts) -> None:
    browser, other = Browser(world).enter("ann"), Browser(world).enter("eve")
    before = world.root._accounts.tokens("ann")
    for headers in ({}, {"Wherry-CSRF": ""}, {"Wherry-CSRF": other.csrf}, {"Wherry-CSRF": browser.csrf[:-1]}):
        for method, path in (("POST", "/web/account/tokens"), ("POST", "/web/sign-out"), ("DELETE", "/v1/session")):
            answer = browser.ask(method, path, {"name": "x", "days": "1"}, headers)
            assert answer.status_code == 403, (method, path, headers)
        made = browser.ask("POST", "/v1/tokens", headers=headers, json={"name": "x", "days": 1})
        assert made.status_code == 403 and made.json()["code"] == "PERMISSION"
    assert [token.id for token in world.root._accounts.tokens("ann")] == [token.id for token in before]
    made = browser.ask("POST", "/v1/tokens", headers={"Wherry-CSRF": browser.csrf}, json={"name": "x", "days": 1})
    assert made.status_code == 201


def test_what_forms_send_along_does_not_tell_the_secret(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    secret = browser.cookie.partition(".")[2]
    text = browser.get("/web").text
    assert browser.csrf == csrf_of(secret) and browser.csrf in text and secret not in text


def test_cookies_are_one_or_none(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    twice = f"{COOKIE}={browser.cookie}; {COOKIE}={browser.cookie}"
    assert browser.ask("GET", "/web", headers={"Cookie": twice}).status_code == 303
    assert session_in([b"a=1; __Host-wherry=x", b"b=2"]) == "x"
    assert session_in([b"__Host-wherry=x", b"__Host-wherry=y"]) is None and session_in([]) is None


def test_a_new_session_ends_the_one_before(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    before = browser.cookie
    browser.enter("ann")
    assert browser.cookie != before and sessions(world) == 1
    browser.cookie = before
    assert browser.get("/web").status_code == 303


def test_signing_out_ends_the_session_at_the_daemon(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    kept = browser.cookie
    answer = browser.send("/web/sign-out")
    assert answer.status_code == 204 and answer.headers["hx-redirect"] == "/web/sign-in"
    assert browser.cookie == "" and "Max-Age=0" in answer.headers["set-cookie"] and sessions(world) == 0
    browser.cookie = kept
    assert browser.get("/web").headers["location"] == "/web/sign-in"
    assert browser.get("/web", part=True).headers["hx-redirect"] == "/web/sign-in"


def test_sessions_end_with_what_they_stand_on(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    world.root.set_password("ann", PASSWORD, None)
    assert browser.get("/web").status_code == 303
    browser.enter("ann")
    world.root.remove_user("ann")
    assert browser.get("/web").status_code == 303
    assert browser.send("/web/account/tokens", name="x", days="1").status_code == 401


def test_sessions_end_by_time(world: Accounts, clock: list[float]) -> None:
    browser = Browser(world).enter("ann")
    clock[0] = authentication.IDLE_SECONDS - 100
    assert browser.get("/web", part=True).status_code == 200
    clock[0] += authentication.IDLE_SECONDS + 10
    assert browser.get("/web").status_code == 303, "nobody asked for two hours"
    clock[0] = 0.0
    browser.enter("ann")
    while clock[0] < authentication.SESSION_SECONDS - 1000:
        clock[0] += 1000
        assert browser.get("/web").status_code == 200
    clock[0] = authentication.SESSION_SECONDS + 10
    assert browser.get("/web").status_code == 303, "an exchanged secret does not prolong the session"


def test_secrets_of_sessions_are_exchanged(world: Accounts, clock: list[float]) -> None:
    browser = Browser(world).enter("ann")
    first, csrf = browser.cookie, browser.csrf
    clock[0] = authentication.RENEW_SECONDS + 10
    assert browser.get("/web", part=True).status_code == 200 and browser.cookie == first
    assert browser.get("/web").status_code == 200
    second = browser.cookie
    assert second != first and browser.csrf != csrf and browser.csrf == csrf_of(second.partition(".")[2])
    browser.cookie = first
    assert browser.get("/web").status_code == 200, "a request that was under way"
    assert browser.cookie == first, "it is exchanged once"
    clock[0] += authentication.GRACE_SECONDS + 1
    assert browser.get("/web").status_code == 303
    browser.cookie = second
    assert browser.get("/web").status_code == 200


def test_an_account_has_so_many_sessions(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "SESSIONS", 3)
    browsers = [Browser(world).enter("ann") for _ in range(4)]
    assert [browser.get("/web").status_code for browser in browsers] == [303, 200, 200, 200]
    assert world.ask("ann", "GET", "/v1/me").status_code == 200, "its API token is no session"


def test_a_link_signs_in_once(world: Accounts) -> None:
    browser = Browser(world)
    code = browser.authentication.link("ann")
    form, headers = {"code": code}, {"Origin": ORIGIN}
    assert browser.ask("GET", f"/web/enter?code={code}").status_code == 200 and not browser.cookie
    assert browser.ask("POST", "/web/enter", form, headers).status_code == 303
    again = Browser(world).ask("POST", "/web/enter", form, headers)
    assert again.status_code == 401 and "set-cookie" not in again.headers


def test_a_link_is_good_for_minutes_and_taken_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    links = SignInLinks()
    code = links.add("ann")
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(lambda _: (links.take(code) or ("",))[0], range(32)))[-2:] == ["", "ann"]
    now = 100.0
    monkeypatch.setattr(sign_in_links, "time", SimpleNamespace(monotonic=lambda: now))
    good, late = links.add("ann"), links.add("ann")
    now += sign_in_links.LINK_SECONDS - 1
    assert links.take(good)
    now += 2
    assert links.take(late) is None and links.take("") is None


def test_a_link_does_not_put_others_into_an_account(world: Accounts) -> None:
    browser = Browser(world).enter("ann")
    form, headers = {"code": browser.authentication.link("eve")}, {"Origin": ORIGIN}
    answer = browser.ask("POST", "/web/enter", form, headers)
    assert answer.status_code == 409 and "signed in as ann" in answer.text and browser.get("/web").status_code == 200
    again = browser.ask("POST", "/web/enter", {"code": browser.authentication.link("ann")}, headers)
    assert again.status_code == 303
    assert browser.get("/web").status_code == 200 and browser.send("/web/sign-out").status_code == 204
    assert browser.enter("eve").cookie


def test_a_link_ends_with_the_password_and_the_account(world: Accounts) -> None:
    def entered(code: str) -> int:
        return Browser(world).ask("POST", "/web/enter", {"code": code}, {"Origin": ORIGIN}).status_code

    code = Browser(world).authentication.link("ann")
    world.root.set_password("ann", PASSWORD, None)
    assert entered(code) == 401
    code = Browser(world).authentication.link("ann")
    world.root.remove_user("ann")
    assert entered(code) == 401
    world.add("ann")
    assert entered(code) == 401, "it is another ann"
    assert entered(Browser(world).authentication.link("ann")) == 303


def test_wrong_links_are_bounded(world: Accounts) -> None:
    codes = [
        Browser(world).ask("POST", "/web/enter", {"code": "0" * 64}, {"Origin": ORIGIN}).status_code for _ in range(22)
    ]
    assert codes[:20] == [401] * 20 and codes[-1] == 429


def test_who_may_make_links(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Browser(world).authentication.link

    def made(who: str, user: str | None) -> str:
        commands = world.root if who == "root" else commands_of(world, who)
        try:
            return commands.sign_in_link(user, link)[0]
        except WherryError as error:
            return str(error.code)

    assert made("ann", None) == "ann" and made("ann", "eve") == "PERMISSION"
    assert made("eve", None) == "eve" and made("eve", "ann") == "ann"
    assert made("root", "ann") == "ann" and made("root", "nobody") == "NOT_FOUND"
    assert made("root", None) == "eve", "the only admin"
    world.add("mal", Role.ADMIN)
    assert made("root", None) == "USAGE"
    answer = world.ask("ann", "POST", "/v1/dashboard", {})
    assert answer.status_code == 409 and "wherry daemon listen" in answer.json()["next"]


def commands_of(world: Accounts, who: str) -> AccountCommands:
    address = "192.0.2.7"
    app = Browser(world).authentication
    caller = app.caller([f"Bearer {world.tokens[who]}".encode()], address)
    return AccountCommands(world.service.context, caller)


def test_the_page_is_not_served_at_the_socket(world: Accounts) -> None:
    """A user who forwards the socket to a browser would give all its pages the rights of root."""
    for path in ("/web", "/web/sign-in", "/web/enter", "/web/admin"):
        answer = world.ask("root", "GET", path)
        assert answer.status_code == 403 and "wherry dashboard" in answer.text, path
