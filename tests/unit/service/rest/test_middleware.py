"""The middleware before all routes: idempotency keys, and clients that leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import waiting
from wherry.service.credentials import PeerCredentials
from wherry.service.operations import Operations
from wherry.service.rest.middleware import RequestMiddleware
from wherry.store import Store


@pytest.fixture
def operations(tmp_path: Path) -> Operations:
    return Operations(Store(tmp_path / "wherry.db"))


def test_requests_with_one_key_are_served_one_at_a_time(operations: Operations) -> None:
    """Also a request that comes when the first was refused and the second, which waited for it, has begun."""
    at_once, served, most = 0, 0, 0

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        """Returns when the next one waits, or is served as well."""
        nonlocal at_once, served, most
        at_once, served = at_once + 1, served + 1
        most = max(most, at_once)
        if served < 3:
            await asyncio.to_thread(waiting.until, lambda: at_once > 1 or one_waits(), "the next request")
        at_once -= 1

    def one_waits() -> bool:
        return bool(serve._serving[0, "k"]._waiters)  # type: ignore[attr-defined]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_message: Any) -> None:
        pass

    serve = RequestMiddleware(app, operations)

    async def requests() -> None:
        peer = PeerCredentials(0, 0, frozenset())
        scope = {"type": "http", "method": "POST", "path": "/", "state": {"peer": peer}}
        scope["headers"] = [(b"idempotency-key", b"k")]
        first, second = (asyncio.create_task(serve(dict(scope), receive, send)) for _ in range(2))
        await first
        third = asyncio.create_task(serve(dict(scope), receive, send))
        await asyncio.gather(second, third)

    asyncio.run(requests())
    assert most == 1


def test_a_request_whose_client_left_midway_is_not_served(operations: Operations) -> None:
    served = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        served.append(scope["method"])

    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "DELETE", "path": "/", "headers": []}
    scope["state"] = {"peer": PeerCredentials(0, 0, frozenset())}
    asyncio.run(RequestMiddleware(app, operations)(scope, receive, send))
    assert served == []
