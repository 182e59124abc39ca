"""The REST interface that a running program reaches from its node: `/v1/self…`, with the token of its job.

Invariants: a route calls one command and decides nothing; every request is one of a job, whose token the header
`Authorization: Bearer …` has; a body has at most 4 KiB. Answers are JSON, or, for a client that accepts text/plain
only, its values as lines `path=value`, which the library reads (native/inside/answer.h).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field, StringConstraints
from starlette.exceptions import HTTPException

from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.base.text import printable
from wherry.base.version import __version__
from wherry.model.inside import Asked
from wherry.model.records import OperationState
from wherry.model.spec.base import ShortText
from wherry.model.spec.explain import explain
from wherry.service.context import ServiceContext
from wherry.service.inside_commands import Busy, InsideCommands, InsideLimits, admitted
from wherry.service.problem import problem
from wherry.service.rest.dependencies import Body
from wherry.service.rest.long_poll import long_poll
from wherry.service.rest.middleware import App, Message, Receive, Send, read_body, with_body

log = logging.getLogger("wherry.rest.inside")
router = APIRouter(tags=["inside"])
MOST_BODY = 4096
_WAIT = 20.0
"""Longest wait for an operation's end, in seconds."""
_TOO_MANY = 429
Rank = Annotated[int, Field(ge=0, le=65535)]
Phase = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/ -]{0,63}$")]
Seconds = Annotated[float, Field(ge=0, le=3600)]


class MoveBody(Body):
    """A host, and the rank or node that is to go there; by default the node that asks."""

    host: ShortText
    rank: Rank | None = None
    node: ShortText | None = None


class WishBody(Body):
    """A move of the asking node, made within so many seconds when its downtime would be at most `downtime` seconds.
    Without a host the daemon's balancing chooses nodes of the job and their destinations."""

    host: ShortText | None = None
    downtime: Seconds = 0.5
    within: Annotated[float, Field(gt=0, le=3600)] = 600.0


class BalanceBody(Body):
    """Nothing."""


class HintBody(Body):
    """Hints of a rank (-1: a program that is no rank): the phase that it is in now (empty: none), and whether no node
    is to move amid it; how many iterations are left; how many seconds the job is expected to take yet."""

    rank: Annotated[int, Field(ge=-1, le=65535)] = -1
    phase: Phase | None = None
    critical: bool = False
    iterations_left: Annotated[int, Field(ge=0, le=2**53)] | None = None
    expected: Annotated[float, Field(ge=0, le=1e9)] | None = None


