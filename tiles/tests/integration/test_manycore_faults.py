"""Tiles, sources and name servers that die in each step of a move, and programs that break the rules."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tile_runs import FAR_MODES, Run, build, place, start

import waiting
from wherry.base.errors import Failed, WherryError
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import MODES

__all__ = ["build", "start"]  # fixtures

WAYS = [*((mode, 0) for mode in MODES), ("faithful", 3), ("precopy", 3)]
"""Modes, on one host, and with a host for each tile."""
ANY = {
    "destination:reserved": True,
    "destination:copied": True,
    "destination:committed": False,
    "source:reserved": False,
    "source:frozen": None,  # the destination may already have all that it needs
}
"""Fault -> whether the process survives."""
SOME = {
    "faithful": {"source:piece": False, "destination:piece": True},
    "direct": {"destination:pages": True},
    "precopy": {"destination:round": True, "destination:pages": True},
}
"""Those of steps that one mode has."""


ONCE = {(*WAYS[number % len(WAYS)], fault) for number, fault in enumerate(ANY)}
ONCE |= {(mode, 0, fault) for mode, faults in SOME.items() for fault in faults}
"""Each fault once, in one way after the other."""


@pytest.mark.parametrize(
    ("mode", "hosts", "fault", "survives"),
    [
        pytest.param(mode, hosts, *fault, marks=[] if (mode, hosts, fault[0]) in ONCE else pytest.mark.thorough)
        for mode, hosts in WAYS
        for fault in (ANY | (SOME.get(mode, {}) if not hosts else {})).items()
    ],
)
def test_a_side_dies(
    start: Callable[..., Board],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    hosts: int,
    fault: str,
    survives: bool | None,
) -> None:
    """Exactly one owner or a reported loss; on one host, and with a host for each tile."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(1 if hosts else 3, 3, hosts)
    # It has to run until the fault, however slow the machine; if it survives, the test waits for its end.
    run = Run(board, "count", 100, 40000000 if survives is False else 5000000, tile=0)
    run.said("1\n")
    try:
        board.move(run.process, 1, mode)
    except Failed as error:
        assert error.why
    end = run.ended()
    if survives is None:
        survives = end["event"] == "ended"
    if survives:
        assert end["event"] == "ended" and run.text.splitlines()[:-1] == [str(n) for n in range(1, 101)]
    else:
        assert end["event"] == "lost" and "died by signal 9" in end["why"]
        assert run.text.splitlines() == [str(n + 1) for n in range(len(run.text.splitlines()))]
    alive = [tile["alive"] for tile in board.ps()["tiles"]]
    assert alive == [not fault.startswith("source"), fault.startswith("source") or hosts > 0, True]


def test_the_name_server_dies(start: Callable[..., Board]) -> None:
    """While a process moves: its tiles end with it, whatever they were doing, and waiting clients get an error."""
    board = start()
    run = Run(board, "busy", 1, 40)
    run.said("ready")
    pids = [tile["pid"] for tile in board.ps()["tiles"]]
    server = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    killer = threading.Timer(0.2, os.kill, (server, signal.SIGKILL))
    killer.start()
    with pytest.raises(WherryError):
        while True:
            board.move(run.process, (place(board, run.process)["tile"] + 1) % 3, "precopy")
    run.join(waiting.bound())
    assert not run.is_alive() and not run.end
    gone = lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids)  # noqa: E731 - a zombie has none
    waiting.until(gone, "the end of the tiles")
    board.path.unlink()


def test_a_source_dies_between_rounds(start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages that the destination has of the process by then are worthless, and it is free for another."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", "source:scanned")
    board = start()
    run = Run(board, "count", 4000, 2000000, tile=0)
    run.said("1\n")
    with pytest.raises(Failed):
        board.move(run.process, 1, "precopy")
    assert run.ended()["event"] == "lost"
    assert [tile["alive"] for tile in board.ps()["tiles"]] == [False, True, True]
    assert Run(board, "count", 3, tile=1).ended()["status"] == 0


@pytest.mark.parametrize(("mode", "hosts"), [*((mode, 0) for mode in FAR_MODES), ("precopy", 3)])
def test_a_spoiled_user_area_is_refused(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, mode: str, hosts: int
) -> None:
    monkeypatch.setenv("WHERRY_TILE_FAULT", "destination:flip")
    board = start(1 if hosts else 3, 3, hosts)
    run = Run(board, "count", 100, 2000000, tile=0)
    run.said("1\n")
    for to in (1, 2):
        with pytest.raises(Failed) as refusal:
            board.move(run.process, to, mode)
        assert refusal.value.why == "the checksum is wrong"
    assert run.ended()["status"] == 0
    assert run.text.splitlines()[:-1] == [str(n) for n in range(1, 101)]
    assert place(board, run.process)["tile"] == 0 and run.end["moves"] == 0


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("s", "made a system call"),
        ("n", "used memory that it does not have"),
        ("t", "used memory that it does not have"),
        ("o", "used memory that it does not have"),
        ("d", "divided by zero"),
        ("g", "called the kernel without kernel_call()"),
    ],
)
def test_a_wild_program_is_ended(start: Callable[..., Board], what: str, why: str) -> None:
    board = start(1, 2)
    run = Run(board, "wild", what)
    assert run.ended()["status"] == 128 and why in run.end["why"] and run.text == ""
    assert Run(board, "count", 3).ended()["status"] == 0  # the tile is as before
    assert Run(board, "wild", "p").ended()["status"] == 3
