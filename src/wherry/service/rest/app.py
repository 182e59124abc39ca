"""The REST interface `/v1`: routes, and errors as RFC 9457 problems.

Invariant: it decides nothing; every route reads a record or calls one act, and every error is one of ours.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from wherry import __version__
from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.service.context import ServiceContext
from wherry.service.doctor import examine
from wherry.service.rest import balance, clusters, hosts, images, jobs, links, operations, tiles
from wherry.service.rest.middleware import RequestMiddleware, problem

log = logging.getLogger("wherry.rest")
_FRESH = 60.0


def make_app(context: ServiceContext, group: int | None = None) -> RequestMiddleware:
    """The application for uvicorn."""
    app = FastAPI(title="Wherry", version=__version__, docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    app.state.context = context
    for part in (hosts, links, clusters, jobs, balance, images, tiles, operations):
        app.include_router(part.router, prefix="/v1")
    app.add_api_route("/v1/version", _version, tags=["service"])
    app.add_api_route("/v1/doctor", _Doctor().findings, name="doctor", tags=["service"])
    app.add_api_route("/healthz", _health, tags=["service"])
    app.add_exception_handler(WherryError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
    return RequestMiddleware(app, context.operations, group)


def _version() -> dict[str, str]:
    """The daemon's version."""
    return {"version": __version__}


class _Doctor:
    """Findings that were made at most `_FRESH` seconds ago: probes run as root, whoever asks, and one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made, self._findings = -math.inf, list[dict[str, str]]()

    def findings(self) -> list[dict[str, str]]:
        """What the machine can and cannot do, as it was found within the last minute."""
        with self._lock:
            if time.monotonic() - self._made > _FRESH:
                self._findings = [finding.to_dict() for finding in examine()]
                self._made = time.monotonic()
            return self._findings


def _health() -> dict[str, str]:
    """The daemon answers only when it is ready."""
    return {"status": "ok"}


def _problem(error: WherryError, status: int | None = None) -> JSONResponse:
    body: dict[str, Any] = problem(error) | ({"status": status} if status else {})
    return JSONResponse(body, body["status"], media_type="application/problem+json")


async def _ours(_request: Request, error: Any) -> JSONResponse:
    return _problem(error)


async def _invalid(_request: Request, error: Any) -> JSONResponse:
    parts = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
    return _problem(Refused(Code.USAGE, "the request is not valid", "; ".join(parts), "see docs/reference/rest.md"))


async def _http(request: Request, error: Any) -> JSONResponse:
    code = Code.NOT_FOUND if error.status_code == 404 else Code.USAGE
    what = f"{request.method} {request.url.path}: {error.detail}"
    return _problem(Refused(code, what, "", "see docs/reference/rest.md"), error.status_code)


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return _problem(Bug(f"{request.method} {request.url.path} failed in an unforeseen way", repr(error)))
