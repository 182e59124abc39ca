"""Routes of the fabric and its hosts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from wherry.model.records import Host
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.dependencies import ASKS_HOSTS, Body, CommandsDep, HostCommandsDep, accepted

router = APIRouter(tags=["hosts"])


class FabricBody(Body):
    """The content of a fabric file; `source` is its name in messages."""

    spec: dict[str, Any]
    source: str = "the fabric file"


@router.get("/fabric", dependencies=[ASKS_HOSTS])
def show_fabric(commands: CommandsDep) -> dict[str, Any]:
    """The fabric and its hosts; `places`: network namespace and address of each host, while the fabric is up.
    NOT_FOUND when there is none."""
    return commands.fabric()


@router.put("/fabric", status_code=202)
def put_fabric(body: FabricBody, commands: CommandsDep) -> JSONResponse:
    """Makes the fabric; the same fabric again is repaired."""
    return accepted(commands.fabric_up(parse(FabricSpec, body.spec, body.source)))


@router.delete("/fabric", status_code=202)
def delete_fabric(commands: CommandsDep) -> JSONResponse:
    """Removes the fabric. WRONG_STATE while clusters or tiles are on it."""
    return accepted(commands.fabric_down())


@router.get("/hosts", dependencies=[ASKS_HOSTS])
def list_hosts(commands: CommandsDep) -> list[Host]:
    """The hosts and their present state."""
    return commands.hosts()


@router.post("/hosts/{host}/drain", dependencies=[ASKS_HOSTS], status_code=202)
def drain(host: str, drains: HostCommandsDep) -> JSONResponse:
    """Moves all nodes off the host, which then accepts none. WRONG_STATE while tiles run there."""
    return accepted(drains.drain(host))


@router.post("/hosts/{host}/lost", dependencies=[ASKS_HOSTS], status_code=202)
def declare_lost(host: str, drains: HostCommandsDep) -> JSONResponse:
    """Declares a silent host lost, and its nodes with it, so that nothing waits for it any more."""
    return accepted(drains.declare_lost(host))


@router.post("/hosts/{host}/restore", dependencies=[ASKS_HOSTS], status_code=202)
def restore(host: str, drains: HostCommandsDep) -> JSONResponse:
    """Moves back the nodes that a drain took off the host. Copies of nodes left on a lost host are ended first."""
    return accepted(drains.restore(host))
