"""A move over a link with compression and several connections: a treatment for each, over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wherry.base.units import format_size
from wherry.lab.bench.definition import Comparison, Levels
from wherry.lab.bench.samples import Samples

CONTENTS = ("numbers", "random")
"""Contents of the program's pages: consecutive numbers, which compress well, or nothing that could be compressed."""
_PLAIN = {"compress": "off", "connections": 1}
_WAYS = {
    "compressed": {"compress": "on", "connections": 1},
    "over 4 connections": {"compress": "off", "connections": 4},
    "compressed, over 4 connections": {"compress": "on", "connections": 4},
}


def path_levels(memory: int, contents: Sequence[str]) -> list[dict[str, Any]]:
    """One level for each kind of contents and each way to send it."""
    where = {"part": "path", "by": "wherry", "memory": memory}
    return [{**where, "contents": what, **way} for what in contents for way in (_PLAIN, *_WAYS.values())]


def way_of(levels: Levels) -> dict[str, object]:
    """The migration parameters of a level."""
    return {name: levels[name] for name in _PLAIN}


def path_comparisons(samples: Samples, memory: int, contents: Sequence[str]) -> list[Comparison]:
    """Each way beside one connection without compression."""
    rows = []
    for what in contents:
        where = {"part": "path", "contents": what}
        for name, way in _WAYS.items():
            for field, unit in (("total", "the move, s"), ("mib", "MiB that are sent"), ("gap", "gap, s")):
                ours, plain = (samples.values(field, **where, **each) for each in (way, _PLAIN))
                rows.append(Comparison(f"{format_size(memory)} of {what}, {name}: {unit}", ours, plain))
    return rows
