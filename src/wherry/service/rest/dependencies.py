"""Shared by the routes: their dependencies, bounded parameters, and the answer 202."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, model_validator

from wherry.base.errors import Code, Refused
from wherry.model.owner import Owner
from wherry.model.records import Operation
from wherry.service.account_commands import AccountCommands
from wherry.service.check_commands import CheckCommands
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.host_bundles import HostBundles
from wherry.service.host_commands import HostCommands

MAX_WAIT = 30.0
"""Longest long poll, in seconds."""
MAX_ASKING = 16
"""Most requests that contact hosts at the same time. A silent host keeps each for minutes, and each holds one of the 40
threads that serve all routes; measurements hold 8 more (`wherry.service.balance_commands`)."""
_ASKING_SECONDS = 30.0
"""How long a request waits, without a thread, before it is refused because too many others contact hosts."""


class Body(BaseModel):
    """Base of request bodies. Refused are unknown keys, and values that only Python reads as JSON: NaN,
    Infinity, and halves of surrogate pairs. A record with one of them could be stored and never be read or sent again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _strict_json(cls, data: Any) -> Any:
        try:
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except TypeError:  # bytes: of another type than application/json
            raise ValueError("it is not sent as application/json") from None
        except UnicodeEncodeError:
            raise ValueError("a text in it is not Unicode") from None
        except ValueError:
            raise ValueError("a number in it is not finite") from None
        return data


class OwnedBody(Body):
    """The body of a command that runs as a user. Only root may name a user other than itself."""

    owner: Owner | None = None


def _context(request: Request) -> ServiceContext:
    context: ServiceContext = request.app.state.context
    return context


def _peer(request: Request) -> PeerCredentials:
    peer: PeerCredentials = request.state.peer
    return peer


def _commands(request: Request) -> Commands:
    return Commands(_context(request), _peer(request))


def _account_commands(request: Request) -> AccountCommands:
    return AccountCommands(_context(request), _peer(request))


def _host_commands(request: Request) -> HostCommands:
    _peer(request).require(0, "the set of hosts, which all clusters share,")
    return HostCommands(_context(request))


def _host_bundles(request: Request) -> HostBundles:
    _peer(request).require(0, "the installation of packages at hosts")
    return HostBundles(_context(request))


def _check_commands(request: Request) -> CheckCommands:
    return CheckCommands(_context(request), _peer(request))


async def _asking_hosts(request: Request) -> AsyncIterator[None]:
    """Bounds the requests that contact hosts. WRONG_STATE when none of them ends in time."""
    room: asyncio.Semaphore = request.app.state.asking_hosts
    try:
        async with asyncio.timeout(_ASKING_SECONDS):
            await room.acquire()
    except TimeoutError:
        what, why = "no more hosts are contacted now", f"{MAX_ASKING} requests wait for hosts, perhaps silent ones"
        raise Refused(Code.WRONG_STATE, what, why, "repeat the command; for a silent host: wherry doctor") from None
    try:
        yield
    finally:
        room.release()


ASKS_HOSTS = Depends(_asking_hosts)
"""Dependency of every route that may contact hosts in its own thread."""
ContextDep = Annotated[ServiceContext, Depends(_context)]
CommandsDep = Annotated[Commands, Depends(_commands)]
AccountCommandsDep = Annotated[AccountCommands, Depends(_account_commands)]
CheckCommandsDep = Annotated[CheckCommands, Depends(_check_commands)]
HostBundlesDep = Annotated[HostBundles, Depends(_host_bundles)]
HostCommandsDep = Annotated[HostCommands, Depends(_host_commands)]
PeerDep = Annotated[PeerCredentials, Depends(_peer)]
WaitSeconds = Annotated[float, Query(ge=0, le=MAX_WAIT, description="longest wait in seconds")]
Offset = Annotated[int, Query(ge=0, le=2**53)]
"""An offset or event number. SQLite stores 64 bits, but JSON readers keep only 53."""


def accepted(operation: Operation) -> JSONResponse:
    """202 with the operation, and its address as Location."""
    headers = {"Location": f"/v1/operations/{operation.id}"}
    return JSONResponse(operation.model_dump(mode="json"), 202, headers)
