"""ASGI middleware in front of all routes: authorisation, version check, size limit, idempotency.

Invariants: a request of a peer that is not authorised, of another version, or larger than 4 MiB changes nothing. Every
answer carries the daemon's version. All requests of a user with one `Idempotency-Key` begin at most one operation, also
across a restart of the daemon, so a client may repeat a request after a timeout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

from wherry import __version__
from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.service.operations import Operations, idempotency_key
from wherry.service.problem import problem

_BODY = 4 * 2**20
"""Largest request in bytes: a command line and an environment (ARG_MAX is 2 MiB) as JSON."""
_KEY = 64
"""Significant characters of an idempotency key."""
_ANY_VERSION = ("/healthz", "/v1/version")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequestMiddleware:
    """Wraps the routes. Members of `group` are authorised beside root and the daemon's own user."""

    def __init__(self, app: App, operations: Operations, group: int | None = None) -> None:
        self._app = app
        self._operations = operations
        self._group = group
        self._serving: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        """By user and idempotency key. A lock lives as long as a request holds it or waits for it."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            body = await _body(receive)
        except WherryError as error:
            await _answer(send, error)
            return
        if body is None:
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def add_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), _VERSION]
            await send(message)

        key = dict(scope["headers"]).get(b"idempotency-key", b"").decode("latin-1")[:_KEY]
        if not key or scope["method"] == "GET":
            await self._app(scope, replay, add_version)
        else:
            await self._at_most_once(key, scope, replay, add_version)

    async def _at_most_once(self, key: str, scope: Message, receive: Receive, send: Send) -> None:
        uid = scope["state"]["peer"].uid
        lock = self._serving.setdefault((uid, key), asyncio.Lock())
        async with lock:
            begun = await asyncio.to_thread(self._operations.with_key, uid, key)
            if begun is not None:
                await _send(send, 202, begun.model_dump_json().encode(), _location(begun.id))
                return
            token = idempotency_key.set(key)
            try:
                await self._app(scope, receive, send)
            finally:
                idempotency_key.reset(token)

    def _check(self, scope: Message) -> None:
        peer = scope.get("state", {}).get("peer")
        if peer is None or not peer.is_authorised(self._group):
            what = "this user may not use the daemon" if peer else "the connection has no peer credentials"
            raise Refused(Code.PERMISSION, what, "the socket is for root (or the group of wherryd --group)", "use sudo")
        theirs = dict(scope["headers"]).get(b"wherry-version", b"").decode("latin-1")
        if theirs and theirs != __version__ and scope["path"] not in _ANY_VERSION:
            why = f"the daemon is {__version__}, the client is {theirs}"
            what = "client and daemon are of different versions"
            raise LostContact(Code.VERSION_MISMATCH, what, why, "wherry daemon stop")


_VERSION = (b"wherry-version", __version__.encode())


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None when the client disconnected before its end."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _BODY:
            why = f"a request holds at most {_BODY // 2**20} MiB"
            raise Refused(Code.USAGE, "the request is too large", why, "send fewer or shorter arguments and variables")
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, error: WherryError) -> None:
    body = json.dumps(problem(error)).encode()
    headers = [(b"content-type", b"application/problem+json"), _VERSION, (b"connection", b"close")]
    await _send(send, error.code.http_status, body, headers)


def _location(id: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"location", f"/v1/operations/{id}".encode())]


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
