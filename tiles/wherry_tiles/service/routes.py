"""Routes of tiles, the programs on them, and their moves.

Operations on tiles take milliseconds. With `wait` the answer is sent when the operation has ended: a client that polled
would disturb the move that it measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from wherry.model.records import Operation
from wherry.model.spec.parse import parse
from wherry.service.rest.dependencies import ASKS_HOSTS, Body, ContextDep, PeerDep, WaitSeconds, accepted
from wherry_tiles.service.commands import Build, TileCommands
from wherry_tiles.spec import Mode, Process, Ranks, Tile, TilesSpec, Words

router = APIRouter(tags=["tiles"])
Of = Annotated[str, Field(pattern=r"^([1-9]|[12][0-9]|3[01]):[0-9]{1,16}$")]


class TilesBody(Body):
    """The content of a tiles file; `source` is its name in messages. `balance` turns on balancing of the processes.
    `build` selects the tiles' kernel: `joined` and `mixed` are baselines of a study, whose processes cannot move."""

    spec: dict[str, Any]
    source: str = "the tiles file"
    balance: bool = False
    build: Build = "separated"


class ProgramBody(Body):
    """`program`: absolute path of a program built for tiles; `tile`: where it starts (default: the first free one);
    `ranks`: how many ranks to start, each on a free tile."""

    program: Annotated[str, Field(min_length=1, max_length=1024)]
    words: Words = ()
    tile: Tile | None = None
    ranks: Ranks = 1


class TileMovesBody(Body):
    """The destination tile of each process, and how to move it; `handoff` works only within one host."""

    tiles: Annotated[dict[Process, Tile], Field(min_length=1, max_length=8)]
    mode: Mode = "precopy"


def _tiles(context: ContextDep, peer: PeerDep) -> TileCommands:
    return TileCommands(context, peer)


def _answer(context: ContextDep, operation: Operation, wait: float) -> JSONResponse:
    return accepted(context.operations.wait(operation.id, wait))


TilesDep = Annotated[TileCommands, Depends(_tiles)]


@router.get("/tiles")
def show_tiles(tiles: TilesDep) -> dict[str, Any]:
    """The tiles, their hosts of the fabric, and their processes, running and ended."""
    return tiles.show()


@router.put("/tiles", dependencies=[ASKS_HOSTS], status_code=202)
def put_tiles(body: TilesBody, tiles: TilesDep, context: ContextDep, wait: WaitSeconds = 0.0) -> JSONResponse:
    """Starts the tiles of a tiles file, in which programs of `rings` have absolute paths. WRONG_STATE while tiles are
    up. The result is that of `GET` and `servers`: process numbers by server name."""
    operation = tiles.up(parse(TilesSpec, body.spec, body.source), body.balance, body.build)
    return _answer(context, operation, wait)


@router.delete("/tiles", status_code=202)
def remove_tiles(tiles: TilesDep, context: ContextDep, wait: WaitSeconds = 0.0) -> JSONResponse:
    """Ends the tiles and their processes. The result is their last state, and `said`: faults that tiles reported."""
    return _answer(context, tiles.down(), wait)


@router.post("/tiles/processes", status_code=202)
def start_process(body: ProgramBody, tiles: TilesDep, context: ContextDep, wait: WaitSeconds = 0.0) -> JSONResponse:
    """Starts a program. The result's `processes` have `process`, `rank` and `tile` each."""
    return _answer(context, tiles.start(Path(body.program), body.words, body.tile, body.ranks), wait)


@router.get("/tiles/output")
async def show_output(
    tiles: TilesDep,
    of: Annotated[list[Of], Query(min_length=1, max_length=16, description="PROCESS:OFFSET, each of them")],
    wait: WaitSeconds = 0.0,
    to_end: bool = False,
) -> list[dict[str, Any]]:
    """Output of processes from byte OFFSET on (`output`: `text` has one character for each byte, the first is byte
    `from`) and their ends (`ended`, `lost`), as soon as there is any; with `to_end` when all have ended. The newest
    MiB of each process is kept."""
    pairs = (pair.split(":") for pair in of)
    offsets = {int(process): int(offset) for process, offset in pairs}
    return await tiles.output(offsets, wait, to_end)


@router.post("/tiles/moves", status_code=202)
def move_processes(body: TileMovesBody, tiles: TilesDep, context: ContextDep, wait: WaitSeconds = 0.0) -> JSONResponse:
    """Moves processes at the same time. The result's `moves` have the cost of each; durations are in nanoseconds."""
    return _answer(context, tiles.move(body.tiles, body.mode), wait)
