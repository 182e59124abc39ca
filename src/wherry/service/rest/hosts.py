"""Routes of the fabric and its hosts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.model.accounts import HostCapacity
from wherry.model.records import Host
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.account_caller import AccountCaller, require_no_machines
from wherry.service.rest.dependencies import (
    ASKS_HOSTS,
    AccountCommandsDep,
    Body,
    CommandsDep,
    HostBundlesDep,
    HostCommandsDep,
    PeerDep,
    accepted,
)

router = APIRouter(tags=["hosts"])


class FabricBody(Body):
    """The content of a fabric file; `source` is its name in messages."""

    spec: dict[str, Any]
    source: str = "the fabric file"


class MachineBody(Body):
    """How SSH reaches a machine: `ssh://USER@HOST[:PORT]`."""

    uri: str


class AddBody(MachineBody):
    """`install`: Debian packages that the machine lacks are installed there, and a CRIU when none works."""

    install: bool = False


class DrainBody(Body):
    """When an announced drain begins, in seconds since the epoch; at once without it."""

    at: float | None = Field(default=None, gt=0, lt=2.0**37)  # a year of four digits


@router.get("/fabric", dependencies=[ASKS_HOSTS])
def show_fabric(commands: CommandsDep) -> dict[str, Any]:
    """The fabric and its hosts; `places`: network namespace and address of each host, while the fabric is up.
    NOT_FOUND when there is none."""
    return commands.fabric()


@router.put("/fabric", status_code=202)
def put_fabric(body: FabricBody, commands: CommandsDep, peer: PeerDep) -> JSONResponse:
    """Makes the fabric; the same fabric again is repaired."""
    spec = parse(FabricSpec, body.spec, body.source)
    if isinstance(peer, AccountCaller):
        require_no_machines(spec)
    return accepted(commands.fabric_up(spec))


@router.delete("/fabric", status_code=202)
def delete_fabric(commands: CommandsDep) -> JSONResponse:
    """Removes the fabric. WRONG_STATE while it is in use."""
    return accepted(commands.fabric_down())


@router.get("/hosts", dependencies=[ASKS_HOSTS])
def list_hosts(commands: CommandsDep) -> list[Host]:
    """The hosts and their present state."""
    return commands.hosts()


@router.get("/capacity")
def show_capacity(accounts: AccountCommandsDep) -> list[HostCapacity]:
    """The resources of each host, and its free ones; not the users of the rest. WRONG_STATE when no fabric is up."""
    return accounts.capacity()


@router.post("/hosts/{host}/drain", dependencies=[ASKS_HOSTS], status_code=202)
def drain(host: str, drains: HostCommandsDep, body: DrainBody | None = None) -> JSONResponse:
    """Moves all nodes off the host, which then accepts none; with `at` that begins then. WRONG_STATE while
    something that cannot move uses it."""
    if body is not None and body.at is not None:
        return accepted(drains.announce_drain(host, body.at))
    return accepted(drains.drain(host))


@router.post("/hosts/{host}/lost", dependencies=[ASKS_HOSTS], status_code=202)
def declare_lost(host: str, drains: HostCommandsDep) -> JSONResponse:
    """Declares a silent host lost, and its nodes with it, so that nothing waits for it any more."""
    return accepted(drains.declare_lost(host))


@router.post("/hosts/{host}/restore", dependencies=[ASKS_HOSTS], status_code=202)
def restore(host: str, drains: HostCommandsDep) -> JSONResponse:
    """Moves back the nodes that a drain took off the host. Copies of nodes left on a lost host are ended first."""
    return accepted(drains.restore(host))


@router.post("/machines/add", status_code=202)
def add_machine(body: AddBody, bundles: HostBundlesDep) -> JSONResponse:
    """Makes a machine fit to be a host by SSH. INCOMPATIBLE_HOST when it lacks packages, or cannot be one."""
    return accepted(bundles.add(body.uri, body.install))


@router.post("/machines/remove", status_code=202)
def remove_machine(body: MachineBody, bundles: HostBundlesDep) -> JSONResponse:
    """Removes Wherry's files from a machine. WRONG_STATE while an instance uses it."""
    return accepted(bundles.remove(body.uri))
