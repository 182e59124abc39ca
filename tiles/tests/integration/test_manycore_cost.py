"""The costs that moves of tiles report, as the study `manycore` relies on them: real tiles, as in tile_runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tile_runs import Run, build, place, start

import waiting
from wherry.base.errors import Refused
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import MODES

__all__ = ["build", "start"]  # fixtures

USER_BASE = 0x40000000  # abi.h


def image(pid: int) -> list[bytes]:
    """The pages of a tile's user region, but for the stacks."""
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(USER_BASE)
        return [memory.read(4096) for _ in range(360)]


def test_the_first_thread_writes_its_working_set(start: Callable[..., Board]) -> None:
    """All of it, and nothing else: a move has to carry these pages while the process is frozen."""
    board = start(1, 2)
    run = Run(board, "busy", 0, 40, 0, 30)
    run.said("ready")
    pid = board.ps()["tiles"][0]["pid"]
    before = image(pid)

    def written() -> int:
        return sum(now != then for now, then in zip(image(pid), before, strict=True))

    waiting.until(lambda: written() >= 30, "30 pages are written")
    time.sleep(0.1)
    assert written() <= 30 + 1  # and a page of the program's own data


def test_moves_begun_together(start: Callable[..., Board]) -> None:
    """All are asked for before one has ended. A busy machine may let one end first: not in each of thirty rounds."""
    board = start(8, 2)
    runs = [Run(board, "busy", 0, 300, tile=2 * i) for i in range(4)]
    for run in runs:
        run.said("ready")

    def together(mode: str) -> bool:
        to = {run.process: place(board, run.process)["tile"] ^ 1 for run in runs}
        before = time.monotonic_ns()
        costs = list(board.moves(to, mode))
        assert {cost["process"]: cost["to"] for cost in costs} == to
        asked = [cost["asked_ns"] for cost in costs]
        assert before <= min(asked)
        return max(asked) < min(cost["asked_ns"] + cost["prepare_ns"] + cost["all_ns"] for cost in costs)

    for mode in MODES:
        assert any(together(mode) for _ in range(30))
    other = place(board, runs[0].process)["tile"] ^ 1
    with pytest.raises(Refused, match="no process 30"):
        list(board.moves({runs[0].process: other, 30: 7}, "direct"))
    waiting.until(lambda: place(board, runs[0].process)["tile"] == other, "the move before it continues")
    with pytest.raises(Refused, match="a mode .* and processes with a tile each"):
        list(board.moves({}, "direct"))


@pytest.mark.parametrize(("fault", "at_most"), [("", False), ("clock:other", True)])
def test_times_between_hosts_are_of_one_clock_or_bounds(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, fault: str, at_most: bool
) -> None:
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(1, 3, hosts=3)
    run = Run(board, "busy", 1, 40)
    run.said("ready")
    for to in (1, 2, 0):  # from the leader, between two others, and to it
        cost = board.move(run.process, to, "direct")
        assert cost["at_most"] == at_most
        assert 0 < cost["freeze_ns"] < cost["freeze_ns"] + cost["copy_ns"] + cost["commit_ns"] <= cost["first_ns"]
    assert board.ps()["processes"][0]["moves"] == 3
