"""Routes of profiles and balancing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.model.profile import Profile
from wherry.service.balance import LONGEST, Balance
from wherry.service.rest.common import Body, TheCell, ThePeer, Word, accepted

router = APIRouter(tags=["balance"])
Seconds = Annotated[float, Field(gt=0, le=LONGEST)]


def _balance(context: TheCell, peer: ThePeer) -> Balance:
    return Balance(context, peer)


TheBalance = Annotated[Balance, Depends(_balance)]


class BalanceBody(Body):
    """One cluster, or all; seconds to measure; seconds that jobs still take, if that is known; and whether to move."""

    cluster: Word | None = None
    seconds: Seconds = 3.0
    remaining: Annotated[float, Field(gt=0)] | None = None
    apply: bool = False


class AutoBody(Body):
    """Whether the daemon balances by itself."""

    auto: bool


@router.get("/jobs/{id}/profile")
def job_profile(id: str, balance: TheBalance, seconds: Annotated[float, Query(gt=0, le=LONGEST)] = 3.0) -> Profile:
    """What the job does in the next seconds: who computes, who waits, who sends how much to whom."""
    return balance.profile(id, seconds)


@router.post("/balance", response_model=None)
def post_balance(body: BalanceBody, balance: TheBalance) -> JSONResponse | dict[str, Any]:
    """The plan, with the score before and after; with `apply` 202 and an operation that measures, plans and moves."""
    if body.apply:
        return accepted(balance.apply(body.cluster, body.seconds, body.remaining))
    found = balance.plan(body.cluster, body.seconds, body.remaining)
    return {"plan": found.model_dump(mode="json"), "before": found.before, "after": found.after}


@router.get("/balance")
def show_balance(balance: TheBalance) -> dict[str, bool]:
    """Whether the daemon balances by itself."""
    return {"auto": balance.auto()}


@router.put("/balance")
def put_balance(body: AutoBody, balance: TheBalance) -> dict[str, bool]:
    """Lets the daemon balance by itself, or not; a restart keeps it."""
    balance.set_auto(body.auto)
    return {"auto": balance.auto()}
