"""Routes of profiles and balancing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from wherry.model.balance import MAX_MEASUREMENT, Measured, Remaining
from wherry.model.mpi_profile import MpiProfile
from wherry.model.profile import Profile
from wherry.model.spec.base import ShortText
from wherry.service.balance_commands import BalanceCommands
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep, accepted

router = APIRouter(tags=["balance"])


def _balance(context: ContextDep, peer: PeerDep) -> BalanceCommands:
    return BalanceCommands(context, peer)


BalanceDep = Annotated[BalanceCommands, Depends(_balance)]


class BalanceBody(Body):
    """One cluster or all; seconds to measure; the remaining run time of the jobs if known; and whether to move."""

    cluster: ShortText | None = None
    seconds: Measured = 3.0
    remaining: Remaining | None = None
    apply: bool = False


class AutoBody(Body):
    """Whether automatic balancing is on."""

    auto: bool


@router.get("/jobs/{id}/profile")
def job_profile(
    id: str, balance: BalanceDep, seconds: Annotated[float, Query(gt=0, le=MAX_MEASUREMENT)] = 3.0
) -> Profile:
    """Measures the job for `seconds`: computing and waiting of each node, and the traffic between nodes."""
    return balance.profile(id, seconds)


@router.get("/jobs/{id}/mpi-profile")
def job_mpi_profile(
    id: str, balance: BalanceDep, seconds: Annotated[float, Query(gt=0, le=MAX_MEASUREMENT)] = 3.0
) -> MpiProfile:
    """The calls of MPI of a job that was started with `profile`, measured for `seconds`.

    Without ranks, and at once, when there are none that count; `unseen` has the reason.
    """
    return balance.mpi_profile(id, seconds)


@router.post("/balance", response_model=None, responses={202: {"description": "The moves begin"}})
def post_balance(body: BalanceBody, balance: BalanceDep) -> JSONResponse | dict[str, Any]:
    """Measures and returns the plan with its scores; with `apply` 202 and an operation that also makes the moves."""
    if body.apply:
        return accepted(balance.apply(body.cluster, body.seconds, body.remaining))
    plan = balance.plan(body.cluster, body.seconds, body.remaining)
    return {"plan": plan.model_dump(mode="json"), "before": plan.before, "after": plan.after}


@router.get("/balance")
def show_balance(balance: BalanceDep) -> dict[str, bool]:
    """Whether automatic balancing is on."""
    return {"auto": balance.auto()}


@router.put("/balance")
def put_balance(body: AutoBody, balance: BalanceDep) -> dict[str, bool]:
    """Turns automatic balancing on or off; the setting survives a restart."""
    balance.set_auto(body.auto)
    return {"auto": balance.auto()}
