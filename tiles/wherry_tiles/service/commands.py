"""The commands on tiles: each change is an operation with claims. The name server (`wherry_tiles.manycore`) has their
state.

Claims: `tiles` is shared by programs of tiles and their moves, and exclusive to start or end the group; `tile process
P` is exclusive to move the process.

Invariants: only root changes tiles, because they run as the daemon's user and one group of tiles serves the instance;
any peer may read. Starting and ending the group claims it exclusively; programs and moves share it; a move claims its
processes. While tiles start on hosts of the fabric, the operation shares the claims of the fabric and those hosts, and
the hosts' names are stored before: neither can be removed under the tiles (`part.hosts_in_use`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from wherry.base.errors import Code, Refused
from wherry.base.paths import native_library
from wherry.cluster.lookup import find_host
from wherry.model.records import Operation
from wherry.service.claims import FABRIC, host_claim
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.task import Body, Task
from wherry_tiles.manycore.board import Event
from wherry_tiles.manycore.launch import Place, check_hosts
from wherry_tiles.manycore.output import output
from wherry_tiles.service.part import TILES_AT, board_of, hosts_in_use
from wherry_tiles.spec import Mode, TilesSpec

Build = Literal["separated", "joined", "mixed"]
"""The tiles' kernel: the usual one, or a baseline of a study, whose process cannot move. `joined` keeps the User Area
in its own memory; `mixed` has none: the process's threads lie among the kernel's data."""
_SHARED = "the tiles, which all share,"
TILES = "tiles"
"""The claim on the group of tiles."""
TILES_BALANCED = "tiles balanced"
"""Setting: not empty when the tiles last started are balanced."""


class TileCommands:
    """The commands of one peer on tiles."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context = context
        self._peer = peer
        self._board = board_of(context.instance)

    def show(self) -> Event:
        """`tiles`, `processes`, and `hosts`: the names of the tiles' hosts, in the order of their numbers; empty for
        tiles outside the fabric. NOT_FOUND when none are up, and for accounts that are no admins: they run as root."""
        if self._peer.seen_uids is not None:
            raise Refused(Code.NOT_FOUND, "no tiles of yours are up", "they are for the machine's own users", "")
        return {**_without_event(self._board.ps()), "hosts": hosts_in_use(self._context.instance, self._context.store)}

    def up(self, spec: TilesSpec, balance: bool = False, build: Build = "separated") -> Operation:
        """Starts tiles, on hosts of the fabric or outside it, and the servers of the rings. WRONG_STATE while tiles are
        up."""
        self._peer.require(0, _SHARED)
        for server in spec.servers():
            _check_program(server.program)
        self._board.check_down()
        self._places(spec.hosts)
        program = native_library(build) / "wherry-tiles" if build != "separated" else None

        def body(task: Task) -> dict[str, Any]:
            task.progress(f"starting {spec.tiles * max(1, len(spec.hosts))} tiles")
            self._board.check_down()  # again: the hosts of tiles that are up must stay recorded
            places = self._places(spec.hosts)  # again: the fabric may have changed
            self._context.store.put_setting(TILES_AT, json.dumps(spec.hosts))
            self._context.store.put_setting(TILES_BALANCED, "yes" if balance else "")
            self._board.up(spec, program, places)
            servers = self._board.boot(spec)
            return {**self.show(), "servers": servers}

        shared = [FABRIC, *(host_claim(host) for host in spec.hosts)] if spec.hosts else []
        return self._start("tiles up", ", ".join(spec.hosts) or TILES, body, shared=shared, exclusive=[TILES])

    def down(self) -> Operation:
        """Ends the tiles; the result is their last state, and the output of name server and tiles (`said`)."""
        self._peer.require(0, _SHARED)
        self._board.check_up()

        def body(_task: Task) -> dict[str, Any]:
            found = {**self.show(), "said": self._board.said()}
            self._board.down()
            self._context.store.put_setting(TILES_AT, "")
            return found

        return self._start("tiles down", TILES, body, exclusive=[TILES])

    def start(self, program: Path, words: tuple[str, ...], tile: int | None, ranks: int = 1) -> Operation:
        """Starts a program, on a tile or as ranks on several; the result has `process`, `rank` and `tile` of each."""
        self._peer.require(0, _SHARED)
        self._board.check_up()
        _check_program(program)
        if ranks > 1 and tile is not None:
            raise Refused(Code.USAGE, "ranks have a tile each", "a tile was named for them", "leave out tile or ranks")

        def body(_task: Task) -> dict[str, Any]:
            started = self._board.started(program, list(words), tile, ranks)
            return {"processes": [_without_event(process) for process in started]}

        return self._start("tile run", program.name, body, shared=[TILES])

    def move(self, tiles: Mapping[int, int], mode: Mode) -> Operation:
        """Moves processes to a tile each, all at the same time. The result has the cost of each, in the order of their
        ends; `seen_ns` is the time from the request to the name server's answer."""
        self._peer.require(0, _SHARED)
        self._board.check_up()

        def body(_task: Task) -> dict[str, Any]:
            costs, began = [], time.monotonic_ns()
            for event in self._board.moves(dict(tiles), mode):
                costs.append({**_without_event(event), "seen_ns": time.monotonic_ns() - began})
            return {"moves": costs}

        target = ", ".join(f"{process} to {tile}" for process, tile in tiles.items())
        claims = [f"tile process {process}" for process in tiles]
        return self._start("tile move", target, body, shared=[TILES], exclusive=claims)

    async def output(self, offsets: Mapping[int, int], wait: float, to_end: bool) -> list[Event]:
        """See `wherry_tiles.manycore.output`."""
        self._peer.require(0, "the output of tiles, which run as root,")
        return await output(self._board, offsets, wait, to_end)

    def _places(self, hosts: list[str]) -> list[Place]:
        if not hosts:
            return []
        fabric = self._context.require_managers().fabric
        check_hosts(fabric.spec.driver)
        known = self._context.hosts()
        for host in hosts:
            if find_host(known, host).drained:
                what, remedy = f"no tiles start on {host}", f"wherry host restore {host}"
                raise Refused(Code.WRONG_STATE, what, "it is drained", remedy)
        return [Place(fabric.host_netns(host), fabric.host_address(host)) for host in hosts]

    def _start(self, kind: str, target: str, body: Body, **claims: Any) -> Operation:
        """Starts an operation of milliseconds, which cannot be cancelled."""
        start = self._context.operations.start
        return start(kind, target, body, uid=self._peer.uid, may_cancel=False, **claims)


def _check_program(program: Path) -> None:
    if not program.is_absolute() or not program.is_file():
        raise Refused(Code.NOT_FOUND, f"there is no program {program}", "an absolute path is needed", "")


def _without_event(answer: Event) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "event"}
