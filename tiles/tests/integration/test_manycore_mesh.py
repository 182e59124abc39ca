"""Tiles on a network on chip for real: the time of a message, messages under way to a process that moves, the balancer;
the paper's call; the builds without user areas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tile_runs import Run, build, place, program, ranks, run_ranks_that_move, start

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_library
from wherry_tiles.manycore.balancer import SAMPLE_INTERVAL, Balancer
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import TilesSpec

__all__ = ["build", "start"]  # fixtures


def round_trip(board: Board, one: int, other: int) -> float:
    """Seconds, the median of 20, between processes on two tiles."""
    echo = Run(board, "pong", tile=one)
    echo.said("ready")
    asker = Run(board, "pong", 8, 20, echo.process, tile=other)
    assert asker.ended()["status"] == 0 and echo.ended()["status"] == 0
    return int(asker.text.split()[1]) / 1e9


def test_a_message_is_under_way_for_its_hops(start: Callable[..., Board]) -> None:
    board = start(16, 2, mesh="4x4", hop="2ms")
    table = board.ps()
    assert (table["mesh"], table["hop_ns"]) == ("4x4", 2000000)
    assert [table["tiles"][n]["place"] for n in (0, 3, 4, 15)] == [[0, 0], [3, 0], [0, 1], [3, 3]]
    far, near, here = (round_trip(board, 0, other) for other in (15, 1, 4))
    assert far >= 2 * 6 * 2e-3 and near >= 2 * 2e-3 and here >= 2 * 2e-3
    assert near < far and here < far


def test_without_a_mesh_every_tile_is_as_near(start: Callable[..., Board]) -> None:
    table = start(3, 2).ps()
    assert table["hop_ns"] == 0 and all("place" not in tile for tile in table["tiles"])


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_messages_come_once_and_in_order_through_a_mesh(start: Callable[..., Board], mode: int) -> None:
    """Of senders and readers that move while messages are under way; later messages have the shorter way at times."""
    board = start(6, 2, mesh="3x2", hop="100us")
    ring = [Run(board, "token_ring", i % 3, i % 3 + 1, 400, 7 + i, 6, mode) for i in (1, 2, 3)]
    for run in ring:
        assert run.ended()["status"] == 0, run.text
        assert run.text.startswith("ok 400 messages"), run.text
    assert sum(run.end["moves"] for run in ring) > 10


def test_bulk_signals_and_mpi_through_a_mesh(start: Callable[..., Board]) -> None:
    board = start(6, 2, mesh="3x2", hop="50us")
    text, ends = ranks(board, 3, "ring", 30, 20000, 5, 6, 1)
    assert [end["status"] for end in ends] == [0, 0, 0], text

    def checked() -> tuple[str, list[Any]] | None:
        try:
            return run_ranks_that_move(board, "check", ["3"], 4)
        except Refused as error:  # a tile of the ranks before may not be free yet
            assert error.code == Code.NO_CAPACITY, error
            return None

    text, ends = waiting.until(checked, "four free tiles")  # type: ignore[misc]
    assert (text, [end["status"] for end in ends]) == ("ok, 3 rounds\n", [0] * 4)


def test_processes_that_talk_are_moved_near_to_each_other(start: Callable[..., Board]) -> None:
    """Real counts of messages drive it; a process without messages stays in between."""
    board = start(9, 2, mesh="3x3", hop="500us")
    echo, idle = Run(board, "pong", tile=0), Run(board, "receive", tile=4)
    echo.said("ready")
    asker = Run(board, "pong", 8, 100, echo.process, 1000000, tile=8)
    watched, moves = Balancer(board), []  # type: Balancer, list[TileMove]

    def hops() -> int:
        at = [divmod(place(board, run.process)["tile"], 3) for run in (echo, asker)]
        return sum(abs(one - other) for one, other in zip(*at, strict=True))

    def near() -> bool:
        if move := watched.look():
            board.move(move.process, move.tile)
            watched.moved(move.process)
            moves.append(move)
        time.sleep(SAMPLE_INTERVAL / 2)
        return hops() == 1

    assert hops() == 4
    waiting.until(near, "they are near")
    assert place(board, idle.process)["moves"] == 0
    assert moves[0].process in (echo.process, asker.process) and "4 hops away, then" in moves[0].why, moves
    asker.said("median")


def test_the_papers_call_moves_its_process(start: Callable[..., Board]) -> None:
    run = Run(start(3, 2), "migrate", 1, 2, 2, 9, tile=0)
    assert run.ended()["status"] == 0
    assert run.text.splitlines() == ["on tile 1", "on tile 2", "tile 2: error -22", "tile 9: error -22"]


@pytest.fixture(params=["joined", "mixed"])
def other_build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    """Two tiles of a build of Q1."""
    board = Board(tmp_path / "tiles.sock")
    board.up(TilesSpec(tiles=2, cores=4), native_library(request.param) / "wherry-tiles")
    yield board
    said = board.said()
    board.down()
    assert said == ""


def test_a_build_without_user_areas_runs_threads_and_moves_nothing(other_build: Board) -> None:
    for words in (("threads", "20"), ("forkjoin", "17", "10"), ("freeze", "20")):
        *_, end = other_build.run(program(words[0]), list(words[1:]))
        assert (end["event"], end["status"], end["why"]) == ("ended", 0, ""), words
    holding = other_build.start(program("receive"), [], 0)
    with pytest.raises((Refused, Failed), match="among the kernel's data"):
        other_build.move(holding, 1)
    *_, end = other_build.run(program("migrate"), ["0"], 1)
    assert end["status"] == 0
