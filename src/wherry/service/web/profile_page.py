"""The profile of a running job: where the time of its ranks goes, and who sends to whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from wherry.base.units import format_size
from wherry.service.web.dependencies import InnerDep, page

router = APIRouter(include_in_schema=False)
Json = dict[str, Any]
_RANKS, _GRID, _MARKS = 16, 32, 8
"""Rows of ranks, and cells and marks along a side of the matrix, at most."""
_STEPS = (0.01, 0.1, 0.5)
"""Shares of the most at which a cell has another shade."""
_MAX_SECONDS = 30.0
"""Seconds that a page waits for."""


@router.get("/web/jobs/{id}/profile")
async def profile(
    request: Request,
    id: str,
    inner: InnerDep,
    seconds: Annotated[float, Query(gt=0, le=_MAX_SECONDS)] = 3.0,
    outside: bool = False,
) -> Response:
    """Measures: the ranks' calls inside MPI where they count them, else nodes from outside."""
    inside = None if outside else await inner.get("jobs", id, "mpi-profile", seconds=seconds)
    if inside and inside["ranks"]:
        busiest = sorted(inside["ranks"], key=lambda rank: -rank["computing"])[:_RANKS]
        values: Json = {
            "inside": inside,
            "loads": sorted(busiest, key=lambda rank: rank["rank"]),
            "more": len(inside["ranks"]) - len(busiest),
            "efficiency": _mean(rank["computing"] for rank in inside["ranks"]),
            "sent": matrix([str(rank) for rank in range(inside["size"])], inside["flows"]),
        }
        return await page(request, "profile.html", **values, outside=None, uncounted="")
    found = await inner.get("jobs", id, "profile", seconds=seconds)
    names = [load["node"] for load in found["nodes"]]
    place = {name: index for index, name in enumerate(names)}
    flows = [{**flow, "source": place[flow["source"]], "target": place[flow["target"]]} for flow in found["flows"] or ()
             if flow["source"] in place and flow["target"] in place]  # fmt: skip
    values = {
        "outside": found,
        "loads": found["nodes"][:_RANKS],
        "more": len(names[_RANKS:]),
        "efficiency": _mean(load["computing"] for load in found["nodes"] for _ in range(load["ranks"])),
        "sent": matrix(names, flows),
    }
    return await page(request, "profile.html", **values, inside=None, uncounted=found["uncounted"])


def matrix(names: Sequence[str], flows: Sequence[Json]) -> Json | None:
    """Bytes per second from each (down) to each (across) as cells of five shades, several in one where there are many;
    None: nothing was sent."""
    each = max(1, math.ceil(len(names) / _GRID))
    size = math.ceil(len(names) / each)
    sums = [[0.0] * size for _ in range(size)]
    for flow in flows:
        sums[flow["source"] // each][flow["target"] // each] += flow["bytes"]
    most = max((sent for row in sums for sent in row), default=0.0)
    if not most:
        return None
    first = [names[index * each] for index in range(size)]
    cells = [
        {"x": x, "y": y, "shade": _shade(sent, most), "text": f"{first[y]} to {first[x]}: {format_size(sent)}/s"}
        for y, row in enumerate(sums) for x, sent in enumerate(row)
    ]  # fmt: skip
    step = math.ceil(size / _MARKS)
    marks = [{"at": at, "text": first[at].rpartition("-")[2]} for at in range(0, size, step)]
    many = f", {each} in a cell" if each > 1 else ""
    label = f"Bytes from each (down) to each (across){many}; the darkest is {format_size(most)}/s"
    return {"size": size, "cells": cells, "marks": marks, "label": label}


def _shade(sent: float, most: float) -> int:
    return 1 + sum(sent > most * step for step in _STEPS) if sent else 0


def _mean(shares: Iterable[float]) -> float | None:
    found = list(shares)
    return sum(found) / len(found) if found else None
