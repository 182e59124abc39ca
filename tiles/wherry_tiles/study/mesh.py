"""The mesh of the study `manycore`: two processes of one host that exchange messages without pause, far apart on a
network on chip, after the balancer has moved one of them, and near from the begin.

Invariant: the three differ in nothing but where the processes begin and whether the balancer is on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from wherry.base.errors import Code, Refused
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median as estimate
from wherry.lab.study import analysis
from wherry.lab.study.design import Design
from wherry.lab.study.levels import RunFailed, Value
from wherry.lab.study.results import Results
from wherry.lab.study.settings import Setting
from wherry_tiles.client import TileRequests
from wherry_tiles.study.levels import combination_of
from wherry_tiles.study.tiles import await_ready, start_program, tiles

WAYS = {
    "far": "in opposite corners of the mesh",
    "balanced": "in opposite corners, and the balancer is on",
    "near": "beside each other",
}
WIDTH = Setting("mesh.width", "columns of the mesh", 4, 4, most=16)
HEIGHT = Setting("mesh.height", "rows of the mesh", 4, 4, most=16)
HOP = Setting("mesh.hop", "time of a hop for a message, in microseconds", 100, 100, most=10_000)
MESSAGES = Setting("mesh.messages", "round trips of which the median is one value", 200, 200, most=4000)
SETTINGS = (WIDTH, HEIGHT, HOP, MESSAGES)
_LEAST_TILES, _MOST_TILES = 3, 16
_TURNS = 5
"""Values that are taken: at the begin, or after the move."""
_SKIPPED = 2
"""Values after the move that are not: messages of both places are in them."""
_LIMIT = 60.0
"""Seconds until the balancer must have moved a process; it needs three samples, one each second."""


@dataclass(frozen=True)
class Mesh:
    """The declared mesh, and how many round trips make a value."""

    width: int
    height: int
    hop_us: int
    messages: int

    @staticmethod
    def of(design: Design) -> Mesh:
        return Mesh(*(design.value(setting) for setting in SETTINGS))

    def require_size(self) -> None:
        """Refused (USAGE) for a mesh with too few tiles for two processes apart, or with more than tiles can be."""
        if _LEAST_TILES <= self.width * self.height <= _MOST_TILES:
            return
        height = min(max(self.height, math.ceil(_LEAST_TILES / self.width)), _MOST_TILES // self.width)
        size = f"--set {WIDTH.name}={self.width} --set {HEIGHT.name}={height}"
        why = f"it has {_LEAST_TILES} to {_MOST_TILES} tiles: two processes begin apart in it"
        what = f"a mesh of {self.width} x {self.height} tiles is not valid"
        raise Refused(Code.USAGE, what, why, f"wherry study run manycore {size}")

    def spec(self) -> dict[str, str]:
        return {"mesh": f"{self.width}x{self.height}", "hop": f"{self.hop_us}us"}

    def tiles(self) -> int:
        return self.width * self.height


def measure(client: TileRequests, how: str, mesh: Mesh) -> list[Value]:
    """`before`: half of the round trip at the begin; `latency_median`: at the end. `until`: seconds until the move."""
    count = mesh.tiles()
    with tiles(client, count, 2, mesh=mesh.spec(), balance=how == "balanced"):
        echo = start_program(client, "pong", [], 0)
        await_ready(client, echo)
        words = ["8", str(mesh.messages), str(echo), "1000000"]
        asker, began = start_program(client, "pong", words, 1 if how == "near" else count - 1), time.monotonic()
        before, after, until = _follow(client, asker, how == "balanced", began)
        hops = _hops(client)
    values = [
        Value("before", median(before), "s"),
        Value(analysis.LATENCY, median(after), "s"),
        Value("hops", hops, ""),
    ]
    return [*values, Value("until", until, "s")] if how == "balanced" else values


def _follow(client: TileRequests, asker: int, balanced: bool, began: float) -> tuple[list[float], list[float], float]:
    """The values before and after the move, and when that was seen; without a balancer all are before and after."""
    before: list[float] = []
    after: list[float] = []
    moved, until, text = False, 0.0, ""
    for event in client.tile_output([asker]):
        if event["event"] != "output":
            raise RunFailed(f"the processes that talk ended: {event}")
        text += event["text"]
        *lines, text = text.split("\n")
        found = [int(line.split()[1]) / 2e9 for line in lines]
        if moved or not balanced:
            after += found
        else:
            before += found
            moved = any(process["moves"] for process in client.tiles()["processes"])
            until = time.monotonic() - began
            if not moved and until > _LIMIT:
                raise RunFailed(f"the balancer moved nothing in {_LIMIT:g} s")
        if len(after) >= _TURNS + _SKIPPED:
            break
    kept = after[_SKIPPED:]
    return (before[:_TURNS] or kept), kept, until


def _hops(client: TileRequests) -> int:
    """Between the two processes, now."""
    table = client.tiles()
    place = {tile["tile"]: tile["place"] for tile in table["tiles"]}
    one, other = (place[process["tile"]] for process in table["processes"])
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _text(data: Sequence[float], scale: float) -> str:
    return estimate([scale * value for value in data]).text() if data else "-"


def table(results: Results) -> Table:
    """Where the processes are, the time of a message there, and the gain of a move."""
    rows = []
    for how, text in WAYS.items():
        mesh = combination_of("mesh", how)
        metrics = (("hops", 1.0), ("before", 1e6), (analysis.LATENCY, 1e6), ("until", 1.0))
        rows.append((text, *(_text(results.values(mesh, metric), scale) for metric, scale in metrics)))
    latencies = {how: results.values(combination_of("mesh", how), analysis.LATENCY) for how in WAYS}
    for one, other in (("far", "balanced"), ("balanced", "near")):
        ratio = analysis.ratio_or_none(latencies[one], latencies[other])
        rows.append((f"{one} : {other}", "-", "-", ratio.text() if ratio else "not measured", "-"))
    head = ("two processes that talk", "hops at the end", "begin, us", "end, us", "moved after, s")
    return Table("Mesh: half of the round trip of a message", head, rows)
