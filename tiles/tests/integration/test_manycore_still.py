"""Stopped peers hold up nobody: clients that do not read, tiles and boards that are stopped, late balancers.

Real tiles, as in test_manycore.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from tile_runs import Run, Scenario, at_once, build, count_sum, failure, program, start

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry_tiles.manycore import balancer
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import TilesSpec

__all__ = ["at_once", "build", "start"]  # fixtures

pytestmark = pytest.mark.usefixtures("at_once")


def test_a_client_that_does_not_read_holds_up_nobody(start: Callable[..., Board]) -> None:
    """All events wait for it, and others are served meanwhile."""
    board = start(1, 2)
    with board.connect() as idle:
        idle.sendall(b"\t".join([b"run", b"any", bytes(program("count")), b"3000", b"1"]) + b"\n")
        waiting.until(lambda: [p["state"] for p in board.ps()["processes"]] == ["ended"], "it has written all")
        events = [json.loads(line) for line in idle.makefile("r")]
    assert events[-1]["event"] == "ended" and events[-1]["status"] == 0
    text = "".join(event["text"] for event in events if event["event"] == "output")
    assert text.splitlines()[:-1] == [str(n) for n in range(1, 3001)]


def test_clients_without_end(start: Callable[..., Board], build: Path) -> None:
    """One client too many gets an error; a second start does not take that for absent tiles and a free socket."""
    board = start(1, 2)
    assert board.path.stat().st_mode & 0o777 == 0o600
    many = [board.connect() for _ in range(32)]
    with pytest.raises(Refused, match="32 clients are connected") as refusal:
        board.ps()
    assert refusal.value.code == Code.NO_CAPACITY
    with pytest.raises(Refused, match="up already"):
        board.up(TilesSpec())
    second = [str(build / "bin" / "wherry-tiles"), "--socket", str(board.path), "--tiles", "1", "--cores", "2"]
    said = subprocess.run(second, capture_output=True, text=True, timeout=waiting.bound()).stdout
    assert "tiles are up there already" in json.loads(said)["why"]
    for connection in many:
        connection.close()
    waiting.until(lambda: failure(board.ps) is None, "there is a place again")


def test_a_balancer_begins_anew_with_other_tiles(start: Callable[..., Board]) -> None:
    """Figures of the tiles before are not used for the new ones at the same socket."""
    board = start(1, 2)
    watched = balancer.Balancer(board)
    board.down()
    with pytest.raises(Refused, match="no tiles are up"):
        watched.look()
    start(2, 2)
    assert watched.look() is None
    assert watched.look() is None  # of two tiles: the figures of one and of two would not fit


def stands_still(board: Board, why: str) -> None:
    run = Run(board, "count", 200, 2000000, tile=0)
    run.said("1\n")
    with pytest.raises(Failed, match=why):
        board.move(run.process, 1, "direct")
    with pytest.raises(Refused, match="tile 1 has a process, expects one, or is dead"):
        board.start(program("count"), ["3"], 1)
    os.kill(board.ps()["tiles"][1]["pid"], signal.SIGCONT)
    waiting.until(lambda: failure(board.start, program("receive"), [], 1) is None, "the tile is free again")
    assert run.ended()["status"] == 0 and run.end["moves"] == 0
    assert run.text.splitlines()[-1] == f"sum {count_sum(200 * 2000000):x}"


SCENARIOS = {
    step: Scenario(lambda board, why=why: stands_still(board, why), 3, 3, fault=f"stop:destination:{step}")  # type: ignore[misc]
    for step, why in (("reserved", "tile 0 or tile 1 does not run"), ("copied", "did not answer"))
}


@pytest.mark.parametrize("step", SCENARIOS)
def test_a_destination_that_stands_still(at_once: dict[str, Future[None]], step: str) -> None:
    """The source keeps its process or takes it back; tile and slot are nobody's until the destination has noticed."""
    at_once[step].result()


def test_a_program_that_is_no_file_holds_up_nobody(start: Callable[..., Board], tmp_path: Path) -> None:
    """Whatever the path named when the service looked; opening a named pipe would wait for a writer."""
    board = start()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="pipe"):
        board.start(tmp_path / "pipe", [], 0)
    assert Run(board, "count", 3, tile=0).ended()["status"] == 0
