"""Routes of the links between sites."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from wherry.model.overlay import Overlay
from wherry.model.spec.base import ShortText
from wherry.model.spec.fabric import DirectionSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.dependencies import ASKS_HOSTS, Body, CommandsDep, accepted

router = APIRouter(tags=["links"])


class LinkBody(Body):
    """New figures, written as in a fabric file; omitted ones stay. `one_way`: only from the first to the second."""

    latency: ShortText | None = None
    jitter: ShortText | None = None
    bandwidth: ShortText | None = None
    loss: ShortText | None = None
    overlay: Overlay | None = None
    one_way: bool = False


@router.get("/links", dependencies=[ASKS_HOSTS])
def list_links(commands: CommandsDep, measure: bool = False) -> list[dict[str, Any]]:
    """The links with their declared figures, traffic counters and measured latency. `measure` also measures the
    bandwidth, which fills each link for some seconds."""
    links = []
    for state, measured in commands.links(measure):
        there, back = (direction.model_dump(mode="json") for direction in state.link.directions())
        declared = {"there": there, "back": back}
        links.append(state.model_dump(mode="json") | {"declared": declared, "measured": measured.model_dump()})
    return links


@router.patch("/links/{one}/{other}", status_code=202)
def set_link(one: str, other: str, body: LinkBody, commands: CommandsDep) -> JSONResponse:
    """Changes the link between two sites while nodes and jobs run."""
    given = body.model_dump(exclude={"overlay", "one_way"}, exclude_none=True)
    figures = parse(DirectionSpec, given, f"the change of the link between {one} and {other}", "wherry site link set")
    return accepted(commands.set_link(one, other, figures, body.overlay, body.one_way))
