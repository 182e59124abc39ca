"""Routes of tiles, the programs on them, and their moves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi import Path as InPath
from pydantic import Field

from wherry.manycore.spec import TilesSpec
from wherry.model.spec.parse import parse
from wherry.service.rest.common import Body, TheCell, ThePeer
from wherry.service.tiles import Tiles

router = APIRouter(tags=["tiles"])
Tile = Annotated[int, Field(ge=0, le=15)]
Process = Annotated[int, InPath(ge=1, le=31)]


class TilesBody(Body):
    """A tiles file as it was read; `source` is its name in messages."""

    spec: dict[str, Any]
    source: str = "the tiles file"


class ProgramBody(Body):
    """`program`: absolute path of a program built for tiles; `tile`: where it starts, or on the first free one."""

    program: Annotated[str, Field(min_length=1, max_length=1024)]
    words: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=15)] = ()
    tile: Tile | None = None


class TileMoveBody(Body):
    """Where to, and how: `handoff` only between tiles of one host."""

    tile: Tile
    mode: Literal["faithful", "direct", "handoff", "precopy"] = "precopy"


def _tiles(context: TheCell, peer: ThePeer) -> Tiles:
    return Tiles(context, peer)


TheTiles = Annotated[Tiles, Depends(_tiles)]


@router.get("/tiles")
def show_tiles(tiles: TheTiles) -> dict[str, Any]:
    """The tiles, and the processes that run or have run there."""
    return tiles.show()


@router.put("/tiles")
def put_tiles(body: TilesBody, tiles: TheTiles) -> dict[str, Any]:
    """Starts tiles as a tiles file says; programs of `rings` by absolute paths. WRONG_STATE when there are some."""
    return tiles.up(parse(TilesSpec, body.spec, body.source))


@router.delete("/tiles")
def remove_tiles(tiles: TheTiles) -> dict[str, Any]:
    """Ends the tiles and what runs on them; what there was."""
    return tiles.down()


@router.post("/tiles/processes", status_code=201)
def start_process(body: ProgramBody, tiles: TheTiles) -> dict[str, Any]:
    """Starts a program on a tile."""
    return tiles.start(Path(body.program), body.words, body.tile)


@router.post("/tiles/processes/{process}/moves")
def move_process(process: Process, body: TileMoveBody, tiles: TheTiles) -> dict[str, Any]:
    """Moves a process to another tile; durations in nanoseconds. It takes milliseconds, so the answer waits for it."""
    return tiles.move(process, body.tile, body.mode)
