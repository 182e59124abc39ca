"""The tiles of this machine: starts `wherry-tiles`, their name server, and sends it commands over its Unix socket.

Invariant: this module keeps no state. The name server has the place of each tile process; when it does not answer,
there are no tiles, because they end with it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.paths import Instance
from wherry_tiles.manycore.launch import Place, launch, logs
from wherry_tiles.spec import TilesSpec

_ANSWER = 60.0  # seconds for commands that take milliseconds, on a loaded machine

Event = dict[str, Any]


def tiles_socket(place: Instance) -> Path:
    """Path of the Unix socket of an instance's name server."""
    return place.run / "tiles.sock"


class Board:
    """One group of tiles, identified by the path of its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def up(self, spec: TilesSpec, program: Path | None = None, places: list[Place] | None = None) -> Event:
        """Starts the tiles, on this machine or on each place. Returns when all are up.

        `program` is another build of `wherry-tiles`.
        """
        self.check_down()
        return launch(self.path, spec, places or [], program)

    def is_up(self) -> bool:
        """True when a name server listens, even if it is too busy to answer; otherwise another may take its place."""
        try:
            self.connect().close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
        return True

    def check_down(self) -> None:
        """WRONG_STATE when tiles are up."""
        if self.is_up():
            raise Refused(Code.WRONG_STATE, "tiles are up already", f"{self.path} answers", "wherry tile down")

    def check_up(self) -> None:
        """NOT_FOUND when no tiles are up."""
        if not self.is_up():
            raise self._none_up()

    def run(self, program: Path, words: list[str], tile: int | None = None) -> Iterator[Event]:
        """Starts a program and follows it: `started`, `output`…, then `ended` or `lost`."""
        return self._ask("run", *self._start(program, words, tile), patient=True)

    def ranks(self, program: Path, words: list[str], count: int) -> Iterator[Event]:
        """Starts a program as several ranks, each on a free tile, and follows them as `run` does, to the last end."""
        left = 0
        for event in self._ask("ranks", str(count), *self._start(program, words, None)[1:], patient=True):
            left += (event["event"] == "started") - (event["event"] in ("ended", "lost"))
            yield event
        if left:
            raise gone()

    def wait_for(self, name: str, seconds: float = _ANSWER) -> int:
        """Waits until a process has linked `name`; its number."""
        try:
            return int(list(self._ask("await", name, seconds=seconds))[-1]["process"])
        except TimeoutError:
            why = f"waited for {seconds:g} s"
            raise Refused(Code.NOT_FOUND, f"no process has linked the name {name!r}", why, "wherry tile ps") from None

    def boot(self, spec: TilesSpec, seconds: float = _ANSWER) -> dict[str, int]:
        """Starts the servers ring by ring. Returns their processes."""
        booted: dict[str, int] = {}
        for ring in spec.rings:
            for server in ring:
                booted[server.name] = self.start(server.program, server.words, server.tile)
            for server in ring:
                try:
                    self.wait_for(server.name, seconds)
                except Refused as refusal:
                    states = {p["process"]: p["state"] for p in self.ps()["processes"]}
                    has = "has ended" if states[booted[server.name]] != "running" else "runs"
                    what = f"server {server.name!r} has not linked its name"
                    why = f"process {booted[server.name]} {has}; {refusal.why}"
                    raise Failed(Code.FAILED, what, why, f"wherry tile run {server.program}") from None
        return booted

    def start(self, program: Path, words: list[str], tile: int | None = None) -> int:
        """Starts a program. Returns its process number."""
        return int(self._one("start", *self._start(program, words, tile))["process"])

    def started(self, program: Path, words: list[str], tile: int | None, ranks: int) -> list[Event]:
        """Starts a program as one process, or as several ranks, and returns `process`, `rank` and `tile` of each."""
        if ranks == 1:
            return [self._one("start", *self._start(program, words, tile))]
        with closing(self._ask("ranks", str(ranks), *self._start(program, words, None)[1:])) as events:
            return list(islice(events, ranks))

    def attach(self, process: int) -> Iterator[Event]:
        """Past and future output of a process, then `ended` or `lost`."""
        return self._ask("attach", str(process), patient=True)

    def move(self, process: int, tile: int, mode: str = "precopy") -> Event:
        """Moves a process. Returns the cost, durations in nanoseconds; see `tiles/docs/0008-manycore.md`."""
        return self._one("move", mode, str(process), str(tile))

    def moves(self, tiles: dict[int, int], mode: str = "direct") -> Iterator[Event]:
        """Moves processes to a tile each, starting together; yields the cost of each as it ends, raises a failure."""
        left = len(tiles)
        for event in self._ask("move", mode, *(str(word) for pair in tiles.items() for word in pair)):
            left -= 1
            yield event
        if left:
            raise gone()

    def ps(self) -> Event:
        """Tiles and processes."""
        return self._one("ps")

    def loads(self) -> Event:
        """`cpu_ns` used by each tile, `cpus` of each host, `said`: numbers of messages between pairs of processes."""
        return self._one("loads")

    def down(self) -> None:
        """Ends the tiles and their processes. Returns when the name server has ended."""
        self._one("down")
        with suppress(OSError), self.connect() as connection:  # accepted or not, it is closed when the name server ends
            connection.settimeout(_ANSWER)
            connection.recv(1)
        for log in self.path.parent.glob(f"{self.path.stem}*.log"):
            log.unlink(missing_ok=True)

    def said(self) -> str:
        """The logs of boards and tiles; empty when all is well."""
        return "".join(log.read_text(errors="replace") for log in logs(self.path))

    def _none_up(self) -> Refused:
        """The error when no name server listens."""
        why = f"{self.path} does not answer{self._log_tail()}"
        return Refused(Code.NOT_FOUND, "no tiles are up", why, "wherry tile up")

    def _log_tail(self) -> str:
        """The end of the latest tiles' logs, for the error text, if they did not end by `down`."""
        lines = [line for log in logs(self.path) for line in log.read_text(errors="replace").splitlines()]
        return f"; their log ends with: {' / '.join(lines[-3:])[:300]}" if lines else ""

    def _start(self, program: Path, words: list[str], tile: int | None) -> list[str]:
        if any("\t" in word or "\n" in word for word in (str(program), *words)):
            raise Refused(
                Code.USAGE, "an argument of a tile's program contains a tab or a line end", "", "leave it out"
            )
        return ["any" if tile is None else str(tile), str(program.resolve()), *words]

    def _one(self, *words: str) -> Event:
        return list(self._ask(*words))[-1]

    def connect(self) -> socket.socket:
        """A connection to the name server; its protocol is in tiles/native/board/main.c."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    def _ask(self, *words: str, patient: bool = False, seconds: float = _ANSWER) -> Generator[Event, None, None]:
        """The answers to one command; raises a refusal. `patient`: no timeout, as the answer ends with the program.

        TimeoutError when an awaited name is not linked within `seconds`.
        """
        try:
            connection = self.connect()
        except OSError:
            raise self._none_up() from None
        event: Event = {}
        with connection, connection.makefile("r") as answers:
            try:
                connection.settimeout(None if patient else seconds)
                with suppress(BrokenPipeError):  # it refused before reading the command: see its answer
                    connection.sendall(("\t".join(words) + "\n").encode())
                for line in answers:
                    if not line.endswith("\n"):  # it died while it answered
                        event = {}
                        break
                    event = json.loads(line)
                    raise_refusal(event, words[0])
                    yield event
            except TimeoutError:
                if words[0] == "await":
                    raise
                raise LostContact(
                    Code.UNREACHABLE,
                    "the tiles' name server does not answer",
                    f"waited {seconds:g} s",
                    "wherry tile ps",
                ) from None
            except OSError as error:
                raise LostContact(
                    Code.UNREACHABLE, "the tiles' name server does not answer", str(error), "wherry tile ps"
                ) from None
        if not event or event["event"] in ("started", "output") and words[0] != "start":
            raise gone()


def gone() -> LostContact:
    """The error when the name server ends before its answer is complete."""
    return LostContact(Code.UNREACHABLE, "the tiles are gone", "their name server has ended", "wherry tile up")


def raise_refusal(event: Event, command: str) -> None:
    if event["event"] == "refused":
        raise Refused(Code(event["code"]), f"cannot {command}: {event['why']}", "", "wherry tile ps")
    if event["event"] == "failed":
        what = "the process was not moved; if it still runs, it is on its old tile"
        raise Failed(Code(event["code"]), what, event["why"], "wherry tile ps")
