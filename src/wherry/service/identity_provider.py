"""Sign-in by a provider of identities: the authorization code flow of OpenID Connect with PKCE (docs/design/0038).

Invariants: an answer of the provider counts once, for the browser that asked, and for ten minutes; an ID token counts
only when the provider's key has signed it, for this daemon and for that question. The secret of the client is a
sealed one of the store.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode

import urllib3
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.model.identity import PROVIDER_SECRET, Claim, ProviderSetting, ProviderState
from wherry.service.context import ServiceContext
from wherry.service.rate_limit import RateLimit, source_of

CALLBACK = "/web/provider/callback"
"""Path of the page to which the provider sends browsers back."""
BEGUN_SECONDS = 600.0
"""How long a sign-in may take at the provider."""
_SETTING = "provider"
"""Setting: a ProviderSetting as JSON; empty: there is none."""
_MAX_BEGUN, _MAX_BYTES = 1000, 1 << 20
"""Sign-ins under way, of which the oldest is forgotten for a new one; bytes of an answer of the provider."""
_SECONDS = 10.0
"""How long a request to the provider may take."""
_AT_ONCE = threading.BoundedSemaphore(4)
"""Requests to the provider at the same time, as each holds a thread."""
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by public keys alone."""
_LEEWAY = 60
"""Seconds by which the clocks may differ."""
_SCOPES = {Claim.SUBJECT: "openid", Claim.EMAIL: "openid email", Claim.NAME: "openid profile"}


@dataclass(frozen=True)
class Person:
    """The provider's issuer and its own number of a person (`sub`), and the value of the claim that is compared."""

    subject: str
    identity: str


@dataclass(frozen=True)
class _Begun:
    browser: str
    """Digest of the cookie of the browser that asked."""
    nonce: str
    verifier: str
    callback: str
    until: float


class IdentityProvider:
    """The provider of an instance. Safe from several threads; `change`, `begin` and `finish` wait for the provider."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._begun: dict[str, _Begun] = {}
        """By digest of the state, oldest first."""
        self._rate = RateLimit(rate=0.5, burst=20.0)

    def setting(self) -> ProviderSetting | None:
        """The present provider."""
        text = self._context.store.setting(_SETTING)
        return ProviderSetting.model_validate_json(text) if text else None

    def state(self) -> ProviderState:
        """The same, with the address to register there."""
        setting = self.setting()
        return ProviderState(setting=setting, callback=self._callback(setting) if setting else "")

    def change(self, setting: ProviderSetting | None, secret: str) -> ProviderState:
        """Has accounts sign in by this provider (None: by none) from now on. UNREACHABLE, FAILED when it does not
        answer as a provider does; then all stays as it was."""
        store = self._context.store
        if setting:
            _metadata(setting)
            store.put_secret(PROVIDER_SECRET, secret)
        store.put_setting(_SETTING, setting.model_dump_json() if setting else "")
        if not setting:
            store.drop_secret(PROVIDER_SECRET)
        told = f"accounts may sign in by {setting.issuer}" if setting else "accounts sign in by no provider"
        store.add_event("provider.change", self._context.instance.name, told)
        return self.state()

    def begin(self, browser: str, address: str) -> str:
        """The address at the provider to which a browser goes that has the cookie `browser`. NOT_FOUND without a
        provider; TOO_MANY, UNREACHABLE."""
        setting = self._required()
        if not self._rate.take(source_of(address)):
            why = "this keeps others from filling the list of sign-ins under way"
            raise Refused(Code.TOO_MANY, "too many sign-ins were begun at your address", why, "wait a minute")
        metadata, callback = _metadata(setting), self._callback(setting)
        state, nonce, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        with self._lock:
            while len(self._begun) >= _MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
            until = time.monotonic() + BEGUN_SECONDS
            self._begun[_digest(state)] = _Begun(_digest(browser), nonce, verifier, callback, until)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code", "client_id": setting.client, "redirect_uri": callback,
            "scope": _SCOPES[setting.claim], "state": state, "nonce": nonce,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        there = metadata["authorization_endpoint"]
        return f"{there}{'&' if '?' in there else '?'}{urlencode(asked)}"

    def finish(self, browser: str, state: str, code: str) -> Person:
        """The person whom the provider names by a code. UNAUTHENTICATED when the answer is not one to a question of
        this browser, or its token is not right; UNREACHABLE."""
        setting = self._required()
        with self._lock:
            begun = self._begun.pop(_digest(state), None)
        if not begun or time.monotonic() > begun.until or not hmac.compare_digest(begun.browser, _digest(browser)):
            raise _refused("this browser has begun no such sign-in, or more than ten minutes ago")
        metadata = _metadata(setting)
        token = self._token(setting, metadata, code, begun)
        return _person(setting, _ask(setting, "GET", metadata["jwks_uri"]), token, begun.nonce)

    def _token(self, setting: ProviderSetting, metadata: Mapping[str, Any], code: str, begun: _Begun) -> str:
        """The ID token for a code."""
        fields = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": begun.callback,
            "code_verifier": begun.verifier, "client_id": setting.client,
        }  # fmt: skip
        secret, headers = self._secret(), dict[str, str]()
        if secret and "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", _BASIC):
            pair = f"{quote_plus(setting.client)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif secret:
            fields["client_secret"] = secret
        answer = _ask(setting, "POST", metadata["token_endpoint"], fields, headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise _refused("the provider gave no ID token")
        return token

    def _callback(self, setting: ProviderSetting) -> str:
        network = self._context.network
        url = setting.url or (network.shown().url if network else "")
        return f"{url.rstrip('/')}{CALLBACK}" if url else ""

    def _required(self) -> ProviderSetting:
        setting = self.setting()
        if setting is None:
            raise Refused(Code.NOT_FOUND, "there is no provider to sign in by", "", "sign in by password")
        return setting

    def _secret(self) -> str:
        try:
            return self._context.store.secret(PROVIDER_SECRET)
        except WherryError as error:
            what = "the daemon's secret for the provider cannot be read"
            raise Failed(Code.FAILED, what, error.why, "wherry daemon provider ISSUER --client NAME") from None


_BASIC = ("client_secret_basic",)
"""The way to show the secret that every provider has, where its description has none (OpenID Connect Discovery 1.0)."""


def _metadata(setting: ProviderSetting) -> dict[str, Any]:
    """The provider's own description (OpenID Connect Discovery 1.0)."""
    found = _ask(setting, "GET", f"{setting.issuer.rstrip('/')}/.well-known/openid-configuration")
    if found.get("issuer") != setting.issuer:
        raise _strange(setting, f"it calls itself {str(found.get('issuer'))[:100]!r}")
    for key in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not str(found.get(key, "")).startswith("https://"):
            raise _strange(setting, f"its {key} is not an https address")
    return found


