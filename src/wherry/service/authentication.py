"""Callers over the network: tokens, sessions of browsers, sign-in by password or link, and how often each is tried.

Invariants: a token's secret is compared in constant time and never stored; all that is wrong with a sign-in has one
answer, after the same work; a right token is accepted however many wrong ones came from its address; a session is no
bearer token, nor the reverse.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.ids import new_id
from wherry.model.accounts import LONGEST_TOKEN, PAM, Token, TokenKind
from wherry.service import pam, passwords
from wherry.service.account_caller import AccountCaller
from wherry.service.context import ServiceContext
from wherry.service.rate_limit import RateLimit, source_of
from wherry.service.sign_in_links import SignInLinks
from wherry.store.accounts import Identity

COOKIE = "__Host-wherry"
"""Of a session. The prefix has browsers take it only over TLS, for this host and all paths (RFC 6265bis)."""
SESSION_SECONDS, IDLE_SECONDS = 12 * 3600.0, 2 * 3600.0
"""How long a session is good, at the most and without a request."""
RENEW_SECONDS, GRACE_SECONDS = 3600.0, 60.0
"""How long a session's secret is used, and for how long it is good beside the new one, for requests under way."""
SESSIONS = 20
"""Most sessions of an account."""
_TOKEN = r"(wt-[0-9a-z]{1,20})\.([0-9a-f]{64})"
_BEARER, _SESSION = re.compile(f"[Bb]earer {_TOKEN}", re.ASCII), re.compile(_TOKEN, re.ASCII)
_DAY = 86_400.0


def parsed(values: Sequence[bytes]) -> tuple[str, str] | None:
    """Id and secret of the token that the headers `Authorization` of a request have; None unless it is exactly one."""
    if len(values) != 1:
        return None
    found = _BEARER.fullmatch(values[0].decode("latin-1"))
    return (found[1], found[2]) if found else None


def session_in(values: Sequence[bytes]) -> str | None:
    """The session's cookie in the headers `Cookie` of a request; None unless there is exactly one."""
    pairs = [pair.strip().partition("=") for value in values for pair in value.decode("latin-1").split(";")]
    found = [value for name, _, value in pairs if name == COOKIE]
    return found[0] if len(found) == 1 else None


def csrf_of(secret: str) -> str:
    """The value that forms of a session send along, made of the session's secret, which it does not reveal."""
    return hmac.new(secret.encode(), b"wherry csrf", hashlib.sha256).hexdigest()


