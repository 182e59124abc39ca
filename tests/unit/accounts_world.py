"""Accounts of a service in memory, and requests of them as over the network, without TLS."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
from rest_service import Service

from wherry.model.accounts import Account, Allowed, Project, Quota, Role
from wherry.service.account_commands import AccountCommands
from wherry.service.authentication import new_token
from wherry.service.credentials import PeerCredentials
from wherry.service.rest.app import make_app

ROOT = PeerCredentials(0, 0, frozenset())
UNLIMITED = Quota(nodes=None, cores=None, memory=None)


@dataclass
class Accounts:
    """Asks the service as one of its accounts. `tokens` has one of each."""

    service: Service
    address: str = "192.0.2.7"
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = make_app(self.service.context)
        self.root = AccountCommands(self.service.context, ROOT)

    def add(self, name: str, role: Role = Role.USER, quota: Quota = UNLIMITED) -> Account:
        account = self.root.add_user(name, role, quota, None)
        self.tokens[name] = new_token(self.service.context, name, "test", 1)[1]
        return account

    def project(self, name: str, owner: str, *members: str) -> Project:
        project = self.root.add_project(name, owner, UNLIMITED)
        for member in members:
            project = self.root.set_member(name, member, False)
        return project

    def allow(self, what: Allowed = Allowed.JOBS) -> None:
        self.root.allow(what)

    def ask(self, who: str, method: str, path: str, json: Any = None, headers: Any = None) -> httpx.Response:
        """One request of an account, of root at the socket, or of nobody (an empty name)."""
        return asyncio.run(self.asked(who, method, path, json, headers))

    def done(self, who: str, method: str, path: str, json: Any = None) -> Any:
        """The result of an operation that must end well."""
        found = self.ended(who, method, path, json)
        assert found["state"] == "done", found["error"]
        return found["result"]

    def ended(self, who: str, method: str, path: str, json: Any = None) -> Any:
        """An operation, when it has ended."""
        answer = self.ask(who, method, path, json)
        assert answer.status_code == 202, answer.text
        while found := self.ask(who, "GET", answer.headers["Location"] + "?wait=5").json()["operation"]:
            if found["state"] != "running":
                return found

    async def asked(self, who: str, method: str, path: str, json: Any = None, headers: Any = None) -> httpx.Response:
        """The same, on the caller's event loop."""
        state = {"peer": ROOT} if who == "root" else {"network": self.address}
        given = {"Authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}

        async def told(scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(told)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:
            return await client.request(method, path, json=json, headers={**given, **(headers or {})})
