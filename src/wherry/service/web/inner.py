"""Asks routes of the REST interface inside the process, as the caller who asked for a page.

Invariant: the same request over the network would have had the same answer: the same row of rights, command and
error; only the caller is known already.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from wherry.base.errors import Code, Refused, WherryError, from_dict

Message = MutableMapping[str, Any]
_HANDED_ON = ("peer", "network")
"""Of the state of a request: the caller, and its address."""


class Inner:
    """The REST interface for one page."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.operation = ""
        """Address of the operation that was begun last, as Location has it."""

    async def get(self, *parts: str, **query: Any) -> Any:
        """The JSON that a path answers, given by its parts after /v1. WherryError."""
        return await self.ask("GET", *parts, query=query)

    async def ask(self, method: str, *parts: str, body: Any = None, query: Any = None) -> Any:
        """The same for any method. NOT_FOUND when a part is no name."""
        for part in parts:
            if not part or "/" in part or part in (".", ".."):
                raise Refused(Code.NOT_FOUND, f"nothing is named {part!r}", "", "wherry status")
        status, headers, content = await self._sent(method, f"/v1/{'/'.join(parts)}", body, query or {})
        found = json.loads(content) if content else None
        if status >= 400:
            raise from_dict(found if isinstance(found, dict) else {})
        self.operation = headers.get(b"location", b"").decode("latin-1") or self.operation
        return found

    async def ask_or(self, otherwise: Any, *parts: str, **query: Any) -> Any:
        """As `get`, but `otherwise` for a refusal: of a part of a page that the caller may not see, or that there is
        not now."""
        try:
            return await self.get(*parts, **query)
        except WherryError:
            return otherwise

    async def _sent(self, method: str, path: str, body: Any, query: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        outer = self._request.scope
        content = b"" if body is None else json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": outer.get("asgi", {"version": "3.0"}), "http_version": "1.1", "method": method,
            "scheme": outer.get("scheme", "https"), "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": urlencode(query).encode(), "client": outer.get("client"), "server": outer.get("server"),
            "headers": [(b"host", b"inner"), (b"content-type", b"application/json")],
            "state": {key: outer["state"][key] for key in _HANDED_ON if key in outer["state"]},
        }  # fmt: skip
        sent: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
        status, headers, parts = 500, dict[bytes, bytes](), list[bytes]()

        async def receive() -> Message:
            if not sent:
                await asyncio.Event().wait()  # nobody hangs up
            return sent.pop()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], {key.lower(): value for key, value in message.get("headers", [])}
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._request.app(scope, receive, send)
        return status, headers, b"".join(parts)
