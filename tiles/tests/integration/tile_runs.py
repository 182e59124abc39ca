"""Shared by tests of tiles: builds, boards that are taken down, programs that run and are moved.

Invariant of every test: no tile has anything in /dev/shm, at the end no process is left, and no tile had anything to
say (a sanitizer would).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import waiting
from sanitized import sanitized
from wherry.base.errors import Failed, LostContact, Refused
from wherry.base.paths import native_program
from wherry_tiles.manycore import launch as launch_module
from wherry_tiles.manycore.board import Board
from wherry_tiles.manycore.launch import Place
from wherry_tiles.spec import MODES, TilesSpec

NATIVE = Path(__file__).resolve().parents[2] / "native"
C_TESTS = ("user_area", "program_loader", "task_graph", "move_protocol", "dirty_tracking", "process_state")
C_TESTS += ("board_frames", "host_moves", "mesh")
MANY = int(os.environ.get("WHERRY_TILE_MOVES", "150"))  # 10000 takes half a minute on a quiet machine


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def build(request: pytest.FixtureRequest) -> Path:
    """A directory with bin/ and tests/."""
    if request.param == "as built":
        return native_program("wherry-tiles").parents[1]
    return sanitized("wherry-tile", "wherry-tiles", *(f"test_manycore_{name}" for name in C_TESTS))


@pytest.fixture
def start(build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Board]]:
    """Starts tiles; `start(tiles, cores)`. They are taken down, and leftovers are looked for."""
    board = Board(tmp_path / "tiles.sock")
    monkeypatch.setattr(launch_module, "native_program", lambda name: build / "bin" / name)

    def up(tiles: int = 3, cores: int = 3, hosts: int = 0, **mesh: str) -> Board:
        return take_up(board, tiles, cores, hosts, **mesh)

    yield up
    take_down(board)


def take_up(board: Board, tiles: int, cores: int, hosts: int = 0, **mesh: str) -> Board:
    spec = TilesSpec.model_validate({"tiles": tiles, "cores": cores, **mesh})
    board.up(spec, places=[Place("", "127.0.0.1")] * hosts)
    return board


def take_down(board: Board) -> None:
    """Unless it has ended."""
    if not board.path.exists():
        return
    directory = board.path.parent
    pids = [tile["pid"] for tile in board.ps()["tiles"] if tile["pid"]]
    said = "".join(log.read_text() for log in directory.glob("tiles*.log"))
    mapped = [line for pid in pids for line in maps(pid) if "/dev/shm" in line]  # others use that directory too
    board.down()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    waiting.until(lambda: not list(directory.glob("tiles*.sock")), "the boards end")
    assert said == "" and mapped == []


@dataclass
class Scenario:
    """An act on a board of so many tiles, cores and hosts that has a fault."""

    act: Callable[[Board], None]
    tiles: int
    cores: int
    hosts: int = 0
    fault: str = ""

    def run(self, board: Board) -> None:
        self.act(board)
        take_down(board)


@pytest.fixture(scope="module")
def at_once(
    request: pytest.FixtureRequest, build: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The SCENARIOS of a file, which wait long for hosts and tiles that do not answer, each with a board of its own.

    They run beside other tests of the file.
    """
    scenarios: dict[str, Scenario] = request.module.SCENARIOS
    with ThreadPoolExecutor(len(scenarios)) as pool:
        running = dict[str, Future[None]]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch_module, "native_program", lambda name: build / "bin" / name)
            for name, one in scenarios.items():
                patch.setenv("WHERRY_TILE_FAULT", one.fault)
                board = take_up(Board(tmp_path_factory.mktemp("at") / "tiles.sock"), one.tiles, one.cores, one.hosts)
                running[name] = pool.submit(one.run, board)
        yield running


