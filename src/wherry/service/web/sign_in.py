"""Signing in and out of the page, and its files."""

from __future__ import annotations

import asyncio
import mimetypes
import secrets

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.accounts import Token
from wherry.service.authentication import Authentication, session_in
from wherry.service.identity_provider import BEGUN_SECONDS, IdentityProvider
from wherry.service.problem import headers_of
from wherry.service.rest.accounts import SigningIn
from wherry.service.rest.authorization import STATIC
from wherry.service.web.dependencies import SIGN_IN, InnerDep, require_network, require_own_origin
from wherry.service.web.rendering import STATIC_FILES, form_of, redirect, render, with_session

router = APIRouter(include_in_schema=False)
_MAX_CHARACTERS, _MAX_ANSWER = 1024, 8192
"""Characters of a name, password or code that are looked at; of a part of a provider's answer."""
_BROWSER, _LAX = "__Host-wherry-provider", "Path=/; Secure; HttpOnly; SameSite=Lax"
"""The cookie of a browser that was led to the provider of identities."""


@router.get("/")
async def top() -> Response:
    """Leads to the page."""
    return redirect("/web")


@router.get("/web/sign-in")
async def show_sign_in(request: Request) -> Response:
    """The form."""
    require_network(request)
    return await _form(request)


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
        answer = await _form(request, error, user)
        if error.code is not Code.UNAUTHENTICATED:  # which would have the browser ask in its own way
            answer.headers.update(headers_of(error))
        return answer
    return await _opened(request, token, text)


@router.get("/web/provider")
async def ask_provider(request: Request) -> Response:
    """Leads to the provider of identities. The cookie binds its answer to this browser; it is sent with a link of
    another site (Lax), as that answer is one."""
    address = require_network(request)
    provider: IdentityProvider = request.app.state.provider
    browser = secrets.token_urlsafe(32)
    try:
        there = await asyncio.to_thread(provider.begin, browser, address)
    except WherryError as error:
        return await _form(request, error)
    answer = redirect(there)
    answer.headers.append("Set-Cookie", f"{_BROWSER}={browser}; {_LAX}; Max-Age={BEGUN_SECONDS:.0f}")
    return answer


@router.get("/web/provider/callback")
async def hear_provider(request: Request) -> Response:
    """Opens a session by the provider's answer. A browser sends no strict cookie while another site's link leads it,
    so the answer is a page that leads on."""
    require_network(request)
    provider: IdentityProvider = request.app.state.provider
    authentication: Authentication = request.app.state.authentication
    query = {key: value[:_MAX_ANSWER] for key, value in request.query_params.items()}
    try:
        if "code" not in query:
            why = f"the provider answered: {query.get('error', 'nothing')[:100]}"
            raise Refused(Code.UNAUTHENTICATED, "you are not signed in", why, "sign in again")
        given = request.cookies.get(_BROWSER, ""), query.get("state", ""), query["code"]
        person = await asyncio.to_thread(provider.finish, *given)
        token, text = await asyncio.to_thread(authentication.open_session_elsewhere, person.identity, person.subject)
    except WherryError as error:
        return await _form(request, error)
    request.scope["state"]["signed_in"] = token.user
    answer = render(request, "signed_in.html", user=token.user)
    answer.headers.append("Set-Cookie", f"{_BROWSER}=; {_LAX}; Max-Age=0")
    return with_session(answer, text)


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


async def _form(request: Request, error: WherryError | None = None, user: str = "") -> Response:
    """The form, with an error of the last attempt."""
    provider: IdentityProvider = request.app.state.provider
    setting = await asyncio.to_thread(provider.setting)
    values = {"error": error, "user": user[:64], "issuer": setting.issuer.removeprefix("https://") if setting else ""}
    return render(request, "sign_in.html", error.code.http_status if error else 200, **values)


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
