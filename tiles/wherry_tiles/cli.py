"""`wherry tile`: tiles, the programs that run on them, and their moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import examples_in, native_library, native_program
from wherry.base.remedies import setup
from wherry.base.units import format_duration, format_size
from wherry.cli.files import mapping
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, say, table
from wherry.client import Client, Reader, existing
from wherry.model.spec.parse import parse
from wherry_tiles.client import tile_requests
from wherry_tiles.spec import Mode, TilesSpec
from wherry_tiles.status import read

app = App(name="tile", help="Tiles: small kernels, and processes that move between them.")

_EXAMPLES = examples_in(Path(__file__).parent, Path(__file__).parents[1])
Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


@app.command
def up(
    file: Path | None = None,
    /,
    *,
    tiles: int = 4,
    cores: int = 3,
    mesh: str | None = None,
    hop: str = "10us",
    balance: bool = False,
    output: Output = "text",
) -> None:
    """Start tiles on this machine.

    Parameters
    ----------
    file
        A tiles file (see tiles/examples/tiles.yaml); it replaces --tiles, --cores, --mesh and --hop.
    tiles
        Number of tiles; at most 16.
    cores
        Cores of each tile, including its master core; at most 16.
    mesh
        Places of the tiles on a network on chip, columns x rows, for instance 4x4.
    hop
        The additional latency of a message for each hop on the mesh.
    balance
        Move processes that exchange many messages to one host, on a mesh near to each other, and off oversubscribed
        hosts (see wherry event list). Tiles of one host share its CPUs: without a mesh nothing is moved between them.
    """
    spec: dict[str, Any] = read_tiles(file) if file else {"tiles": tiles, "cores": cores, "mesh": mesh, "hop": hop}
    source = str(file or "the command line")
    if file is None:
        parse(TilesSpec, spec, source, "wherry tile up")
    with Client() as client:
        made = tile_requests(client).tiles_up(spec, source, balance=balance)
    data = {"tiles": len(made["tiles"]), "cores": spec["cores"], "hosts": made["hosts"], "servers": made["servers"]}

    def text() -> None:
        print(f"{data['tiles']} tiles of {data['cores']} cores are up.")
        for name, process in data["servers"].items():
            print(f"server {name} is process {process}.")

    emit(output, "tile-up", data, text)


@app.command
def run(
    program: Path,
    /,
    *words: Word,
    tile: int | None = None,
    ranks: int = 1,
    detach: bool = False,
    output: Output = "text",
) -> int:
    """Run a program on a tile, or as ranks of an MPI program on several, and show its output.

    The exit code is the program's; with several ranks, the largest.

    Parameters
    ----------
    program
        A program built for tiles (build/native/lib/tile/ has some).
    words
        Its arguments.
    tile
        The tile where it starts; default: the first free one.
    ranks
        Number of ranks, each on a free tile.
    detach
        Do not wait for its end: print its process number.
    """
    if not program.is_file():
        raise Refused(Code.NOT_FOUND, f"there is no program {program}", "", f"ls {native_library('tile')}")
    checked("WORDS", "wherry_tiles.spec:Words", words, "wherry tile run")
    checked("--tile", "wherry_tiles.spec:Tile", tile, "wherry tile run")
    checked("--ranks", "wherry_tiles.spec:Ranks", ranks, "wherry tile run")
    if ranks > 1 and (detach or tile is not None):
        raise Refused(Code.USAGE, "--ranks excludes --tile and --detach", "", "leave out one of them")
    with existing("tile") as client:
        requests = tile_requests(client)
        started = requests.start_on_tile(str(program.resolve()), list(words), tile, ranks)
        processes = [process["process"] for process in started]
        if detach:
            (process,) = processes
            emit(output, "tile-start", {"process": process}, lambda: print(f"process {process} runs."))
            return 0
        for process in started:
            say(f"process {process['process']} starts on tile {process['tile']}.")
        written, ends = _follow(requests.tile_output(processes), output)
    data = {**ends[-1], "output": written} if ranks == 1 else {"ranks": ends, "output": written}
    emit(output, "tile-run", data, lambda: None)
    return max(1 if end["event"] == "lost" else int(end["status"]) for end in ends)


def read_tiles(path: Path) -> dict[str, Any]:
    """The content of a valid tiles file, as the daemon takes it: the programs of its servers as absolute paths."""
    spec = parse(TilesSpec, mapping(path, "wherry tile up", _EXAMPLES), str(path))
    for server in spec.servers():
        if not (path.parent / server.program).is_file():
            raise Refused(Code.NOT_FOUND, f"there is no program {server.program} for server {server.name!r}", str(path))
    data = spec.model_dump(mode="json")
    for server in (server for ring in data["rings"] for server in ring):
        server["program"] = str((path.parent / server["program"]).resolve())
    return data


def _follow(events: Iterator[dict[str, Any]], output: Output) -> tuple[str, list[dict[str, Any]]]:
    """Shows the output of programs until the last has ended."""
    written: list[str] = []
    ends: list[dict[str, Any]] = []
    for event in events:
        if event["event"] != "output":
            ends.append(event)
            if event["why"]:
                verb = "was lost" if event["event"] == "lost" else "was ended"
                say(f"process {event['process']} {verb}: {event['why']}")
        elif output == "text":
            sys.stdout.buffer.write(event["text"].encode("latin-1"))  # the bytes that the program wrote
            sys.stdout.buffer.flush()
        else:
            written.append(event["text"])
    return "".join(written), ends


@app.command
def ps(*, output: Output = "text") -> None:
    """Show the tiles and their processes."""
    with Reader() as reader:
        data = read(reader)

    def text() -> None:
        running = {p["tile"]: p["process"] for p in data["processes"] if p["state"] == "running"}
        meshed = bool(data["hop_ns"])
        rows = [
            (t["tile"], *(["{},{}".format(*t["place"])] if meshed else []), _state(t), running.get(t["tile"], "-"))
            for t in data["tiles"]
        ]
        table(("TILE", *(["PLACE"] if meshed else []), "STATE", "PROCESS"), rows, "no tiles")
        if meshed:
            print(f"\nA message takes {_us(data['hop_ns'])} longer for each hop on the mesh of {data['mesh']}.")
        print()
        header = ("PROCESS", "PROGRAM", "STATE", "TILE", "MOVES", "WHY")
        keys = ("process", "program", "state", "tile", "moves", "why")
        table(header, [[p[key] for key in keys] for p in data["processes"]], "no processes")

    emit(output, "tile-ps", data, text)


@app.command
def move(process: int, /, *, to: int, mode: Mode = "precopy", output: Output = "text") -> None:
    """Move a process to another tile while it runs.

    A program moves itself by kmigrate_to(TILE), the paper's call, or move_to(TILE, MODE).

    Parameters
    ----------
    process
        Its process number (wherry tile ps).
    to
        The tile.
    mode
        direct: frozen and copied at once; faithful: copied in pieces of 4 KiB, as in the paper; handoff: its pages are
        remapped, on one host only; `precopy`: copied while it runs, then frozen for the last dirty pages.
    """
    checked("PROCESS", "wherry_tiles.spec:Process", process, "wherry tile move")
    checked("--to", "wherry_tiles.spec:Tile", to, "wherry tile move")
    with existing("process") as client:
        event = tile_requests(client).move_tile_process(process, to, mode)

    def text() -> None:
        parts = ", ".join(f"{name} {_us(event[f'{name}_ns'])}" for name in ("freeze", "copy", "commit"))
        print(f"process {process} moved from tile {event['from']} to tile {event['to']} ({mode}).")
        bound = " at most" if event["at_most"] else ""  # between hosts with two clocks
        print(f"Its downtime was{bound} {_us(event['first_ns'])}, {_us(event['all_ns'])} for its last thread: {parts};")
        print(f"{format_size(event['bytes'])} copied.")
        if event["rounds"]:
            before, rounds = format_size(event["before"]), f"{event['rounds']} round{'s' * (event['rounds'] > 1)}"
            print(f"Before that, while it ran: {before} in {rounds}, dirty pages found by {event['tracking']}.")
        elif mode == "precopy":
            print("Nothing was copied while it ran: this kernel does not track dirty pages.")

    emit(output, "tile-move", event, text)


@app.command
def graph() -> None:
    """Print the tasks of a move and their dependencies as a graph, for Graphviz's dot."""
    command = [str(native_program("wherry-tile")), "--dot"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise Failed(Code.FAILED, f"{command[0]} cannot be started", str(error), setup()) from None
    if done.returncode:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise Failed(Code.FAILED, "the graph could not be made", why, setup())
    print(done.stdout, end="")


@app.command
def down(*, output: Output = "text") -> None:
    """End the tiles and the processes on them."""
    with existing("tile") as client:
        tile_requests(client).tiles_down()
    emit(output, "tile-down", {}, lambda: print("the tiles are down."))


def _state(tile: dict[str, Any]) -> str:
    return "up" if tile["alive"] else "dead"


def _us(nanoseconds: int) -> str:
    return format_duration(nanoseconds / 1e9)
