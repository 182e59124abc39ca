"""The REST interface `/v1`: routes, and errors as RFC 9457 problems.

Invariant: a route calls one command and decides nothing; every error is answered as a `WherryError`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from wherry.base.components import parts
from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.base.version import __version__
from wherry.model.spec.explain import explain
from wherry.service.audit import Audit
from wherry.service.authentication import Authentication
from wherry.service.context import ServiceContext
from wherry.service.doctor import examine
from wherry.service.ec2.endpoint import Ec2Endpoint
from wherry.service.identity_provider import IdentityProvider
from wherry.service.problem import MEDIA_TYPE, Problem, headers_of, problem
from wherry.service.rest import (
    accounts,
    balance,
    checks,
    clusters,
    event_stream,
    exec,
    hosts,
    images,
    jobs,
    keys,
    leases,
    links,
    listener,
    operations,
    programs,
    projects,
    provider,
    queue,
    reports,
    ssh_keys,
)
from wherry.service.rest.authorization import authorize
from wherry.service.rest.dependencies import MAX_ASKING, ContextDep
from wherry.service.rest.middleware import RequestMiddleware
from wherry.service.rest.request_metrics import RequestMetrics
from wherry.service.web import routes as web
from wherry.service.web.rates import Rates

log = logging.getLogger("wherry.rest")
_MAX_LISTED = 6
"""Errors of one request that are reported."""
_REMEDY = "see GET /v1/openapi.json for the form of each request"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "An error", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
}
_FINDINGS_SECONDS = 60.0
"""How long findings of the doctor are served again."""


def make_app(context: ServiceContext, group: int | None = None) -> RequestMiddleware:
    """The application for uvicorn."""
    app = FastAPI(
        title="Wherry",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        routes=_routes(),
        responses=_ERRORS,
        dependencies=[Depends(authorize)],
    )
    app.state.context = context
    app.state.asking_hosts = asyncio.Semaphore(MAX_ASKING)
    app.add_api_route("/v1/version", _version, tags=["service"])
    app.add_api_route("/v1/doctor", _DoctorCache().findings, name="doctor", tags=["service"])
    app.add_api_route("/healthz", _health, tags=["service"])
    app.add_api_route("/metrics", _metrics, response_class=PlainTextResponse, tags=["service"])
    app.add_middleware(RequestMetrics, metrics=context.metrics)
    app.add_exception_handler(WherryError, _wherry_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    app.state.authentication = Authentication(context)
    app.state.signing_in, app.state.provider = accounts.SigningIn(), IdentityProvider(context)
    app.state.streams, app.state.rates = event_stream.Streams(), Rates()
    audit = Audit(context)
    ec2 = Ec2Endpoint(context, audit, app.state.asking_hosts)
    return RequestMiddleware(app, context.operations, group, app.state.authentication, audit, ec2, web.refused_before)


@cache
def _routes() -> list[BaseRoute]:
    """Routes that know nothing of their application. The first request to them takes FastAPI a tenth of a second, and
    those of the same process's other applications no more."""
    router = APIRouter(responses=_ERRORS, dependencies=[Depends(authorize)])
    ours = (hosts, links, clusters, leases, queue, jobs, exec, programs, checks, balance, images)
    others = (operations, event_stream, reports, accounts, keys, ssh_keys, projects, listener, provider)
    brought = (one for _, one in parts("routes"))
    for one in (*(part.router for part in ours), *brought, *(part.router for part in others)):
        router.include_router(one, prefix="/v1")
    router.include_router(web.router)
    return router.routes


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
        """The features of this machine, as found within the last minute."""
        async with self._lock:
            if time.monotonic() - self._examined > _FINDINGS_SECONDS:
                self._findings = [finding.to_dict() for finding in await run_in_threadpool(examine)]
                self._examined = time.monotonic()
            return self._findings


def _health(context: ContextDep) -> dict[str, str]:
    """That the daemon is ready, as it listens only then, and its database answers; else a problem."""
    context.store.newest_event_id()
    return {"status": "ok"}


def _metrics(context: ContextDep) -> Response:
    """The metrics of this daemon, in Prometheus' text format."""
    return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _problem(request: Request, error: WherryError, status: int | None = None) -> Response:
    if web.is_page(request.url.path):
        return web.refused(request, error, status)
    body: dict[str, Any] = problem(error) | ({"status": status} if status else {})
    return JSONResponse(body, body["status"], headers_of(error), media_type=MEDIA_TYPE)


async def _wherry_error(request: Request, error: Any) -> Response:
    return _problem(request, error)


async def _invalid_request(request: Request, error: Any) -> Response:
    parts = [explain(e, ".".join(map(str, e["loc"][1:])) or e["loc"][0]) for e in error.errors()[:_MAX_LISTED]]
    return _problem(request, Refused(Code.USAGE, "the request is not valid", "; ".join(parts), _REMEDY))


async def _http_error(request: Request, error: Any) -> Response:
    code = Code.NOT_FOUND if error.status_code == 404 else Code.USAGE
    what = f"{request.method} {request.url.path}: {error.detail}"
    return _problem(request, Refused(code, what, "", _REMEDY), error.status_code)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    why = "the daemon's log has it" if "network" in request.scope["state"] else repr(error)
    return _problem(request, Bug(f"{request.method} {request.url.path} failed in an unforeseen way", why))
