"""Routes of the fabric and its hosts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from wherry.base.errors import Code, Refused
from wherry.model.objects import Host
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.common import Body, TheActs, TheCell, TheDrains, accepted

router = APIRouter(tags=["hosts"])


class FabricBody(Body):
    """A fabric file as it was read; `source` is its name in messages."""

    spec: dict[str, Any]
    source: str = "the fabric file"


@router.get("/fabric")
def show_fabric(context: TheCell) -> dict[str, Any]:
    """The fabric and its hosts. NOT_FOUND when none is up."""
    spec = context.store.fabric()
    if spec is None:
        raise Refused(Code.NOT_FOUND, "no fabric is up", "", "wherry fabric up FILE, or: wherry up FILE")
    up = bool(context.managers and context.managers.fabric.is_up())
    hosts = [host.model_dump(mode="json") for host in context.hosts()]
    return {"fabric": spec.model_dump(mode="json"), "up": up, "hosts": hosts, "places": _places(context) if up else {}}


def _places(context: TheCell) -> dict[str, dict[str, str]]:
    """Where on this machine each host is: the path of its network namespace, and its address there."""
    if context.managers is None:
        return {}
    fabric = context.managers.fabric
    names = [host.name for host in fabric.spec.hosts]
    return {name: {"netns": fabric.host_netns(name), "address": fabric.host_address(name)} for name in names}


@router.put("/fabric", status_code=202)
def put_fabric(body: FabricBody, acts: TheActs) -> JSONResponse:
    """Makes the fabric; the same again repairs it."""
    return accepted(acts.fabric_up(parse(FabricSpec, body.spec, body.source)))


@router.delete("/fabric", status_code=202)
def delete_fabric(acts: TheActs) -> JSONResponse:
    """Removes the fabric. WRONG_STATE while clusters or tiles are on it."""
    return accepted(acts.fabric_down())


@router.get("/hosts")
def list_hosts(context: TheCell) -> list[Host]:
    """The hosts as they are now."""
    return context.hosts()


@router.post("/hosts/{host}/drain", status_code=202)
def drain(host: str, drains: TheDrains) -> JSONResponse:
    """Moves everything off the host and lets it take nothing. WRONG_STATE while tiles run there."""
    return accepted(drains.drain(host))


@router.post("/hosts/{host}/lost", status_code=202)
def declare_lost(host: str, drains: TheDrains) -> JSONResponse:
    """Declares that a silent host will not come back: its nodes are lost, and everything else goes on without it."""
    return accepted(drains.declare_lost(host))


@router.post("/hosts/{host}/restore", status_code=202)
def restore(host: str, drains: TheDrains) -> JSONResponse:
    """Puts back what a drain took off the host; first ends what must not run there, if it was declared lost."""
    return accepted(drains.restore(host))
