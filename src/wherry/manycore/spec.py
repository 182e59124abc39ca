"""What a tiles file says.

kind: tiles
version: 1
tiles: 4   # at most 16
cores: 3   # of each tile, the master core included; at most 16
rings: [[{name: echo, program: names, words: [serve, echo, "3"], tile: 0}]]  # servers that are started, ring by ring
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from wherry.base.errors import Code, Refused
from wherry.model.spec.base import Spec
from wherry.model.spec.parse import parse_yaml


class ServerSpec(Spec):
    """A program that serves others under a name. A relative path is as seen from the file that names it."""

    name: str = Field(min_length=1, max_length=63)
    program: Path
    words: list[str] = []
    tile: int | None = Field(default=None, ge=0, le=15)


class TilesSpec(Spec):
    """The tiles of one host, or so many on each of several. More cores than CPUs are possible and cost the host's
    scheduling; messages and moves between hosts go over TCP. Hosts are emulated ones."""

    kind: Literal["tiles"] = "tiles"
    version: Literal[1] = 1
    tiles: int = Field(default=4, ge=1, le=16)
    cores: int = Field(default=3, ge=2, le=16)
    hosts: list[str] = Field(default=[], max_length=8)
    rings: list[list[ServerSpec]] = []

    @model_validator(mode="after")
    def _fits(self) -> TilesSpec:
        if len(set(self.hosts)) != len(self.hosts):
            raise ValueError("a host is named twice")
        if self.tiles * max(1, len(self.hosts)) > 16:
            raise ValueError(f"{self.tiles} tiles on each of {len(self.hosts)} hosts are more than 16")
        return self


def read_tiles(path: Path) -> TilesSpec:
    """The file, checked."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        code = Code.NOT_FOUND if isinstance(error, FileNotFoundError) else Code.INVALID_FILE
        raise Refused(code, f"cannot read {path}", str(error), "see examples/tiles.yaml") from None
    spec = parse_yaml(TilesSpec, text, str(path))
    for server in (server for ring in spec.rings for server in ring):
        if not (path.parent / server.program).is_file():
            raise Refused(Code.NOT_FOUND, f"there is no program {server.program} for server {server.name!r}", str(path))
    return spec.model_copy(update={"rings": [[_below(path.parent, server) for server in ring] for ring in spec.rings]})


def _below(directory: Path, server: ServerSpec) -> ServerSpec:
    return server.model_copy(update={"program": directory / server.program})
