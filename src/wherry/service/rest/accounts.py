"""Routes of accounts and tokens, of who asks, and of the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, SecretStr

from wherry.base.errors import Code, Refused
from wherry.model.accounts import (
    LONGEST_TOKEN,
    USUAL_TOKEN,
    Account,
    AccountName,
    Allowed,
    AuditEntry,
    Me,
    Quota,
    Role,
    Token,
)
from wherry.model.identity import Identity
from wherry.model.paging import sliced
from wherry.model.spec.base import ShortText
from wherry.service.authentication import Authentication
from wherry.service.rest.dependencies import AccountCommandsDep, Body, Offset
from wherry.service.rest.paging import Newest, PagingDep
from wherry.service.sign_in_links import LINK_SECONDS

router = APIRouter(tags=["accounts"])
_PARALLEL, _MAX_SIGNING_IN = 2, 16
Days = Annotated[int, Field(ge=1, le=LONGEST_TOKEN)]
Password = Annotated[SecretStr, Field(max_length=1024)]


class SessionBody(Body):
    """Name and password of an account; `name` and `days` are those of the token that it gets."""

    user: Annotated[str, Field(max_length=64)]
    password: Password
    name: ShortText = "sign-in"
    days: Days = USUAL_TOKEN


class UserBody(Body):
    """A new account. Without a password it has tokens only; `by_pam`: the machine's PAM checks it."""

    name: AccountName
    role: Role = Role.USER
    quota: Quota = Quota()
    password: Password | None = None
    by_pam: bool = False


class UserChange(Body):
    """The new role, or the whole new quota."""

    role: Role | None = None
    quota: Quota | None = None


class PasswordBody(Body):
    """The new password, and of one's own account the old one too; `by_pam`: the machine's PAM checks it from now on."""

    password: Password = SecretStr("")
    by_pam: bool = False
    old: Password | None = None


class IdentityBody(Body):
    """How the provider of identities names an account (None: it does not)."""

    identity: Identity | None = None


class DashboardBody(Body):
    """As whom a link to the page signs in; by default oneself, at the socket the only admin."""

    user: AccountName | None = None


class TokenBody(Body):
    """A token's name, and after how many days it ends. `user`: whose it is, by default one's own."""

    name: ShortText
    days: Days = USUAL_TOKEN
    user: AccountName | None = None


class AllowedBody(Body):
    """The programs that accounts without the role admin may start."""

    allowed: Allowed


@router.get("/me")
def show_me(accounts: AccountCommandsDep) -> Me:
    """The caller: role, quota and its used part, projects."""
    return accounts.me()


class SigningIn:
    """The room for sign-ins: few at a time, as each takes CPU, and few that wait, as none holds a thread meanwhile."""

    def __init__(self) -> None:
        self._room, self._inside = asyncio.Semaphore(_PARALLEL), 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """One of them. TOO_MANY."""
        if self._inside >= _MAX_SIGNING_IN:
            why = "each takes a moment of the processor"
            raise Refused(Code.TOO_MANY, "too many sign in at this moment", why, "repeat the command in a moment")
        self._inside += 1
        try:
            async with self._room:
                yield
        finally:
            self._inside -= 1


@router.post("/session", status_code=201)
async def sign_in(body: SessionBody, request: Request) -> dict[str, Any]:
    """Signs in by password, over the network: `token` (its record) and `text`, the secret, which is sent only once."""
    authentication: Authentication = request.app.state.authentication
    signing_in: SigningIn = request.app.state.signing_in
    address = request.scope["state"].get("network", "socket")
    given = (body.user, body.password.get_secret_value(), address, body.name, body.days)
    async with signing_in.one():
        token, text = await asyncio.to_thread(authentication.sign_in, *given)
    request.scope["state"]["signed_in"] = token.user
    return {"token": token.model_dump(mode="json"), "text": text}


@router.delete("/session")
def sign_out(accounts: AccountCommandsDep) -> Token:
    """Ends the token that came with the request."""
    return accounts.sign_out()