def maps(pid: int) -> list[str]:
    """The mappings of a process; none when it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text().splitlines()
    return []


def program(name: str) -> Path:
    return native_program("wherry-tiles").parents[1] / "lib" / "tile" / name


class Run(threading.Thread):
    """A program that runs, and its output."""

    def __init__(self, board: Board, name: str, *words: object, tile: int | None = None) -> None:
        super().__init__(daemon=True)
        self.board, self.name_, self.words = board, name, [str(word) for word in words]
        self.text, self.end = "", {}  # type: str, dict[str, Any]
        self.process = board.start(program(name), self.words, tile)
        self.start()

    def run(self) -> None:
        with suppress(LostContact):  # the test is over
            for event in self.board.attach(self.process):
                if event["event"] == "output":
                    self.text += event["text"]
                else:
                    self.end = event

    def said(self, text: str) -> None:
        """Waits for this text in the output."""
        waiting.until(lambda: text in self.text or self.end, lambda: f"{text!r} of {self.name_}: {self.text!r}")
        assert text in self.text, self.end

    def ended(self) -> dict[str, Any]:
        self.join(waiting.bound())
        assert self.end, f"{self.name_} does not end; it wrote {self.text[-200:]!r}"
        return self.end


def place(board: Board, process: int) -> dict[str, Any]:
    return next(p for p in board.ps()["processes"] if p["process"] == process)


def move_around(board: Board, run: Run, mode: str, times: int) -> int:
    """Moves a process to the next free tile, so many times or until it ends. Returns how often."""
    tiles = len(board.ps()["tiles"])
    for done in range(times):
        try:
            board.move(run.process, (place(board, run.process)["tile"] + 1) % tiles, mode)
        except (Refused, Failed):
            assert place(board, run.process)["state"] == "ended", run.text
            return done
    return times


def count_sum(rounds: int) -> int:
    """The result of `count` after so many rounds."""
    factor, term, sum_ = 6364136223846793005, 1442695040888963407, 1
    while rounds:
        if rounds & 1:
            sum_ = (sum_ * factor + term) % 2**64
        factor, term, rounds = factor * factor % 2**64, (term * factor + term) % 2**64, rounds >> 1
    return sum_


def ranks(board: Board, count: int, name: str, *words: object) -> tuple[str, list[Any]]:
    """Runs a program as several ranks. Returns their output and their ends."""
    text, ends = "", []
    for event in board.ranks(program(name), [str(word) for word in words], count):
        if event["event"] == "output":
            text += event["text"]
        elif event["event"] != "started":
            ends.append(event)
    return text, ends


def run_ranks_that_move(
    board: Board, name: str, words: list[str], count: int, modes: Sequence[str] = MODES
) -> tuple[str, list[Any]]:
    """Runs an MPI program and moves its ranks, one after the other, in every mode, until it ends."""
    text, ends = "", []
    started: list[int] = []

    def move_all() -> None:
        for turn in range(1000):
            process, mode = started[turn % count], modes[turn % len(modes)]
            table = board.ps()["processes"]
            if all(p["state"] != "running" for p in table):
                return
            busy = {p["tile"] for p in table if p["state"] == "running"}
            with suppress(Refused, Failed):  # it has just ended
                free = sorted({tile["tile"] for tile in board.ps()["tiles"]} - busy)
                board.move(process, free[turn % len(free)], mode)

    mover = threading.Thread(target=move_all, daemon=True)
    for event in board.ranks(program(f"mpi-{name}"), words, count):
        if event["event"] == "started":
            started.append(event["process"])
            if len(started) == count:
                mover.start()
        elif event["event"] == "output":
            text += event["text"]
        else:
            ends.append(event)
    mover.join(waiting.bound())
    return text, ends


FAR_MODES = tuple(mode for mode in MODES if mode != "handoff")  # between hosts no memory is shared


def words_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def failure(act: Callable[..., Any], *words: Any) -> Exception | None:
    try:
        act(*words)
    except (Failed, LostContact, Refused) as error:
        return error
    return None
