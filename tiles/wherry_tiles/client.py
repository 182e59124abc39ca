"""Tiles. Operations on them take milliseconds: each is one request, answered when the operation has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.client.requests import POLL, Requests, is_done
from wherry.client.row import Row


class TileRequests(Requests):
    """Requests of a client about tiles."""

    def tiles(self) -> dict[str, Any]:
        """`tiles`, `processes`, and the `hosts` of the fabric that they are on. NOT_FOUND when none are up."""
        found: dict[str, Any] = self.get("/v1/tiles")
        return found

    def tiles_up(
        self, spec: dict[str, Any], source: str, *, balance: bool = False, build: str = "separated"
    ) -> dict[str, Any]:
        """Starts the tiles of a file; returns their state, and `servers`: process numbers by server name."""
        body = {"spec": spec, "source": source, "balance": balance, "build": build}
        return self._tile_operation("PUT", "/v1/tiles", body)

    def tiles_down(self) -> dict[str, Any]:
        """Ends the tiles; returns their last state, and `said`: faults that tiles reported."""
        return self._tile_operation("DELETE", "/v1/tiles")

    def start_on_tile(
        self, program: str, words: list[str], tile: int | None = None, ranks: int = 1
    ) -> list[dict[str, Any]]:
        """Starts a program (an absolute path on its machine), once or as ranks; `process` and `tile` of each."""
        body = {"program": program, "words": words, "tile": tile, "ranks": ranks}
        started: list[dict[str, Any]] = self._tile_operation("POST", "/v1/tiles/processes", body)["processes"]
        return started

    def tile_output(self, processes: Sequence[int], to_end: bool = False) -> Iterator[dict[str, Any]]:
        """Events `output` of processes as they write, and one `ended` or `lost` of each. With `to_end` they are sent
        when all have ended, so that nothing disturbs the processes. FAILED when more was written than is kept."""
        offsets = dict.fromkeys(processes, 0)
        while offsets:
            of = [f"{process}:{offset}" for process, offset in offsets.items()]
            for event in self.get("/v1/tiles/output", of=of, wait=POLL, to_end=to_end):
                process = event["process"]
                if event["event"] != "output":
                    del offsets[process]
                elif event["from"] > offsets[process]:
                    what = f"process {process} wrote more output than is kept"
                    why = f"{event['from'] - offsets[process]} bytes of its output were dropped"
                    raise Failed(Code.FAILED, what, why, "let it write less, or more slowly")
                else:
                    offsets[process] += len(event["text"])
                yield event

    def move_tile_process(self, process: int, tile: int, mode: str = "precopy") -> dict[str, Any]:
        """Moves a process; returns the cost, durations in nanoseconds."""
        return self.move_tile_processes({process: tile}, mode)[0]

    def move_tile_processes(self, tiles: dict[int, int], mode: str = "precopy") -> list[dict[str, Any]]:
        """Moves processes to a tile each, at the same time; returns the cost of each, in the order of their ends."""
        moves: list[dict[str, Any]] = self._tile_operation("POST", "/v1/tiles/moves", {"tiles": tiles, "mode": mode})[
            "moves"
        ]
        return moves

    def _tile_operation(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        operation = Row(self._transport.ask(method, path, body=body, wait=POLL))
        return (operation if is_done(operation) else self.wait(operation.id)).result or {}


def tile_requests(client: Requests) -> TileRequests:
    """The requests about tiles over the connection of a client, whose methods they are too, but for a type checker."""
    return TileRequests(client._transport)
