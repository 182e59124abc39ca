"""Shared by the routes of the page: its viewer, errors as pages, and the exchange of a session's secret."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response

from wherry.base.errors import Code, Refused, WherryError
from wherry.service.account_caller import AccountCaller
from wherry.service.authentication import Authentication, csrf_of
from wherry.service.problem import headers_of
from wherry.service.web.inner import Inner, Message
from wherry.service.web.rendering import redirect, render, with_session

SIGN_IN = "/web/sign-in"


def is_page(path: str) -> bool:
    """True for a path that is answered with HTML, errors too."""
    return path == "/" or path == "/web" or path.startswith("/web/")


def _inner(request: Request) -> Inner:
    require_network(request)
    return Inner(request)


InnerDep = Annotated[Inner, Depends(_inner)]
"""The REST interface, for a page of an account."""


def require_network(request: Request) -> str:
    """Where the request came from. PERMISSION at the socket: forwarding that to a browser lets anybody be root."""
    address: str | None = request.scope["state"].get("network")
    if address is None:
        why = "the page is for accounts over the network; the socket has only users of this machine"
        raise Refused(Code.PERMISSION, "the page is not served at the socket", why, "wherry dashboard")
    return address


def require_own_origin(request: Request) -> None:
    """PERMISSION unless a form was sent from the daemon's own page: without a session there is no other proof."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if not host or origin != f"https://{host}":
        why = f"its origin is {(origin or 'not told')[:100]!r}"
        raise Refused(Code.PERMISSION, "the request does not come from the page", why, "open the page itself")


async def page(request: Request, template: str, /, **values: Any) -> Response:
    """A page for who has signed in. With a whole page the secret of a session is exchanged when it is old."""
    state, renewed = request.scope["state"], None
    peer = state.get("peer")
    if isinstance(peer, AccountCaller) and peer.csrf and request.headers.get("hx-request") != "true":
        authentication: Authentication = request.app.state.authentication
        renewed = await asyncio.to_thread(authentication.renewed, peer.token)
        if renewed:
            secret = renewed[1].partition(".")[2]
            state["peer"] = replace(peer, token=renewed[0].id, csrf=csrf_of(secret))
    answer = render(request, template, **values)
    return with_session(answer, renewed[1]) if renewed else answer


def refused(request: Request, error: WherryError, status: int | None = None) -> Response:
    """An error as a page, or for htmx as the text that it shows."""
    answer = render(request, "error.html", status or error.code.http_status, error=error)
    for name, value in headers_of(error).items():
        answer.headers[name] = value
    return answer


def refused_before(scope: Message, error: WherryError) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
    """How the page answers an error of a request that reached no route: without a session it leads to the sign-in.
    None: as REST does."""
    if not is_page(scope["path"]):
        return None
    request = Request(dict(scope))
    if error.code is not Code.UNAUTHENTICATED:
        answer = refused(request, error)
    elif request.headers.get("hx-request") == "true":
        answer = Response(status_code=401, headers={"HX-Redirect": SIGN_IN, "Cache-Control": "no-store"})
    else:
        answer = redirect(SIGN_IN)
    headers = [(key, value) for key, value in answer.raw_headers if key != b"content-length"]
    return answer.status_code, headers, bytes(answer.body)
