"""Routes of leases of clusters."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import model_validator

from wherry.model.accounts import LeaseLimits, LeaseSeconds
from wherry.service.lease_commands import LeaseCommands
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep

router = APIRouter(tags=["clusters"])


class LeaseBody(Body):
    """When the lease is to end: so many `seconds` from now (null: never), or so many `more` after its present end."""

    seconds: LeaseSeconds | None = None
    more: LeaseSeconds | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> LeaseBody:
        if len(self.model_fields_set) != 1 or "more" in self.model_fields_set and self.more is None:
            raise ValueError("give either seconds or more")
        return self


@router.put("/clusters/{name}/lease")
def put_lease(name: str, body: LeaseBody, context: ContextDep, peer: PeerDep) -> dict[str, Any]:
    """Changes the lease of a cluster: `lease`, null when it has no end."""
    lease = LeaseCommands(context, peer).change(name, body.more or body.seconds, body.more is not None)
    return {"lease": lease.model_dump(mode="json") if lease else None}


@router.get("/leases/limits")
def show_limits(context: ContextDep, peer: PeerDep) -> LeaseLimits:
    """The limits of leases for everybody for whom an admin set no others."""
    return LeaseCommands(context, peer).limits()


@router.put("/leases/limits")
def set_limits(body: LeaseLimits, context: ContextDep, peer: PeerDep) -> LeaseLimits:
    """Changes them. Leases of running clusters stay."""
    return LeaseCommands(context, peer).set_limits(body)
