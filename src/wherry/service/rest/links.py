"""Routes of the links between sites."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from wherry.model.spec.fabric import DirectionSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.common import Body, TheActs, Word, accepted

router = APIRouter(tags=["links"])


class LinkBody(Body):
    """New figures, written as in a fabric file; what is not given stays. `one_way`: only from the first site on."""

    latency: Word | None = None
    jitter: Word | None = None
    bandwidth: Word | None = None
    loss: Word | None = None
    overlay: Literal["none", "openvpn", "wireguard"] | None = None
    one_way: bool = False


@router.get("/links")
def list_links(acts: TheActs, measure: bool = False) -> list[dict[str, Any]]:
    """The links with their declared figures, what they carried, and the measured latency; `measure` fills each link
    for seconds and gives its bandwidth too."""
    found = []
    for state, measured in acts.links(measure):
        there, back = (direction.model_dump(mode="json") for direction in state.link.directions())
        declared = {"there": there, "back": back}
        found.append(state.model_dump(mode="json") | {"declared": declared, "measured": measured.model_dump()})
    return found


@router.patch("/links/{one}/{other}", status_code=202)
def set_link(one: str, other: str, body: LinkBody, acts: TheActs) -> JSONResponse:
    """Changes the link between two sites while everything runs."""
    given = body.model_dump(exclude={"overlay", "one_way"}, exclude_none=True)
    figures = parse(DirectionSpec, given, f"the change of the link between {one} and {other}", "wherry site link set")
    return accepted(acts.set_link(one, other, figures, body.overlay, body.one_way))