class Authentication:
    """Of the accounts of an instance. Safe from several threads."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._wrong_tokens = RateLimit(rate=1.0, burst=20.0)
        self._sign_ins = RateLimit(rate=1 / 6, burst=10.0)
        self._links = SignInLinks()

    def caller(self, authorization: Sequence[bytes], address: str) -> AccountCaller:
        """The account whose token it is. UNAUTHENTICATED; TOO_MANY when too many wrong ones came from there."""
        found = self._identity(parsed(authorization), TokenKind.API, bool(authorization), address)
        return AccountCaller.of(found.account, found.projects, address, found.token.id)

    def session_caller(self, cookie: str, address: str, csrf: str | None) -> AccountCaller:
        """The account whose session it is. `csrf` is sent with a request that changes something; None: it changes
        nothing. UNAUTHENTICATED, TOO_MANY; PERMISSION when another site may have made the request."""
        matched = _SESSION.fullmatch(cookie)
        given = (matched[1], matched[2]) if matched else None
        found = self._identity(given, TokenKind.SESSION, True, address)
        own = csrf_of(given[1]) if given else ""
        if csrf is not None and not hmac.compare_digest(own.encode(), csrf.encode()):
            why = "it lacks the token that the page of your session sends; the page may be older than your session"
            raise Refused(Code.PERMISSION, "the request does not come from the page", why, "reload the page")
        return AccountCaller.of(found.account, found.projects, address, found.token.id, own)

    def again(self, caller: AccountCaller) -> AccountCaller | None:
        """The caller as it is now; None when its token or account is gone."""
        found = self._context.store.accounts.identity(caller.token)
        if found is None or _has_ended(found.token):
            return None
        return replace(caller, account=found.account, projects=found.projects)

    def sign_in(self, user: str, password: str, address: str, name: str, days: int) -> tuple[Token, str]:
        """A new token of the account, and its text, which is shown this once. UNAUTHENTICATED, TOO_MANY."""
        self._check_password(user, password, address)
        return new_token(self._context, user, name, days)

    def open_session(self, user: str, password: str, address: str) -> tuple[Token, str]:
        """The same for a browser: the text is its cookie."""
        self._check_password(user, password, address)
        return self._new_session(user)

    def open_session_elsewhere(self, identity: str, subject: str) -> tuple[Token, str]:
        """The same for a person whom the provider of identities names. UNAUTHENTICATED without an account."""
        account = self._context.store.accounts.identified(identity, subject)
        if account is None:
            why = f"no account has the identity {identity[:100]!r}, or it is another person's by now"
            raise Refused(Code.UNAUTHENTICATED, "you are not signed in", why, "ask an admin: wherry user identity NAME")
        return self._new_session(account.name)

    def link(self, user: str) -> str:
        """The code of a link that signs in once as the account, until its password is changed or it is removed."""
        return self._links.add(user, self._stamp(user))

    def enter(self, code: str, address: str, before: str = "") -> tuple[Token, str]:
        """A session by a link that signs in once, in a browser with the cookie `before`. UNAUTHENTICATED, TOO_MANY;
        WRONG_STATE when that is another's: somebody's own link, sent to others, would have them work in its account."""
        user, stamp = self._links.take(code) or ("", "")
        if not user or not stamp or self._stamp(user) != stamp:
            if not self._wrong_tokens.take(source_of(address)):
                raise _too_many("too many wrong links came from your address")
            why = "a link signs in once, and for five minutes"
            raise Refused(Code.UNAUTHENTICATED, "this link does not sign in", why, "wherry dashboard")
        now_in = self._session(before)
        if now_in and not _has_ended(now_in.token) and now_in.account.name != user:
            why = f"it is {user}'s, and you are signed in as {now_in.account.name}"
            raise Refused(Code.WRONG_STATE, "this link is another account's", why, "sign out, then make another link")
        return self._new_session(user)

    def close_session(self, cookie: str) -> None:
        """Ends a session by its cookie, if that is right."""
        found = self._session(cookie)
        if found:
            self._context.store.accounts.drop_token(found.token.id)

    def _session(self, cookie: str) -> Identity | None:
        """The session of a right cookie, whether or not it has ended."""
        matched = _SESSION.fullmatch(cookie)
        found = self._context.store.accounts.identity(matched[1]) if matched else None
        return found if matched and found and hmac.compare_digest(_digest(matched[2]), found.digest) else None

    def renewed(self, id: str) -> tuple[Token, str] | None:
        """A session with a new secret in place of a secret that was used for an hour; None when it was not."""
        accounts = self._context.store.accounts
        found, time = accounts.identity(id), now()
        if found is None or found.token.kind is not TokenKind.SESSION or time - found.token.created < RENEW_SECONDS:
            return None
        if not accounts.shorten_token(id, time + GRACE_SECONDS):  # it ends soon, or another request was quicker
            return None
        left = found.token.expires - time
        return new_token(self._context, found.account.name, found.token.name, 1, TokenKind.SESSION, left)

    def _stamp(self, user: str) -> str:
        """Another when the account is another one of the same name, or has another password; empty: there is none."""
        account = self._context.store.accounts.user(user)
        return f"{account.created} {_digest(self._context.store.accounts.password(user))}" if account else ""

    def _new_session(self, user: str) -> tuple[Token, str]:
        accounts = self._context.store.accounts
        sessions = [token for token in accounts.tokens(user) if token.kind is TokenKind.SESSION]
        good = [token for token in sessions if not _has_ended(token)]
        keep = {token.id for token in sorted(good, key=lambda token: token.created)[1 - SESSIONS :]}
        for token in sessions:
            if token.id not in keep:
                accounts.drop_token(token.id)
        return new_token(self._context, user, "web page", 1, TokenKind.SESSION, SESSION_SECONDS)

    def _identity(self, given: tuple[str, str] | None, kind: TokenKind, shown: bool, address: str) -> Identity:
        found = self._context.store.accounts.identity(given[0]) if given else None
        right = bool(given and found and hmac.compare_digest(_digest(given[1]), found.digest))
        right = right and bool(found and found.token.kind is kind)
        if not (right and found) or _has_ended(found.token):
            if not self._wrong_tokens.take(source_of(address)):
                raise _too_many("too many wrong tokens came from your address")
            why = "it has ended" if right else "it is missing, wrong or revoked" if shown else "there is none"
            raise Refused(Code.UNAUTHENTICATED, "no valid token came with the request", why, "wherry login URL")
        self._context.store.accounts.used_token(found.token)
        return found

    def _check_password(self, user: str, password: str, address: str) -> None:
        for bucket in (f"from {source_of(address)}", f"of {user}"):
            if not self._sign_ins.take(bucket):
                raise _too_many("too many sign-ins were tried")
        accounts = self._context.store.accounts
        kept = accounts.password(user)
        right = passwords.verified(kept, password)  # for PAM, too: a wrong name takes as long
        if kept == PAM:
            right = pam.verified(user, password)
        if not right or accounts.password(user) != kept:
            why = "the name or the password is wrong, or the account has no password"
            raise Refused(Code.UNAUTHENTICATED, "you are not signed in", why, "wherry login URL --user NAME")


def new_token(
    context: ServiceContext,
    user: str,
    name: str,
    days: int,
    kind: TokenKind = TokenKind.API,
    seconds: float | None = None,
) -> tuple[Token, str]:
    """Makes a token of an account, for days or so many seconds; returns it with its text, which is kept nowhere.
    NOT_FOUND."""
    secret, created = secrets.token_hex(32), now()
    expires = created + (min(days, LONGEST_TOKEN) * _DAY if seconds is None else seconds)
    token = Token(id=new_id("wt"), user=user, name=name, created=created, expires=expires, kind=kind)
    context.store.accounts.add_token(token, _digest(secret))
    return token, f"{token.id}.{secret}"


def _has_ended(token: Token) -> bool:
    time = now()
    idle = token.kind is TokenKind.SESSION and time - (token.used or token.created) > IDLE_SECONDS
    return token.expires <= time or idle


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _too_many(what: str) -> Refused:
    return Refused(Code.TOO_MANY, what, "this keeps others from guessing", "wait a minute, then repeat the command")
