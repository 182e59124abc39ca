"""Tiles over the service: what a user can ask for. The name server of the tiles stays the authority (wherry.manycore).

Invariant: tiles run as the daemon's user and one group of them serves the whole instance, so only root changes them;
who asks is told what is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.manycore.board import Board, Event
from wherry.manycore.launch import Place, check_hosts
from wherry.manycore.spec import TilesSpec
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials

_OURS = "the tiles, which all share,"


class Tiles:
    """The acts on tiles that a peer asks for."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context = context
        self._peer = peer
        self._board = Board(context.instance.run / "tiles.sock")

    def show(self) -> Event:
        """Tiles and processes. NOT_FOUND: none are up."""
        return _without_event(self._board.ps())

    def up(self, spec: TilesSpec) -> Event:
        """Starts tiles, on this machine or on hosts of the fabric that is up, and the servers of the rings."""
        self._peer.require(0, _OURS)
        for server in (server for ring in spec.rings for server in ring):
            _check_program(server.program)
        self._board.up(spec, places=self._places(spec.hosts))
        self._board.boot(spec)
        self._context.store.add_event("tiles.up", "tiles", f"{spec.tiles * max(1, len(spec.hosts))} tiles are up")
        return self.show()

    def down(self) -> Event:
        """Ends the tiles, and returns what there was."""
        self._peer.require(0, _OURS)
        found = self.show()
        self._board.down()
        self._context.store.add_event("tiles.down", "tiles", f"{len(found['tiles'])} tiles are down")
        return found

    def start(self, program: Path, words: tuple[str, ...], tile: int | None) -> Event:
        """Starts a program; its process as `show` tells it."""
        self._peer.require(0, _OURS)
        _check_program(program)
        number = self._board.start(program, list(words), tile)
        return next(process for process in self.show()["processes"] if process["process"] == number)

    def move(self, process: int, tile: int, mode: str) -> Event:
        """Moves a process; what that cost."""
        self._peer.require(0, _OURS)
        cost = _without_event(self._board.move(process, tile, mode))
        text = f"process {process} moved from tile {cost['from']} to {tile}"
        self._context.store.add_event("tiles.move", str(process), text)
        return cost

    def _places(self, hosts: list[str]) -> list[Place]:
        if not hosts:
            return []
        fabric = self._context.require_managers().fabric
        check_hosts(fabric.spec.driver)
        names = [host.name for host in fabric.spec.hosts]
        for host in hosts:
            if host not in names:
                why = f"it has {', '.join(names)}"
                raise Refused(Code.NOT_FOUND, f"there is no host {host} in the fabric", why, "wherry fabric show")
        return [Place(fabric.host_netns(host), fabric.host_address(host)) for host in hosts]


def _check_program(program: Path) -> None:
    if not program.is_absolute() or not program.is_file():
        raise Refused(Code.NOT_FOUND, f"there is no program {program}", "an absolute path is needed", "")


def _without_event(answer: Event) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "event"}
