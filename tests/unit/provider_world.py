"""A provider of OpenID Connect on loopback, with TLS: it signs in everybody, and can be wrong in each part."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import httpx
from accounts_world import Accounts
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from web_world import Browser

from wherry.service import tls

CLIENT, SECRET = "wherry", "a secret of the client: 100%"


class Provider:
    """`claims` replace those of the next ID token (None leaves one out), `metadata` those of its description."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = RSAKey.generate_key(2048, parameters={"kid": "one"})
        self.signing, self.algorithm = self.key, "RS256"
        self.claims: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.asked: list[str] = []
        """Paths, in order."""
        self._codes: dict[str, dict[str, str]] = {}
        certificate, key = tls.own_certificate(directory, {"localhost"})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = tls.server_context(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.issuer = f"https://localhost:{self._server.server_port}/realm"

    @property
    def ca(self) -> str:
        return str(tls.authority_path(self.directory))

    def sign_in(self, url: str) -> dict[str, str]:
        """A person signs in at the provider's page: the parameters with which the browser is sent back."""
        asked = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code" and asked["client_id"] == CLIENT
        code = f"code-{len(self._codes)} &?"
        self._codes[code] = asked
        return {"state": asked["state"], "code": code}

    def answer(self, method: str, path: str, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """One request of the daemon."""
        self.asked.append(path)
        base = self.issuer
        if path == "/realm/.well-known/openid-configuration":
            ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            return 200, {"issuer": base, **{key: f"{base}/{end}" for key, end in ends.items()}, **self.metadata}
        if path == "/realm/keys":
            return 200, dict(KeySet([self.key]).as_dict(private=False))
        if path == "/realm/token" and method == "POST":
            return self._token(form, authorization)
        return 404, {}

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = _encoded(digest)
        shown = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        right = shown == "wherry:a+secret+of+the+client%3A+100%25" or form.get("client_secret") == SECRET
        if not asked or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if not right:
            return 401, {"error": "invalid_client"}
        claims: dict[str, Any] = {
            "iss": self.issuer, "aud": CLIENT, "sub": "4711", "nonce": asked["nonce"], "iat": int(time.time()),
            "exp": int(time.time()) + 300, "email": "ann@example.org", "email_verified": True,
            "preferred_username": "ann",
        }  # fmt: skip
        claims = {key: value for key, value in {**claims, **self.claims}.items() if value is not None}
        header = {"alg": self.algorithm, "kid": "one"}
        return 200, {"access_token": "unused", "token_type": "Bearer", "id_token": self._signed(header, claims)}

    def _signed(self, header: dict[str, str], claims: dict[str, Any]) -> str:
        if self.algorithm in ("RS256", "ES256"):
            return jwt.encode(header, claims, self.signing, algorithms=[self.algorithm])
        text = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        if self.algorithm == "none":
            return f"{text}."
        secret = self.key.as_pem(private=False)  # as the secret of a symmetric signature: it is known to everybody
        return f"{text}.{_encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


class SignsIn(Protocol):
    """A provider at whose page a person signs in."""

    def sign_in(self, url: str) -> dict[str, str]:
        """The parameters with which the browser is sent back from this address of the provider."""


class Elsewhere:
    """A browser that goes to the provider and comes back."""

    def __init__(self, world: Accounts, provider: SignsIn) -> None:
        self.provider, self.browser = provider, Browser(world)
        self.bound = ""

    def begin(self) -> str:
        """The address at the provider; the browser keeps the cookie."""
        answer = self.browser.ask("GET", "/web/provider")
        assert answer.status_code == 303, answer.text
        (line,) = answer.headers.get_list("set-cookie")
        pair, *attributes = line.split("; ")
        assert attributes == ["Path=/", "Secure", "HttpOnly", "SameSite=Lax", "Max-Age=600"]
        self.bound = pair
        return answer.headers["location"]

    def come_back(self, query: dict[str, str], cookie: str | None = None) -> httpx.Response:
        path = f"/web/provider/callback?{httpx.QueryParams(query)}"
        return self.browser.ask("GET", path, headers={"Cookie": self.bound if cookie is None else cookie})

    def sign_in(self) -> httpx.Response:
        return self.come_back(self.provider.sign_in(self.begin()))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _answer(self, text: str) -> None:
            form = {key: values[0] for key, values in parse_qs(text).items()}
            status, body = provider.answer(self.command, self.path, form, self.headers.get("Authorization", ""))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def running_provider(directory: Path) -> Iterator[Provider]:
    """A provider that answers until the end of the block."""
    provider = Provider(directory)
    thread = threading.Thread(target=provider._server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider._server.shutdown()
        provider._server.server_close()
        thread.join()
