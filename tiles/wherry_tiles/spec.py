"""Tiles files, and the modes of moving a tile process.

kind: tiles
version: 1
tiles: 4   # at most 16
cores: 3   # of each tile, the master core included; at most 16
mesh: 2x2 # places of the tiles of a host on a network on chip: columns x rows
hop: 10us # what a message takes longer for each hop; at most 10ms
rings: [[{name: echo, program: names, words: [serve, echo, "3"], tile: 0}]]  # servers that are started, ring by ring
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_serializer, model_validator

from wherry.model.spec.base import Duration, Spec

Mode = Literal["faithful", "direct", "handoff", "precopy"]
MODES: tuple[str, ...] = get_args(Mode)


Tile = Annotated[int, Field(ge=0, le=15)]
Process = Annotated[int, Field(ge=1, le=31)]
Ranks = Annotated[int, Field(ge=1, le=16)]
Words = Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=15)]
"""Arguments of a program: ARGUMENT_MAX of tiles/native/abi/abi.h without its name."""


Mesh = Annotated[str, Field(pattern=r"^([1-9]|1[0-6])x([1-9]|1[0-6])$")]
"""Columns and rows of a network on chip."""
MAX_HOP = 10e-3
"""Largest cost of a hop in seconds: HOP_MOST_NS of tiles/native/shared/mesh.h."""


class ServerSpec(Spec):
    """A server program with the name under which others find it. A relative path starts at the tiles file."""

    name: str = Field(min_length=1, max_length=63)
    program: Path
    words: list[str] = Field(default=[], max_length=15)
    tile: Tile | None = None


class TilesSpec(Spec):
    """The tiles of one host, or of each of several emulated hosts. Cores may outnumber CPUs, at the price of scheduling
    by the host; messages and moves between hosts go over TCP. With `mesh` a host's tiles lie on a network on chip, in
    rows from tile 0 on, and a message between two of them takes `hop` longer for each hop."""

    kind: Literal["tiles"] = "tiles"
    version: Literal[1] = 1
    tiles: int = Field(default=4, ge=1, le=16)
    cores: int = Field(default=3, ge=2, le=16)
    mesh: Mesh | None = None
    hop: Annotated[Duration, Field(ge=1e-9, le=MAX_HOP)] = 10e-6
    hosts: list[str] = Field(default=[], max_length=8)
    rings: list[Annotated[list[ServerSpec], Field(max_length=31)]] = Field(default=[], max_length=31)

    @model_validator(mode="after")
    def _fits(self) -> TilesSpec:
        if len(set(self.hosts)) != len(self.hosts):
            raise ValueError("a host is named twice")
        if self.tiles * max(1, len(self.hosts)) > 16:
            raise ValueError(f"{self.tiles} tiles on each of {len(self.hosts)} hosts are more than 16")
        if self.mesh and math.prod(map(int, self.mesh.split("x"))) < self.tiles:
            raise ValueError(f"mesh: {self.mesh} has no place for {self.tiles} tiles")
        return self

    @field_serializer("hop")
    def _with_unit(self, hop: float) -> str:
        return f"{hop * 1e6:.3f}us"

    def servers(self) -> Iterator[ServerSpec]:
        """The servers of all rings, in the order in which they start."""
        return (server for ring in self.rings for server in ring)
