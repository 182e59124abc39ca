"""Signing in and out of the page, and its files."""

from __future__ import annotations

import asyncio
import mimetypes

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from wherry.base.errors import Code, WherryError
from wherry.model.accounts import Token
from wherry.service.authentication import Authentication, session_in
from wherry.service.problem import headers_of
from wherry.service.rest.accounts import SigningIn
from wherry.service.rest.authorization import STATIC
from wherry.service.web.dependencies import SIGN_IN, InnerDep, require_network, require_own_origin
from wherry.service.web.rendering import STATIC_FILES, form_of, redirect, render, with_session

router = APIRouter(include_in_schema=False)
_MAX_CHARACTERS = 1024
"""Characters of a name, password or code that are looked at."""


@router.get("/")
async def top() -> Response:
    """Leads to the page."""
    return redirect("/web")


@router.get("/web/sign-in")
async def show_sign_in(request: Request) -> Response:
    """The form."""
    require_network(request)
    return render(request, "sign_in.html", error=None, user="")


@router.post("/web/sign-in")
async def sign_in(request: Request) -> Response:
    """Opens a session by name and password. A session that the browser had ends, so that none is slipped to it."""
    address = require_network(request)
    require_own_origin(request)
    form = await form_of(request)
    user, password = form.get("user", "")[:_MAX_CHARACTERS], form.get("password", "")[:_MAX_CHARACTERS]
    authentication: Authentication = request.app.state.authentication
    signing_in: SigningIn = request.app.state.signing_in
    try:
        async with signing_in.one():
            token, text = await asyncio.to_thread(authentication.open_session, user, password, address)
    except WherryError as error:
        answer = render(request, "sign_in.html", error.code.http_status, error=error, user=user[:64])
        if error.code is not Code.UNAUTHENTICATED:  # which would have the browser ask in its own way
            answer.headers.update(headers_of(error))
        return answer
    return await _opened(request, token, text)


@router.get("/web/enter")
async def show_enter(request: Request) -> Response:
    """The page of a link: its script sends the code, which is in no request before."""
    require_network(request)
    return render(request, "enter.html", error=None)


@router.post("/web/enter")
async def enter(request: Request) -> Response:
    """Opens a session by the code of a link."""
    address = require_network(request)
    require_own_origin(request)
    code = (await form_of(request)).get("code", "")[:_MAX_CHARACTERS]
    authentication: Authentication = request.app.state.authentication
    try:
        token, text = await asyncio.to_thread(authentication.enter, code, address, _cookie_of(request))
    except WherryError as error:
        return render(request, "enter.html", error.code.http_status, error=error)
    return await _opened(request, token, text)


@router.post("/web/sign-out")
async def sign_out(request: Request, inner: InnerDep) -> Response:
    """Ends the session."""
    await inner.ask("DELETE", "session")
    answer = Response(status_code=204, headers={"HX-Redirect": SIGN_IN, "Cache-Control": "no-store"})
    return with_session(answer, "")


async def _opened(request: Request, token: Token, text: str) -> Response:
    request.scope["state"]["signed_in"] = token.user
    authentication: Authentication = request.app.state.authentication
    if cookie := _cookie_of(request):
        await asyncio.to_thread(authentication.close_session, cookie)
    return with_session(redirect("/web"), text)


def _cookie_of(request: Request) -> str:
    return session_in([value for name, value in request.scope["headers"] if name == b"cookie"]) or ""


def _serve(name: str) -> None:
    path = STATIC_FILES / name
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}

    async def file() -> Response:
        return FileResponse(path, media_type=kind, headers=headers)

    router.add_api_route(f"/web/static/{name}", file, methods=["GET"], include_in_schema=False)


for _name in STATIC:
    _serve(_name)
