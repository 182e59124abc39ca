"""The REST interface `/v1`: routes, and errors as RFC 9457 problems.

Invariant: a route calls one command and decides nothing; every error is answered as a `WherryError`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from wherry import __version__
from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.model.spec.explain import explain
from wherry.service.context import ServiceContext
from wherry.service.doctor import examine
from wherry.service.problem import problem
from wherry.service.rest import balance, clusters, hosts, images, jobs, links, operations, tiles
from wherry.service.rest.dependencies import ASKING_AT_ONCE
from wherry.service.rest.middleware import RequestMiddleware

log = logging.getLogger("wherry.rest")
_SHOWN = 6
"""Errors of one request that are told."""
_REMEDY = "GET /v1/openapi.json says what each request takes"
_FINDINGS_SECONDS = 60.0
"""How long findings of the doctor are served again."""


def make_app(context: ServiceContext, group: int | None = None) -> RequestMiddleware:
    """The application for uvicorn."""
    app = FastAPI(title="Wherry", version=__version__, docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.state.context = context
    app.state.asking_hosts = asyncio.Semaphore(ASKING_AT_ONCE)
    for part in (hosts, links, clusters, jobs, balance, images, tiles, operations):
        app.include_router(part.router, prefix="/v1")
    app.add_api_route("/v1/version", _version, tags=["service"])
    app.add_api_route("/v1/doctor", _DoctorCache().findings, name="doctor", tags=["service"])
    app.add_api_route("/healthz", _health, tags=["service"])
    app.add_exception_handler(WherryError, _wherry_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return RequestMiddleware(app, context.operations, group)


def _version() -> dict[str, str]:
    """The daemon's version."""
    return {"version": __version__}


class _DoctorCache:
    """Findings of the doctor. The probes run as root for any peer, so they run one at a time and once a minute; waiting
    requests hold no thread of the pool that serves all routes."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._examined, self._findings = -math.inf, list[dict[str, str]]()

    async def findings(self) -> list[dict[str, str]]:
        """What this machine supports, as found within the last minute."""
        async with self._lock:
            if time.monotonic() - self._examined > _FINDINGS_SECONDS:
                self._findings = [finding.to_dict() for finding in await run_in_threadpool(examine)]
                self._examined = time.monotonic()
            return self._findings


def _health() -> dict[str, str]:
    """The daemon listens only when it is ready."""
    return {"status": "ok"}


def _problem(error: WherryError, status: int | None = None) -> JSONResponse:
    body: dict[str, Any] = problem(error) | ({"status": status} if status else {})
    return JSONResponse(body, body["status"], media_type="application/problem+json")


async def _wherry_error(_request: Request, error: Any) -> JSONResponse:
    return _problem(error)


async def _invalid_request(_request: Request, error: Any) -> JSONResponse:
    parts = [explain(e, ".".join(map(str, e["loc"][1:])) or e["loc"][0]) for e in error.errors()[:_SHOWN]]
    return _problem(Refused(Code.USAGE, "the request is not valid", "; ".join(parts), _REMEDY))


async def _http_error(request: Request, error: Any) -> JSONResponse:
    code = Code.NOT_FOUND if error.status_code == 404 else Code.USAGE
    what = f"{request.method} {request.url.path}: {error.detail}"
    return _problem(Refused(code, what, "", _REMEDY), error.status_code)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return _problem(Bug(f"{request.method} {request.url.path} failed in an unforeseen way", repr(error)))
