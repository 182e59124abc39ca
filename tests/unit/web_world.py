"""A browser without a screen, for the page of a service in memory: it keeps the cookie and the token of forms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from accounts_world import Accounts

from wherry.service.authentication import COOKIE, Authentication

ORIGIN = "https://daemon.example:7443"


class Browser:
    """Asks as somebody who has no token, from the world's address."""

    def __init__(self, world: Accounts) -> None:
        self.world = world
        self.cookie, self.csrf = "", ""

    @property
    def authentication(self) -> Authentication:
        app: Any = self.world.app._app
        found: Authentication = app.state.authentication
        return found

    def ask(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> httpx.Response:
        """One request, with the session's cookie and nothing else of it."""
        given = {"Cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}
        answer = asyncio.run(self._asked(method, path, form, {**given, **(headers or {})}, json))
        for line in answer.headers.get_list("set-cookie"):
            self.cookie = line.partition("=")[2].partition(";")[0]
        self.csrf = answer.headers.get("wherry-csrf", self.csrf)
        return answer

    async def _asked(
        self, method: str, path: str, form: Mapping[str, str] | None, headers: Mapping[str, str], json: Any
    ) -> httpx.Response:
        async def told(scope: Any, receive: Any, send: Any) -> None:
            await self.world.app({**scope, "state": {"network": self.world.address}}, receive, send)

        transport = httpx.ASGITransport(told)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=60) as client:
            return await client.request(method, path, data=form, json=json, headers=dict(headers))

    def get(self, path: str, part: bool = False) -> httpx.Response:
        """A page, or for htmx the part of it that changes."""
        return self.ask("GET", path, headers={"HX-Request": "true"} if part else {})

    def send(self, path: str, **form: str) -> httpx.Response:
        """A form of the page, as htmx sends it."""
        return self.ask("POST", path, form, {"HX-Request": "true", "Wherry-CSRF": self.csrf, "Origin": ORIGIN})

    def enter(self, user: str) -> Browser:
        """Signs in by a link, and looks at the first page."""
        code = self.authentication.link(user)
        answer = self.ask("POST", "/web/enter", {"code": code}, {"Origin": ORIGIN})
        assert answer.status_code == 303 and answer.headers["location"] == "/web", answer.text
        assert self.get("/web").status_code == 200 and self.csrf
        return self