@router.post("/dashboard", status_code=201)
def make_link(body: DashboardBody, request: Request, accounts: AccountCommandsDep) -> dict[str, Any]:
    """Where the page is (`url`), and `link`, which signs in there once as `user`, for so many `seconds`. WRONG_STATE
    while the daemon does not listen for the network."""
    network = request.app.state.context.network
    url = network.shown().url if network else ""
    if not url:
        what, why = "there is no page", "the daemon does not listen for the network, and the page needs TLS"
        raise Refused(Code.WRONG_STATE, what, why, "wherry daemon listen 127.0.0.1:7443")
    authentication: Authentication = request.app.state.authentication
    user, code = accounts.sign_in_link(body.user, authentication.link)
    return {"url": f"{url}/web", "link": f"{url}/web/enter#{code}", "user": user, "seconds": LINK_SECONDS}


@router.get("/users")
def list_users(accounts: AccountCommandsDep, paging: PagingDep) -> list[Account]:
    """By name."""
    return paging.answer(sliced(accounts.users(), paging.wanted(str), lambda account: (account.name,)))


@router.post("/users", status_code=201)
def add_user(body: UserBody, accounts: AccountCommandsDep) -> Account:
    """Makes an account."""
    return accounts.add_user(body.name, body.role, body.quota, _text(body.password), body.by_pam)


@router.get("/users/{name}")
def show_user(name: str, accounts: AccountCommandsDep) -> Me:
    """An account with its quota, what it uses, and its projects."""
    return accounts.user(name)


@router.patch("/users/{name}")
def change_user(name: str, body: UserChange, accounts: AccountCommandsDep) -> Account:
    """Changes role or quota; objects beyond a smaller quota stay."""
    return accounts.change_user(name, body.role, body.quota)


@router.delete("/users/{name}")
def remove_user(name: str, accounts: AccountCommandsDep) -> Account:
    """Removes an account and ends its tokens. WRONG_STATE while it has clusters."""
    return accounts.remove_user(name)


@router.put("/users/{name}/password")
def set_password(name: str, body: PasswordBody, accounts: AccountCommandsDep) -> Account:
    """Changes the password, and ends all tokens of the account."""
    return accounts.set_password(name, body.password.get_secret_value(), _text(body.old), body.by_pam)


@router.put("/users/{name}/identity")
def set_identity(name: str, body: IdentityBody, accounts: AccountCommandsDep) -> Account:
    """Has the account sign in by the provider of identities as that, or no more; its sessions end. NAME_TAKEN."""
    return accounts.set_identity(name, body.identity or "")


@router.get("/allowed")
def show_allowed(accounts: AccountCommandsDep) -> dict[str, Allowed]:
    """The programs that accounts without the role admin may start."""
    return {"allowed": accounts.allowed()}


@router.put("/allowed")
def set_allowed(body: AllowedBody, accounts: AccountCommandsDep) -> dict[str, Allowed]:
    """Changes that."""
    return {"allowed": accounts.allow(body.allowed)}


@router.get("/tokens")
def list_tokens(accounts: AccountCommandsDep, paging: PagingDep) -> list[Token]:
    """One's own, or for admins all; oldest first."""
    return paging.answer(sliced(accounts.tokens(), paging.wanted(float, str), lambda one: (one.created, one.id)))


@router.post("/tokens", status_code=201)
def add_token(body: TokenBody, accounts: AccountCommandsDep) -> dict[str, Any]:
    """Makes a token: `token` (its record) and `text`, the secret, which is sent only once."""
    token, text = accounts.add_token(body.user, body.name, body.days)
    return {"token": token.model_dump(mode="json"), "text": text}


@router.delete("/tokens/{id}")
def revoke_token(id: str, accounts: AccountCommandsDep) -> Token:
    """Ends a token at once."""
    return accounts.revoke(id)


@router.get("/audit")
def list_audit(
    accounts: AccountCommandsDep,
    paging: PagingDep,
    after: Offset = 0,
    who: ShortText | None = None,
    newest: Newest = False,
) -> list[AuditEntry]:
    """Entries after number `after`, oldest first; of one account, if given."""
    return paging.answer(accounts.audit(paging.wanted(int, newest=newest), after, who))


def _text(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
