"""`wherry tile`: tiles, the programs that run on them, and their moves.

The name server of the tiles is the authority, a process of its own with a socket; the daemon has no part in it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_size
from wherry.cli.output import Output, emit, say, table
from wherry.manycore.board import Board, Event
from wherry.manycore.spec import TilesSpec, read_tiles
from wherry.model.spec import parse

app = App(name="tile", help="Tiles: small kernels whose processes move between them.")

Mode = Literal["faithful", "direct", "handoff"]
Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


@app.command
def up(file: Path | None = None, /, *, tiles: int = 4, cores: int = 3, output: Output = "text") -> None:
    """Start the tiles of this machine.

    Parameters
    ----------
    file
        A tiles file (see examples/tiles.yaml); it replaces --tiles and --cores.
    tiles
        How many; at most 16.
    cores
        Of each tile, the master core included; at most 16.
    """
    given = {"tiles": tiles, "cores": cores}
    spec = read_tiles(file) if file else parse(TilesSpec, given, "the command line")
    event = Board().up(spec)
    emit(output, "tile-up", event, lambda: print(f"{event['tiles']} tiles of {event['cores']} cores are up."))


@app.command
def run(program: Path, /, *words: Word, tile: int | None = None, detach: bool = False, output: Output = "text") -> int:
    """Run a program on a tile and show what it says. Its exit code is the program's.

    Parameters
    ----------
    program
        A program built for tiles (build/native/lib/tile/ has some).
    words
        Its arguments.
    tile
        Where it starts; default: the first free tile.
    detach
        Do not wait for its end.
    """
    if not program.is_file():
        raise Refused(Code.NOT_FOUND, f"there is no program {program}", "", "ls build/native/lib/tile")
    if detach:
        process = Board().start(program, list(words), tile)
        emit(output, "tile-start", {"process": process}, lambda: print(f"process {process} runs."))
        return 0
    said: list[str] = []
    end: Event = {}
    for end in Board().run(program, list(words), tile):
        if end["event"] == "started":
            say(f"process {end['process']} starts on tile {end['tile']}.")
        elif end["event"] == "output" and output == "text":
            sys.stdout.buffer.write(end["text"].encode("latin-1"))  # the bytes as the program said them
            sys.stdout.buffer.flush()
        elif end["event"] == "output":
            said.append(end["text"])
    if end["why"]:
        say(f"process {end['process']} {'was lost' if end['event'] == 'lost' else 'was ended'}: {end['why']}")
    emit(output, "tile-run", {**end, "output": "".join(said)}, lambda: None)
    return 1 if end["event"] == "lost" else int(end["status"])


@app.command
def ps(*, output: Output = "text") -> None:
    """Show the tiles and their processes."""
    data = Board().ps()

    def text() -> None:
        running = {p["tile"]: p["process"] for p in data["processes"] if p["state"] == "running"}
        rows = [(t["tile"], "up" if t["alive"] else "dead", running.get(t["tile"], "-")) for t in data["tiles"]]
        table(("TILE", "STATE", "PROCESS"), rows, "no tiles")
        print()
        header = ("PROCESS", "PROGRAM", "STATE", "TILE", "MOVES", "WHY")
        keys = ("process", "program", "state", "tile", "moves", "why")
        table(header, [[p[key] for key in keys] for p in data["processes"]], "no processes")

    emit(output, "tile-ps", data, text)


@app.command
def move(process: int, /, *, to: int, mode: Mode = "direct", output: Output = "text") -> None:
    """Move a process to another tile while it runs.

    Parameters
    ----------
    process
        Its number (wherry tile ps).
    to
        The tile.
    mode
        direct: one copy; faithful: in pieces of 4 KiB, as in the paper; handoff: the pages change hands.
    """
    event = Board().move(process, to, mode)

    def text() -> None:
        parts = ", ".join(f"{name} {_us(event[f'{name}_ns'])}" for name in ("freeze", "copy", "commit"))
        print(f"process {process} moved from tile {event['from']} to tile {event['to']} ({mode}).")
        print(f"It stood for {_us(event['first_ns'])}, its last thread for {_us(event['all_ns'])}: {parts};")
        print(f"{format_size(event['bytes'])} copied.")

    emit(output, "tile-move", event, text)


@app.command
def down(*, output: Output = "text") -> None:
    """End the tiles, and what runs on them."""
    Board().down()
    emit(output, "tile-down", {}, lambda: print("the tiles are down."))


def _us(nanoseconds: int) -> str:
    return format_duration(nanoseconds / 1e9)
