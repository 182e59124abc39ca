"""Glewlwyd, a provider of OpenID Connect, as Debian has it: with TLS on loopback, and people who sign in there.

scripts/setup-test unpacks it, with the libraries that the machine lacks, into build/glewlwyd.
"""

from __future__ import annotations

import os
import sqlite3
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from provider_world import CLIENT
from web_world import ORIGIN

import waiting
from ports import reserved
from wherry.service import tls
from wherry.service.identity_provider import CALLBACK

ROOT = Path(__file__).resolve().parents[2] / "build" / "glewlwyd"
PROGRAM = ROOT / "usr/bin/glewlwyd"
SECRET, PASSWORD = "a-secret_of.the~client", "four words are long"
_ADMIN = {"username": "admin", "password": "password"}
"""The account of a new database."""
_SCHEMA = ROOT / "usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
_MODULES = ROOT / "usr/lib/glewlwyd"
_SETTINGS = """
port = {port}
bind_address = "127.0.0.1"
external_url = "https://localhost:{port}"
login_url = "login.html"
api_prefix = "api"
log_mode = "file"
log_level = "INFO"
log_file = "{directory}/log"
cookie_secure = 1
session_expiration = 3600
session_key = "GLEWLWYD2_SESSION_ID"
admin_scope = "g_admin"
profile_scope = "g_profile"
user_module_path = "{modules}/user"
user_middleware_module_path = "{directory}"
client_module_path = "{modules}/client"
user_auth_scheme_module_path = "{modules}/scheme"
plugin_module_path = "{modules}/plugin"
use_secure_connection = true
secure_connection_key_file = "{key}"
secure_connection_pem_file = "{certificate}"
hash_algorithm = "SHA512"
database = {{ type = "sqlite3"; path = "{directory}/database"; }};
"""
_SCOPE = {"name": "email", "display_name": "mail", "description": "address", "password_required": False,
          "password_max_age": 0, "scheme": {}}  # fmt: skip
_VERIFIED = {"name": "email_verified", "user-property": "verified", "type": "boolean", "boolean-value-true": "1",
             "boolean-value-false": "0", "mandatory": False, "on-demand": False, "scope": ["email"]}  # fmt: skip
_FLOWS = ("token", "id-token", "implicit", "none", "password", "client", "refresh")


class Glewlwyd:
    """The provider. `issuer` and `ca` are those of a ProviderSetting."""

    def __init__(self, directory: Path, port: int) -> None:
        self.base, self.ca = f"https://localhost:{port}/api", str(tls.authority_path(directory))
        self.issuer = f"{self.base}/oidc"
        self._trust = ssl.create_default_context(cafile=self.ca)

    def answers(self) -> bool:
        try:
            return self.browser().get("/").status_code > 0
        except httpx.TransportError:
            return False

    def browser(self) -> httpx.Client:
        """A browser at the provider, with cookies of its own."""
        return httpx.Client(verify=self._trust, timeout=60, base_url=self.base)

    def prepare(self, key: str, public: str) -> None:
        """The plugin for OpenID Connect, and the daemon as its client."""
        with self.browser() as admin:
            _sent(admin, "POST", "/auth/", _ADMIN)
            _sent(admin, "POST", "/scope/", _SCOPE)
            flows = {f"auth-type-{flow}-enabled": False for flow in _FLOWS} | {"auth-type-code-enabled": True}
            parameters = {
                **flows, "iss": self.issuer, "jwt-type": "ecdsa", "jwt-key-size": "256", "key": key, "cert": public,
                "access-token-duration": 3600, "refresh-token-duration": 3600, "code-duration": 60,
                "refresh-token-rolling": True, "allow-non-oidc": False, "pkce-allowed": True, "pkce-required": True,
                "jwks-show": True, "subject-type": "public", "email-claim": "on-demand", "email-claim-scope": ["email"],
                "claims": [_VERIFIED], "allowed-scope": ["openid", "email"], "request-parameter-allow": False,
            }  # fmt: skip
            plugin = {"module": "oidc", "name": "oidc", "display_name": "oidc", "enabled": True}
            _sent(admin, "POST", "/mod/plugin/", {**plugin, "parameters": parameters})
            users: dict[str, Any] = admin.get("/mod/user/database").json()
            readable = {"multiple": False, "read": True, "write": True, "profile-read": True, "profile-write": False}
            users["parameters"]["data-format"]["verified"] = readable
            _sent(admin, "PUT", "/mod/user/database", users)
            _sent(admin, "PUT", "/mod/user/database/reset")
            client = {"client_id": CLIENT, "client_secret": SECRET, "password": SECRET, "enabled": True}
            client |= {"confidential": True, "scope": [], "redirect_uri": [f"{ORIGIN}{CALLBACK}"]}
            way = {"authorization_type": ["code"], "token_endpoint_auth_method": ["client_secret_basic"]}
            _sent(admin, "POST", "/client/", {**client, **way})

    def add(self, person: str, verified: bool) -> None:
        """A person with a mail address at example.org."""
        account = {"username": person, "password": PASSWORD, "email": f"{person}@example.org", "enabled": True}
        with self.browser() as admin:
            _sent(admin, "POST", "/auth/", _ADMIN)
            more = {"scope": ["openid", "email"], "verified": str(int(verified))}
            _sent(admin, "POST", "/user/", {**account, **more})

    def person(self, name: str) -> _Person:
        """Somebody who signs in there."""
        return _Person(self, name)


class _Person:
    def __init__(self, provider: Glewlwyd, name: str) -> None:
        self._provider, self._name = provider, name

    def sign_in(self, url: str) -> dict[str, str]:
        """As the provider's own page does it: the password, the consent, and on."""
        with self._provider.browser() as browser:
            _sent(browser, "POST", "/auth/", {"username": self._name, "password": PASSWORD})
            _sent(browser, "PUT", f"/auth/grant/{CLIENT}", {"scope": "openid email"})
            answer = browser.get(f"{url}&g_continue")
        assert answer.status_code == 302, answer.text
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        return {key: values[0] for key, values in query.items()}


def _sent(client: httpx.Client, method: str, path: str, body: Any = None) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"


@contextmanager
def running(directory: Path) -> Iterator[Glewlwyd]:
    """The provider with a new database, until the end of the block."""
    with sqlite3.connect(directory / "database") as database:
        database.executescript(_SCHEMA.read_text())
    database.close()
    certificate, key = tls.own_certificate(directory, {"localhost"})
    public = subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout"], capture_output=True, text=True, check=True)
    libraries = ":".join(map(str, (ROOT / "usr/lib").glob("*-linux-gnu")))
    with reserved() as port:
        settings = _SETTINGS.format(port=port, directory=directory, modules=_MODULES, key=key, certificate=certificate)
        (directory / "settings").write_text(settings)
        words, environment = [str(PROGRAM), f"--config-file={directory}/settings"], {"LD_LIBRARY_PATH": libraries}
        with subprocess.Popen(words, env={**os.environ, **environment}) as program:
            try:
                made = Glewlwyd(directory, port)
                waiting.until(made.answers, "an answer of the provider")
                made.prepare(key.read_text(), public.stdout)
                yield made
            finally:
                program.terminate()
