"""Routes of tiles, the programs on them, and their moves.

Acts on tiles take milliseconds: with `wait` the answer comes when the operation has ended, so its client looks for
nothing while a process moves that is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.model.objects import Operation
from wherry.model.spec.parse import parse
from wherry.model.tiles import Mode, TilesSpec
from wherry.service.rest.common import Body, TheCell, ThePeer, Wait, accepted
from wherry.service.tiles import Build, Tiles

router = APIRouter(tags=["tiles"])
Tile = Annotated[int, Field(ge=0, le=15)]
Process = Annotated[int, Field(ge=1, le=31)]
Of = Annotated[str, Field(pattern=r"^([1-9]|[12][0-9]|3[01]):[0-9]{1,16}$")]


class TilesBody(Body):
    """A tiles file as it was read; `source` is its name in messages. With `balance` processes are moved to where they
    lose less. `build` is the tiles' kernel: `joined` is what a study compares it with."""

    spec: dict[str, Any]
    source: str = "the tiles file"
    balance: bool = False
    build: Build = "separated"


class ProgramBody(Body):
    """`program`: absolute path of a program built for tiles; `tile`: where it starts, or on the first free one; or how
    many `ranks` of it, each on a free tile."""

    program: Annotated[str, Field(min_length=1, max_length=1024)]
    words: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=15)] = ()
    tile: Tile | None = None
    ranks: Annotated[int, Field(ge=1, le=16)] = 1


class TileMovesBody(Body):
    """A tile for each of these processes, and how: `handoff` only between tiles of one host."""

    tiles: Annotated[dict[Process, Tile], Field(min_length=1, max_length=8)]
    mode: Mode = "precopy"


def _tiles(context: TheCell, peer: ThePeer) -> Tiles:
    return Tiles(context, peer)


def _answer(context: TheCell, operation: Operation, wait: float) -> JSONResponse:
    return accepted(context.operations.ended(operation.id, wait))


TheTiles = Annotated[Tiles, Depends(_tiles)]


@router.get("/tiles")
def show_tiles(tiles: TheTiles) -> dict[str, Any]:
    """The tiles, the hosts of the fabric on which they are, and the processes that run or have run there."""
    return tiles.show()


@router.put("/tiles", status_code=202)
def put_tiles(body: TilesBody, tiles: TheTiles, context: TheCell, wait: Wait = 0.0) -> JSONResponse:
    """Starts tiles as a tiles file says; programs of `rings` by absolute paths. WRONG_STATE when there are some. The
    result is what `GET` says, and `servers`: the processes by their names."""
    operation = tiles.up(parse(TilesSpec, body.spec, body.source), body.balance, body.build)
    return _answer(context, operation, wait)


@router.delete("/tiles", status_code=202)
def remove_tiles(tiles: TheTiles, context: TheCell, wait: Wait = 0.0) -> JSONResponse:
    """Ends the tiles and what runs on them. The result is what there was, and what tiles had `said` of faults."""
    return _answer(context, tiles.down(), wait)


@router.post("/tiles/processes", status_code=202)
def start_process(body: ProgramBody, tiles: TheTiles, context: TheCell, wait: Wait = 0.0) -> JSONResponse:
    """Starts a program. The result's `processes` have `process`, `rank` and `tile` each."""
    return _answer(context, tiles.start(Path(body.program), body.words, body.tile, body.ranks), wait)


@router.get("/tiles/output")
async def show_output(
    tiles: TheTiles,
    of: Annotated[list[Of], Query(min_length=1, max_length=16, description="PROCESS:OFFSET, each of them")],
    wait: Wait = 0.0,
    to_end: bool = False,
) -> list[dict[str, Any]]:
    """What processes have said from byte OFFSET on (`output`: its `text` has a character for each byte, the first is
    byte `from`), and their ends (`ended`, `lost`), as soon as there is some; with `to_end` when all have ended. The
    newest MiB of each is kept."""
    pairs = (pair.split(":") for pair in of)
    offsets = {int(process): int(offset) for process, offset in pairs}
    return await tiles.output(offsets, wait, to_end)


@router.post("/tiles/moves", status_code=202)
def move_processes(body: TileMovesBody, tiles: TheTiles, context: TheCell, wait: Wait = 0.0) -> JSONResponse:
    """Moves processes, begun together. The result's `moves` say what each cost, durations in nanoseconds."""
    return _answer(context, tiles.move(body.tiles, body.mode), wait)
