"""Tiles of two hosts: moves between them, and hosts that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tile_runs import (
    FAR_MODES,
    Run,
    Scenario,
    at_once,
    build,
    count_sum,
    failure,
    place,
    ranks,
    run_ranks_that_move,
    start,
    words_of,
)

import waiting
from wherry.base.errors import Failed, Refused
from wherry_tiles.manycore.balancer import SAMPLE_INTERVAL, Balancer
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import MODES

__all__ = ["at_once", "build", "start"]  # fixtures

LONG = 20_000_000
"""Rounds of `count` from one line to the next: it still runs when a test has read the first, on a busy machine, too."""

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.mark.thorough  # tiles/tests/system/test_tiles.py has it in short
@pytest.mark.parametrize("fault", ["", "channel:cut"])
def test_tiles_of_two_hosts(start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Messages, bulk, signals and moves over TCP in every mode, also when the connection breaks every few frames."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(3, 3, hosts=2)
    assert [tile["host"] for tile in board.ps()["tiles"]] == [0, 0, 0, 1, 1, 1]
    for mode in FAR_MODES:
        text, ends = ranks(board, 5, "ring", 10, 30000, 3, 6, MODES.index(mode))
        assert [(end["event"], end["status"]) for end in ends] == [("ended", 0)] * 5, (text, ends)
        assert text.count("ok 10 rounds") == 5
    still, _ = ranks(board, 4, "mpi-check", 20)
    moving, ends = run_ranks_that_move(board, "check", ["20"], 4, FAR_MODES)
    assert [(end["status"], end["why"]) for end in ends] == [(0, "")] * 4, (moving, ends)
    assert still == moving == "ok, 20 rounds\n"
    assert sum(end["moves"] for end in ends) > 4


def test_a_move_between_hosts(start: Callable[..., Board]) -> None:
    board = start(2, 3, hosts=3)
    run = Run(board, "count", 1000, 2000000, tile=0)
    run.said("1\n")
    for mode in FAR_MODES:
        for to in (2, 3, 4, 1):  # away, within a host, to a third, and home
            cost = board.move(run.process, to, mode)
            assert cost["to"] == to and 0 < cost["freeze_ns"] < cost["first_ns"] <= cost["all_ns"] and cost["bytes"] > 0
            assert (cost["before"] > 0) == (cost["rounds"] > 0) == (mode == "precopy")
            assert place(board, run.process)["tile"] == to
    with pytest.raises(Refused, match="both tiles share, and these are on two hosts"):
        board.move(run.process, 5, "handoff")
    assert run.ended()["status"] == 0 and run.end["moves"] == 4 * len(FAR_MODES)
    assert run.text.splitlines()[:-1] == [str(n) for n in range(1, 1001)]
    assert run.text.splitlines()[-1] == f"sum {count_sum(1000 * 2000000):x}"
    server = Run(board, "names", "serve", "echo", 1, tile=5)
    asker = Run(board, "names", "ask", "echo", tile=3)
    assert asker.ended()["status"] == 0 and f"process {server.process} port 6: 42" in asker.text


def test_processes_that_talk_are_moved_together(start: Callable[..., Board]) -> None:
    board = start(2, 3, hosts=2)
    guard = Run(board, "receive", tile=1)
    talk = threading.Thread(target=lambda: failure(ranks, board, 2, "ring", 1000000, 100), daemon=True)
    talk.start()
    waiting.until(lambda: [p["tile"] for p in board.ps()["processes"] if p["program"] == "ring"] == [0, 2], "both run")
    assert Run(board, "send", guard.process, 3, "quit", tile=3).ended()["status"] == 0
    assert guard.ended()["status"] == 0
    watched = Balancer(board)

    def together() -> bool:
        if move := watched.look():
            board.move(move.process, move.tile)
            watched.moved(move.process)
        time.sleep(SAMPLE_INTERVAL / 2)
        return {p["tile"] // 2 for p in board.ps()["processes"] if p["program"] == "ring"} in ({0}, {1})

    waiting.until(together, "together")


def dies(board: Board) -> None:
    there = Run(board, "busy", tile=2)
    there.said("ready")
    here = Run(board, "receive", tile=0)
    follower = follower_of(board)
    os.kill(follower, signal.SIGSTOP)
    moved: list[Exception | None] = []
    mover = threading.Thread(target=lambda: moved.append(failure(board.move, here.process, 3)))
    mover.start()
    time.sleep(0.3)
    os.kill(follower, signal.SIGKILL)
    mover.join(waiting.bound(180))  # in which a host that does not answer is given up
    why = str(getattr(moved[0], "why", ""))
    assert "host is gone" in why or "the other host did not answer" in why  # whichever bound ends first
    assert ended(there)["event"] == "lost" and "host 1 has not answered" in there.end["why"]
    assert Run(board, "send", here.process, 3, "quit", tile=1).ended()["status"] == 0
    assert here.ended()["status"] == 0
    assert [tile["alive"] for tile in board.ps()["tiles"]] == [True, True, False, False]
    of_follower(board).unlink()


def dies_with_a_frozen_process(board: Board, mode: str) -> None:
    run = Run(board, "count", 60, LONG, tile=0)
    run.said("1\n")
    with pytest.raises(Failed) as failure:
        board.move(run.process, 1, mode)
    assert failure.value.why == "the destination's host is gone"
    assert ended(run)["status"] == 0 and run.end["moves"] == 0
    assert run.text.splitlines()[:-1] == [str(n) for n in range(1, 61)]
    assert run.text.splitlines()[-1] == f"sum {count_sum(60 * LONG):x}"
    of_follower(board).unlink()


def dies_with_a_process_that_leaves(board: Board, fault: str) -> None:
    run = Run(board, "count", 60, LONG, tile=1)
    run.said("1\n")
    failed = failure(board.move, run.process, 2, "direct")
    end, lines = ended(run), run.text.splitlines()
    if end["event"] == "ended":
        assert fault == "host:given" and (end["status"], end["moves"]) == (0, 1)
        assert lines == [*(str(n) for n in range(1, 61)), f"sum {count_sum(60 * LONG):x}"]
        assert failed is None or "it runs at the new one" in str(failed)
    else:
        assert end["event"] == "lost" and "host 1 has not answered" in end["why"]
        assert failed and lines == [str(n) for n in range(1, len(lines) + 1)]
    assert Run(board, "count", 3, tile=2).ended()["status"] == 0
    of_follower(board).unlink()


def stands_still(board: Board) -> None:
    there = Run(board, "busy", tile=1)
    there.said("ready")
    follower = follower_of(board)
    tiles = Path(f"/proc/{follower}/task/{follower}/children").read_text().split()
    os.kill(follower, signal.SIGSTOP)
    assert ended(there)["event"] == "lost" and "host 1 has not answered" in there.end["why"]
    assert tiles and not [pid for pid in tiles if Path(f"/proc/{pid}/root").exists()]  # a zombie has none
    os.kill(follower, signal.SIGKILL)
    of_follower(board).unlink()


SCENARIOS = {
    "dies": Scenario(dies, 2, 3, hosts=2),
    "stands still": Scenario(stands_still, 1, 2, hosts=2),
    **{
        fault: Scenario(lambda board, mode=mode: dies_with_a_frozen_process(board, mode), 1, 3, 2, fault)  # type: ignore[misc]
        for fault, mode in (("host:state", "direct"), ("host:come", "precopy"))
    },
    **{
        fault: Scenario(lambda board, fault=fault: dies_with_a_process_that_leaves(board, fault), 1, 3, 3, fault)  # type: ignore[misc]
        for fault in ("host:give", "host:given")
    },
}


def ended(run: Run) -> dict[str, Any]:
    run.join(waiting.bound(180))  # in which a host that does not answer is given up
    return run.ended()


def of_follower(board: Board) -> Path:
    return board.path.with_name("tiles.1.sock")


def follower_of(board: Board) -> int:
    """The process of the second host's board."""
    return next(int(p.name) for p in Path("/proc").glob("[0-9]*") if str(of_follower(board)) in words_of(p))


