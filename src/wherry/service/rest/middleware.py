"""ASGI middleware in front of all routes: the caller, version check, size limit, idempotency, the audit log.

Invariants: a request of a peer that is not authorised, of another version, or larger than 4 MiB changes nothing; over
the network a body is read, and anything looked up, only after its account is known, except for sign-in;
a browser's session changes nothing without the token of its page.
Every answer carries the daemon's version. All requests of a user with one `Idempotency-Key` begin at most one
operation, also across a restart of the daemon, so a client may repeat a request after a timeout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

from wherry.base.acting import acting
from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.units import format_size
from wherry.base.version import __version__
from wherry.service.audit import Audit, header
from wherry.service.authentication import Authentication, session_in
from wherry.service.credentials import PeerCredentials
from wherry.service.ec2.endpoint import PATHS
from wherry.service.operations import Operations, idempotency_key
from wherry.service.problem import headers_of, problem
from wherry.service.rest.authorization import OPEN

_BODY = 4 * 2**20
"""Largest request in bytes: a command line and an environment (ARG_MAX is 2 MiB) as JSON."""
_BODY_OF_STRANGERS = 4096
_KEY = 64
"""Significant characters of an idempotency key."""
_READING = ("GET", "HEAD", "OPTIONS")
_ANY_VERSION = ("/healthz", "/v1/version")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Refusing = Callable[[Message, WherryError], tuple[int, list[tuple[bytes, bytes]], bytes] | None]
"""From a request and its error to status, headers and body of the answer."""


class RequestMiddleware:
    """Wraps the routes. Members of `group` are authorised beside root and the daemon's own user."""

    def __init__(
        self,
        app: App,
        operations: Operations,
        group: int | None = None,
        authentication: Authentication | None = None,
        audit: Audit | None = None,
        ec2: App | None = None,
        refused: Refusing | None = None,
    ) -> None:
        """`ec2` answers requests over the network for its paths; it identifies its callers by their signatures.
        `refused` answers an error before any other route, where it does not answer None."""
        self._app = app
        self._operations = operations
        self._group = group
        self._authentication, self._audit, self._ec2, self._refused = authentication, audit, ec2, refused
        self._serving: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        """By user and idempotency key. A lock lives as long as a request holds it or waits for it."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "network" in scope.get("state", {}):
            send = _kept_by_nobody(send)
            if self._ec2 and scope["path"] in PATHS:
                await self._ec2(scope, receive, send)
                return
        watched = _Watched(scope, send)
        try:
            await self._serve(scope, receive, watched)
        finally:
            await self._write_down(watched)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            peer = await self._known(scope)
            _check_version(scope)
            body = await read_body(receive, _BODY if peer else _BODY_OF_STRANGERS)
        except WherryError as error:
            own = self._refused(scope, error) if self._refused else None
            await (_send(send, own[0], own[2], [*own[1], _VERSION, _CLOSES]) if own else _answer(send, error))
            return
        if body is None:
            return
        replay = with_body(body, receive)

        async def add_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), _VERSION]
            await send(message)

        token = acting.set(peer.who if peer else "")
        try:
            key = header(scope, b"idempotency-key")[:_KEY]
            if not key or scope["method"] == "GET" or peer is None:
                await self._app(scope, replay, add_version)
            else:
                await self._at_most_once((peer.uid, key), scope, replay, add_version)
        finally:
            acting.reset(token)

    async def _known(self, scope: Message) -> PeerCredentials | None:
        """The caller: a user of this machine by the connection, an account by its token. None for a route without
        either."""
        state = scope.setdefault("state", {})
        address = state.get("network")
        if address is None:
            peer: PeerCredentials | None = state.get("peer")
            if peer is None or not peer.is_authorised(self._group):
                what = "this user may not use the daemon" if peer else "the connection has no peer credentials"
                why = "the socket is for root (or the group of wherryd --group)"
                raise Refused(Code.PERMISSION, what, why, "use sudo")
            return peer
        if (scope["method"], scope["path"]) in OPEN:
            return None
        assert self._authentication
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        cookie = session_in([value for name, value in scope["headers"] if name == b"cookie"])
        if cookie is None or given:
            caller = await asyncio.to_thread(self._authentication.caller, given, address)
        else:
            csrf = None if scope["method"] in _READING else header(scope, b"wherry-csrf")
            caller = await asyncio.to_thread(self._authentication.session_caller, cookie, address, csrf)
        state["peer"] = caller
        return caller

    async def _write_down(self, watched: _Watched) -> None:
        """The entry of the audit log, after the answer."""
        scope, status = watched.scope, watched.status
        peer, address = scope["state"].get("peer"), scope["state"].get("network", "socket")
        signed_in = scope["state"].get("signed_in", "")
        who = peer.who if peer else signed_in
        method, path = scope["method"], scope["path"]
        if self._audit and status and (signed_in or self._audit.wants(method, path, status, who)):
            arguments = (who, address, method, path, status, watched.location, watched.error)
            await asyncio.to_thread(self._audit.write, *arguments)

    async def _at_most_once(self, of: tuple[int, str], scope: Message, receive: Receive, send: Send) -> None:
        """Serves one request at a time of a user with one key."""
        lock = self._serving.setdefault(of, asyncio.Lock())
        async with lock:
            begun = await asyncio.to_thread(self._operations.with_key, *of)
            if begun is not None:
                await _send(send, 202, begun.model_dump_json().encode(), _location(begun.id))
                return
            token = idempotency_key.set(of[1])
            try:
                await self._app(scope, receive, send)
            finally:
                idempotency_key.reset(token)


def _kept_by_nobody(send: Send) -> Send:
    """`send`, whose answers no browser or proxy keeps, or takes for another kind of document, unless they say so."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [pair for pair in _OVER_THE_NETWORK if pair[0] not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return told


class _Watched:
    """`send`, with the parts of an answer for the audit log: its status, its address, the document of its error."""

    def __init__(self, scope: Message, send: Send) -> None:
        self.scope, self._send = scope, send
        self.status, self.location, self.error = 0, "", b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.location = message["status"], header(message, b"location")
        elif self.status >= 400:
            self.error += message.get("body", b"")
        await self._send(message)


def _check_version(scope: Message) -> None:
    theirs = header(scope, b"wherry-version")
    if theirs and theirs != __version__ and scope["path"] not in _ANY_VERSION:
        why = f"the daemon is {__version__}, the client is {theirs}"
        what = "client and daemon are of different versions"
        raise LostContact(Code.VERSION_MISMATCH, what, why, "wherry daemon stop")


_OVER_THE_NETWORK = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_VERSION = (b"wherry-version", __version__.encode())
_CLOSES = (b"connection", b"close")
"""The body was not read, so no request can follow it."""


def with_body(body: bytes, receive: Receive) -> Receive:
    """`receive` for a body that was read already, which is its first message."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The whole body; None when the client disconnected before its end. USAGE when it has more than so many bytes."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            why = f"a request holds at most {format_size(most)}"
            raise Refused(Code.USAGE, "the request is too large", why, "send fewer or shorter arguments and variables")
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, error: WherryError) -> None:
    body = json.dumps(problem(error)).encode()
    headers = [(b"content-type", b"application/problem+json"), _VERSION, _CLOSES]
    headers += [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
    await _send(send, error.code.http_status, body, headers)


def _location(id: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"location", f"/v1/operations/{id}".encode())]


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
