"""ASGI middleware that measures requests."""

from __future__ import annotations

from time import monotonic
from urllib.parse import parse_qs

from wherry.service.metrics import Metrics
from wherry.service.rest.middleware import App, Message, Receive, Send

_PREFIX = "/v1"
_UNKNOWN = "none"
"""Route of a path that is none's: its text is anybody's, and each would be a series of its own."""


class RequestMetrics:
    """Counts each request by its method, route and status. Long polls and streams sleep on purpose and are left out."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes the request on and measures it."""
        query = scope.get("query_string", b"").decode("latin-1")  # of bytes, parse_qs refuses all but ASCII
        if scope["type"] != "http" or "wait" in parse_qs(query) or scope["path"].endswith("/stream"):
            await self._app(scope, receive, send)
            return
        status, began = 500, monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.observe_request(scope["method"], _route(scope), status, monotonic() - began)


def _route(scope: Message) -> str:
    """The path of the route that took the request, with names of parameters; FastAPI gives it without its prefix."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return _UNKNOWN
    return f"{_PREFIX}{path}" if scope["path"].startswith(f"{_PREFIX}/") and not path.startswith(_PREFIX) else path