def test_a_host_without_its_leader_ends(start: Callable[..., Board], tmp_path: Path) -> None:
    board = start(1, 2, hosts=2)
    leader = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if f"{tmp_path / 'tiles.sock'}" in words_of(p))
    os.kill(leader, signal.SIGKILL)
    waiting.until(lambda: not (tmp_path / "tiles.1.sock").exists(), "the follower ends")
    assert "host 0, the name server, has ended" in (tmp_path / "tiles.1.log").read_text()
    board.path.unlink()
    with pytest.raises(Refused) as refusal:
        board.ps()
    assert "the processes here end with it" in refusal.value.why


def test_a_host_dies(at_once: dict[str, Future[None]]) -> None:
    """Its processes are reported lost; those of the other continue, and a process that was on its way there stays."""
    at_once["dies"].result()


@pytest.mark.parametrize("fault", ["host:state", "host:come"])
def test_a_host_dies_with_a_frozen_process(at_once: dict[str, Future[None]], fault: str) -> None:
    """The destination's, with the whole process, or when it already runs there, unreported: it continues here."""
    at_once[fault].result()


@pytest.mark.parametrize("fault", ["host:give", "host:given"])
def test_a_host_dies_with_a_process_that_leaves_it(at_once: dict[str, Future[None]], fault: str) -> None:
    """It runs at its new host when all of it was on the way, or is reported lost; the tile it was to have is free."""
    at_once[fault].result()


def test_a_host_whose_board_stands_still(at_once: dict[str, Future[None]]) -> None:
    """When the leader reports its processes lost, its tiles have ended, with nobody there to end them."""
    at_once["stands still"].result()
