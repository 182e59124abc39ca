"""What routes share: the service behind the request, who asks, bounded bodies, and the answer 202."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from wherry.model.objects import Operation
from wherry.model.owner import Owner
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.drain import Drains
from wherry.service.wakeups import room_in

LONGEST = 30.0
"""Seconds of a long poll at most."""


class Body(BaseModel):
    """Base of what a request carries: no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnedBody(Body):
    """A request whose act runs as a user. Only root may name another one than itself."""

    owner: Owner | None = None


def _context(request: Request) -> ServiceContext:
    context: ServiceContext = request.app.state.context
    return context


def _peer(request: Request) -> PeerCredentials:
    peer: PeerCredentials = request.state.peer
    return peer


def _acts(request: Request) -> Commands:
    return Commands(_context(request), _peer(request))


def _drains(request: Request) -> Drains:
    _peer(request).require(0, "the set of hosts, which all clusters share,")
    return Drains(_context(request))


TheCell = Annotated[ServiceContext, Depends(_context)]
TheActs = Annotated[Commands, Depends(_acts)]
TheDrains = Annotated[Drains, Depends(_drains)]
ThePeer = Annotated[PeerCredentials, Depends(_peer)]
Wait = Annotated[float, Query(ge=0, le=LONGEST, description="seconds to wait for news at most")]
Number = Annotated[int, Query(ge=0, le=2**53)]
"""What a client counts by: the store holds 64 bits, JSON's readers 53."""
Word = Annotated[str, Field(min_length=1, max_length=64)]


def accepted(operation: Operation) -> JSONResponse:
    """202: the operation and where to look after it."""
    headers = {"Location": f"/v1/operations/{operation.id}"}
    return JSONResponse(operation.model_dump(mode="json"), 202, headers)


Asked = TypeVar("Asked")


async def until(
    context: ServiceContext,
    news: Callable[[], Asked | None],
    wait: float,
    directory: Path | None = None,
    fifo: Path | None = None,
) -> Asked | None:
    """What `news` returns as soon as that is true, or the last it returned after `wait` seconds.

    It is called again when a row changes, a file in `directory` is written, or the pipe `fifo` takes more.
    """
    deadline = time.monotonic() + wait
    with context.wakeups.waiting(directory) as changed:
        while True:
            changed.clear()
            found = await asyncio.to_thread(news)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            with room_in(fifo, changed) if fifo else contextlib.nullcontext(), contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