def _ask(
    setting: ProviderSetting,
    method: str,
    url: str,
    fields: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A JSON object of the provider, whose TLS is checked. A refusal of a token (HTTP 4xx) is UNAUTHENTICATED."""
    if not _AT_ONCE.acquire(timeout=_SECONDS):
        raise Refused(Code.TOO_MANY, "too many sign in at this moment", "", "sign in again in a moment")
    try:
        context = ssl.create_default_context(cafile=setting.ca)
        given, body = {"Accept": "application/json", **(headers or {})}, urlencode(fields) if fields else None
        if fields:
            given["Content-Type"] = "application/x-www-form-urlencoded"
        with urllib3.PoolManager(ssl_context=context, timeout=_SECONDS, retries=False) as pool:
            answer = pool.request(method, url, body=body, headers=given, redirect=False, preload_content=False)
            text = answer.read(_MAX_BYTES + 1)
            answer.release_conn()
    except (OSError, urllib3.exceptions.HTTPError) as error:
        what = f"the provider of identities {setting.issuer} does not answer"
        raise LostContact(Code.UNREACHABLE, what, str(error)[:300], "sign in by password, or by a link") from None
    finally:
        _AT_ONCE.release()
    if fields and 400 <= answer.status < 500:
        raise _refused(f"the provider refused the code: {text[:200].decode('utf-8', 'replace')}")
    if answer.status != 200 or len(text) > _MAX_BYTES:
        raise _strange(setting, f"{url}: status {answer.status}, {len(text)} bytes")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _strange(setting, f"{url} is not a JSON object")
    return found


def _person(setting: ProviderSetting, keys: dict[str, Any], text: str, nonce: str) -> Person:
    """The person of an ID token that the provider has signed for this client and this question."""
    try:
        token = jwt.decode(text, KeySet.import_key_set(keys), algorithms=_ALGORITHMS)  # type: ignore[arg-type]
        claims = token.claims
        jwt.JWTClaimsRegistry(
            leeway=_LEEWAY,
            iss={"essential": True, "value": setting.issuer},
            aud={"essential": True, "value": setting.client},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise _refused(f"the provider's ID token is not right: {error}") from None
    if claims.get("azp", setting.client) != setting.client:
        raise _refused("the provider's ID token is for another client")
    subject, identity = claims.get("sub"), claims.get(setting.claim)
    if setting.claim is Claim.EMAIL and claims.get("email_verified") is not True:
        raise _refused("the provider has not verified your mail address")
    if not isinstance(subject, str) or not isinstance(identity, str) or not subject or not identity:
        raise _refused(f"the provider's ID token has no {setting.claim}")
    return Person(f"{setting.issuer} {subject}", identity)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _strange(setting: ProviderSetting, why: str) -> Failed:
    return Failed(Code.FAILED, f"{setting.issuer} is not a provider of OpenID Connect", why, "check the address")


def _refused(why: str) -> Refused:
    return Refused(Code.UNAUTHENTICATED, "you are not signed in", why, "sign in again")