class InsideApp:
    """Bounds requests and bodies, whatever is asked, and has each connection carry one request."""

    def __init__(self, app: App, limits: InsideLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers it with an error."""
        if scope["type"] != "http":
            return
        try:
            self._limits.ask(_address(scope))
            body = await read_body(receive, MOST_BODY)
        except WherryError as error:
            await _failed(Request(scope), error)(scope, receive, _closing(send))
            return
        if body is None:
            return
        await self._app(scope, with_body(body, receive), _closing(send))


def make_inside_app(context: ServiceContext, limits: InsideLimits, group: int | None = None) -> InsideApp:
    """The application for the listeners in clusters' networks."""
    return InsideApp(inside_routes(context, limits, group), limits)


def _address(scope: Message) -> str:
    return scope["client"][0] if scope.get("client") else ""


def inside_routes(context: ServiceContext, limits: InsideLimits, group: int | None = None) -> FastAPI:
    """Its routes."""
    app = FastAPI(title="Wherry", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context, app.state.limits, app.state.group = context, limits, group
    app.include_router(router, prefix="/v1")
    app.add_exception_handler(WherryError, _wherry_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return app


async def _commands(request: Request) -> InsideCommands:
    """The commands of the job whose token the request has."""
    context, limits = request.app.state.context, request.app.state.limits
    authorization, key = (request.headers.get(name, "") for name in ("authorization", "idempotency-key"))
    asked_by = request.state.cluster, _address(request.scope)
    job, node = await asyncio.to_thread(admitted, context, *asked_by, authorization)
    return InsideCommands(context, limits, request.app.state.group, job, node, key)


InsideDep = Annotated[InsideCommands, Depends(_commands)]


@router.get("/self")
def where(request: Request, commands: InsideDep, rank: Annotated[int | None, Query(ge=0, le=65535)] = None) -> Response:
    """Job, cluster, node, host and site of the node that asks, or of a rank's."""
    return _answer(request, commands.where(rank))


@router.get("/self/hosts")
def hosts(request: Request, commands: InsideDep) -> Response:
    """All hosts, with their load and free resources."""
    return _answer(request, commands.hosts())


@router.get("/self/places")
def places(
    request: Request,
    commands: InsideDep,
    processes: Annotated[int, Query(ge=1, le=4096)],
    host: Annotated[str, Query(max_length=1024)] = "",
    room: Annotated[int, Query(ge=32, le=4096)] = 255,
) -> Response:
    """Nodes for processes that the job spawns, on the least loaded hosts, in so many characters."""
    return _answer(request, commands.places(processes, host, room))


@router.post("/self/moves", status_code=202)
def post_move(request: Request, body: MoveBody, commands: InsideDep) -> Response:
    """Moves a node of the job live. With an `Idempotency-Key` (32 hex digits) it may be repeated."""
    return _asked(request, commands.move(body.host, body.rank, body.node))


@router.post("/self/wishes", status_code=202)
def post_wish(request: Request, body: WishBody, commands: InsideDep) -> Response:
    """Leaves to the daemon when the node moves, or also which nodes move and where."""
    return _asked(request, commands.wish(body.host, body.downtime, body.within))


@router.post("/self/balance", status_code=202)
def post_balance(request: Request, body: BalanceBody, commands: InsideDep) -> Response:
    """Measures the job, and moves those of its nodes for which that pays."""
    return _asked(request, commands.balance())


@router.get("/self/operations/{id}")
async def show_operation(
    id: str, request: Request, commands: InsideDep, wait: Annotated[float, Query(ge=0, le=_WAIT)] = 0.0
) -> Response:
    """The result of an act, as soon as it has ended or the wait is over."""

    def ended() -> Asked | None:
        found = commands.operation(id)
        return found if found.state is not OperationState.RUNNING else None

    context: ServiceContext = request.app.state.context
    found: Asked | None = await long_poll(context, ended, wait)
    if found is None:
        found = await asyncio.to_thread(commands.operation, id)
    return _answer(request, found)


@router.put("/self/hints")
def put_hint(request: Request, body: HintBody, commands: InsideDep) -> Response:
    """Stores the hints of a rank."""
    commands.hint(body.rank, body.phase, body.critical, body.iterations_left, body.expected)
    return _answer(request, body)


def _asked(request: Request, found: Asked) -> Response:
    return _answer(request, found, 202 if found.operation else 200)


def _answer(request: Request, record: BaseModel, status: int = 200) -> Response:
    return _as_accepted(request, record.model_dump(mode="json"), status, "application/json")


def _as_accepted(request: Request, document: dict[str, Any], status: int, media: str) -> Response:
    if request.headers.get("accept") == "text/plain":
        return PlainTextResponse("".join(f"{line}\n" for line in lines(document)), status)
    return JSONResponse(document, status, media_type=media)


def lines(value: Any, path: str = "") -> Iterator[str]:
    """The values of a document, each with its path: `hosts.0.name=a1`. A value is one line, without an exponent when it
    is a number; true is 1; None is left out."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from lines(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, bool | int):
        yield f"{path}={int(value)}"
    elif isinstance(value, float):
        yield f"{path}={value:.6f}"
    elif value is not None:
        yield f"{path}={' '.join(printable(str(value)).split())}"


def _failed(request: Request, error: WherryError, status: int | None = None) -> Response:
    status = status or (_TOO_MANY if isinstance(error, Busy) else None)
    body = problem(error) | ({"status": status} if status else {})
    return _as_accepted(request, body, body["status"], "application/problem+json")


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    return send_and_close


async def _wherry_error(request: Request, error: Any) -> Response:
    return _failed(request, error)


async def _invalid_request(request: Request, error: Any) -> Response:
    parts = [explain(e, ".".join(map(str, e["loc"][1:])) or e["loc"][0]) for e in error.errors()[:4]]
    remedy = "see docs/reference/rest.md for the form of each request"
    return _failed(request, Refused(Code.USAGE, "the request is not valid", "; ".join(parts), remedy))


async def _http_error(request: Request, error: Any) -> Response:
    code = Code.NOT_FOUND if error.status_code == 404 else Code.USAGE
    return _failed(request, Refused(code, f"{request.method}: {error.detail}", "", ""), error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("a request of a node", exc_info=error)
    return _failed(request, Bug("the request failed in an unforeseen way"))
