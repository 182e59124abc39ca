"""The manycore runtime for real: tiles as processes, programs on them, moves between them, tiles that are killed.

Invariant of every test: no tile has anything in /dev/shm, at the end no process is left, and no tile had anything to
say (a sanitizer would).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sanitized import sanitized
from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.base.paths import native_program
from wherry.manycore import launch as launch_module
from wherry.manycore.balancer import LOOK, Balancer
from wherry.manycore.board import Board
from wherry.manycore.launch import Place
from wherry.model.tiles import MODES, TilesSpec

NATIVE = Path(__file__).resolve().parents[2] / "native"
C_TESTS = ("user_area", "program_loader", "task_graph", "move_protocol", "dirty_tracking", "process_state")
C_TESTS += ("board_frames", "host_moves")
MANY = int(os.environ.get("WHERRY_TILE_MOVES", "150"))  # 10000 takes half a minute on a quiet machine
WAIT = 60.0  # seconds for what takes milliseconds, on a loaded machine


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def build(request: pytest.FixtureRequest) -> Path:
    """A directory with bin/ and tests/."""
    if request.param == "as built":
        return native_program("wherry-tiles").parents[1]
    return sanitized("wherry-tile", "wherry-tiles", *(f"test_manycore_{name}" for name in C_TESTS))


def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture
def start(build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Board]]:
    """Starts tiles; `start(tiles, cores)`. They are taken down, and what they left is looked for."""
    board = Board(tmp_path / "tiles.sock")
    monkeypatch.setattr(launch_module, "native_program", lambda name: build / "bin" / name)

    def up(tiles: int = 3, cores: int = 3, hosts: int = 0) -> Board:
        board.up(TilesSpec(tiles=tiles, cores=cores), places=[Place("", "127.0.0.1")] * hosts)
        return board

    yield up
    if not board.path.exists():
        return
    pids = [tile["pid"] for tile in board.ps()["tiles"] if tile["pid"]]
    said = "".join(log.read_text() for log in tmp_path.glob("tiles*.log"))
    mapped = [line for pid in pids for line in maps(pid) if "/dev/shm" in line]  # others use that directory too
    board.down()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    until(lambda: not list(tmp_path.glob("tiles*.sock")), "the boards end")
    assert said == "" and mapped == []


def maps(pid: int) -> list[str]:
    """What a process has mapped; nothing when it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text().splitlines()
    return []


def program(name: str) -> Path:
    return native_program("wherry-tiles").parents[1] / "lib" / "tile" / name


class Run(threading.Thread):
    """A program that runs, and what it has said."""

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
        """Waits until it has said that."""
        deadline = time.monotonic() + WAIT
        while text not in self.text:
            assert time.monotonic() < deadline, f"{self.name_} never said {text!r}: {self.text!r}"
            assert not self.end, self.end
            time.sleep(0.01)

    def ended(self) -> dict[str, Any]:
        self.join(WAIT)
        assert self.end, f"{self.name_} does not end; it said {self.text[-200:]!r}"
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


def test_the_c_unit_tests(build: Path) -> None:
    for name in C_TESTS:
        subprocess.run([str(build / "tests" / f"test_manycore_{name}")], check=True, timeout=120)


def test_a_program_runs_to_its_end(start: Callable[..., Board]) -> None:
    board = start()
    events = list(board.run(program("count"), ["50"]))
    text = "".join(event["text"] for event in events if event["event"] == "output")
    assert text.splitlines() == [*map(str, range(1, 51)), "sum 1"]
    assert events[-1]["event"] == "ended" and events[-1]["status"] == 0
    assert list(board.attach(events[0]["process"]))[-1]["event"] == "ended"  # also told afterwards


def test_threads(start: Callable[..., Board]) -> None:
    """Eighteen threads on two cores, so most of them must be preempted; mutex, condition, barrier, join, limits."""
    run = Run(start(1, 3), "threads", 30)
    assert run.ended()["status"] == 0 and run.text == "ok 510\n"


@pytest.mark.parametrize("mode", MODES)
def test_threads_while_moving(start: Callable[..., Board], mode: str) -> None:
    board = start()
    run = Run(board, "threads", 600)
    moves = move_around(board, run, mode, 40)
    assert run.ended()["status"] == 0 and run.text == "ok 10200\n"
    assert run.end["moves"] == moves


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_freezes_the_others(start: Callable[..., Board], mode: str) -> None:
    """Two that do so in turns, four that would count, three cores; also through moves."""
    board = start(3, 4)
    run = Run(board, "freeze", 60)
    assert move_around(board, run, mode, 20) > 0
    assert run.ended()["status"] == 0 and run.text == "ok 60\n"


@pytest.mark.parametrize("mode", MODES)
def test_every_register_survives(start: Callable[..., Board], mode: str) -> None:
    """General, SSE to AVX-512, masks, x87 and the control words and flags, of four threads that take turns."""
    board = start()
    run = Run(board, "patterns", 600)
    assert move_around(board, run, mode, 20) > 0
    assert run.ended()["status"] == 0 and run.text == "ok 600\n"


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_every_register_survives_a_move_after_every_instruction(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """One thread with the trap flag set, which a tile that is told so takes for the wish to move on."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", f"step:{mode}")
    run = Run(start(3, 2), "patterns", 1, "step")
    assert run.ended()["status"] == 0 and run.text == "ok 1\n"
    assert run.end["moves"] > 100  # as many as instructions, about


def test_many_moves_change_nothing(start: Callable[..., Board]) -> None:
    """A sum over pseudo-random numbers that moves in every mode, with other threads busy on the same CPUs."""
    board, left, steps, pause = start(4, 3), MANY, 40, 4_000_000
    load = Run(board, "busy", 2, 8, tile=3)
    load.said("ready")
    while left > 0:
        runs = list[Run]()  # a tile is free when it has seen that the process ended while it was to come
        until(lambda: failure(lambda: runs.append(Run(board, "count", steps, pause, tile=0))) is None, "tile 0 is free")  # noqa: B023
        (run,) = runs
        with suppress(Refused, Failed):  # it has ended
            while left > 0:
                to = (place(board, run.process)["tile"] + 1) % 3
                board.move(run.process, to, MODES[left % len(MODES)])
                left -= 1
        assert run.ended()["status"] == 0, run.end
        assert run.text.splitlines() == [*map(str, range(1, steps + 1)), f"sum {count_sum(steps * pause):x}"]


def count_sum(rounds: int) -> int:
    """What `count` computes in so many rounds."""
    factor, term, sum_ = 6364136223846793005, 1442695040888963407, 1
    while rounds:
        if rounds & 1:
            sum_ = (sum_ * factor + term) % 2**64
        factor, term, rounds = factor * factor % 2**64, (term * factor + term) % 2**64, rounds >> 1
    return sum_


def test_a_move_tells_what_it_cost(start: Callable[..., Board]) -> None:
    board = start()
    run = Run(board, "busy", 2, 32)
    run.said("ready")
    for mode, least in (("direct", 32 * 4096), ("faithful", 32 * 4096), ("handoff", 0), ("precopy", 4096)):
        cost = board.move(run.process, (place(board, run.process)["tile"] + 1) % 3, mode)
        assert cost["bytes"] >= least and (mode != "handoff" or cost["bytes"] == 0)
        assert (cost["before"] >= 32 * 4096) == (cost["rounds"] > 0) == (mode == "precopy")
        assert 0 < cost["freeze_ns"] <= cost["first_ns"] <= cost["all_ns"]
        assert cost["first_ns"] >= cost["freeze_ns"] + cost["copy_ns"] + cost["commit_ns"]


@pytest.mark.parametrize("way", ("mprotect", "none"))
def test_written_pages_are_found_without_userfaultfd(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The ways that are used where the machine lacks the best; which it was is told."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", f"tracking:{way}")
    board = start()
    run = Run(board, "patterns", 200)
    cost = board.move(run.process, (place(board, run.process)["tile"] + 1) % 3, "precopy")
    assert cost["tracking"] == way and (cost["rounds"] == 0) == (way == "none")
    move_around(board, run, "precopy", 20)
    assert run.ended()["status"] == 0 and run.text == "ok 200\n"


def test_a_process_that_only_waits_moves_and_hears(start: Callable[..., Board]) -> None:
    """Its one thread is parked in a restartable call; the message comes after three moves."""
    board = start()
    run = Run(board, "receive")
    for mode in MODES:
        time.sleep(0.05)
        board.move(run.process, (place(board, run.process)["tile"] + 1) % 3, mode)
    sender = Run(board, "send", run.process, 3, "hello", "quit")
    assert sender.ended()["status"] == 0
    assert run.ended()["status"] == 0
    assert run.text == f"5 from {sender.process}: hello\n4 from {sender.process}: quit\n"


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_messages_come_once_and_in_order(start: Callable[..., Board], mode: int) -> None:
    """A ring of three processes on five tiles that pass numbered messages on and move themselves all the time."""
    board = start(5, 2)
    ring = [Run(board, "token_ring", i % 3, i % 3 + 1, 600, 7 + i, 5, mode) for i in (1, 2, 3)]
    for run in ring:
        assert run.ended()["status"] == 0, (run.end, run.text)
        assert run.text.startswith("ok 600 messages, ")
    assert sum(run.end["moves"] for run in ring) > 10


def ranks(board: Board, count: int, name: str, *words: object) -> tuple[str, list[Any]]:
    """Runs a program as several ranks. Returns what they said and their ends."""
    text, ends = "", []
    for event in board.ranks(program(name), [str(word) for word in words], count):
        if event["event"] == "output":
            text += event["text"]
        elif event["event"] != "started":
            ends.append(event)
    return text, ends


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_what_goes_on_beside_the_program_moves_with_it(start: Callable[..., Board], mode: int) -> None:
    """Portals, mailboxes and signals of three ranks that move themselves with all of it under way."""
    text, ends = ranks(start(5, 3), 3, "ring", 24, 50000, 2, 5, mode)
    assert [(end["event"], end["status"]) for end in ends] == [("ended", 0)] * 3, (text, ends)
    assert text.count("ok 24 rounds") == 3
    assert sum(end["moves"] for end in ends) > 10


MPI_EXAMPLES = {
    "pingpong": (["20"], "65536 bytes: 20 rounds, 0 wrong"),
    "ep": (["18"], "0 96200"),
    "cg": (["60", "60"], "cg 60 x 60, 60 steps"),
    "queens": (["10"], "10 queens: 724"),
    "stencil": (["60", "400"], "stencil 60 x 60, 400 steps"),
    "check": (["6"], "ok, 6 rounds"),
}


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
    mover.join(WAIT)
    return text, ends


@pytest.mark.parametrize("name", MPI_EXAMPLES)
def test_mpi_says_the_same_everywhere(
    start: Callable[..., Board], name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same source under the machine's MPI, on tiles, and on tiles while every rank moves all the time."""
    words, says = MPI_EXAMPLES[name]
    board = start(5, 3)
    still, ends = ranks(board, 3, f"mpi-{name}", *words)
    assert [(end["status"], end["why"]) for end in ends] == [(0, "")] * 3, (still, ends)
    assert says in still
    moving, ends = run_ranks_that_move(board, name, words, 3)
    assert [(end["status"], end["why"]) for end in ends] == [(0, "")] * 3, (moving, ends)
    assert moving == still
    if "sanitized" in request.node.name:
        return  # the native program is the same as in the other build
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        pytest.skip("no mpicc or no mpirun: apt-get install openmpi-bin libopenmpi-dev")
    source = NATIVE / "manycore" / "mpi" / "examples" / f"{name}.c"
    built = str(tmp_path / name)
    subprocess.run(["mpicc", "-std=c11", "-O2", "-Wall", "-Werror", "-o", built, str(source), "-lm"], check=True)
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60).stdout
    extra = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []
    launch = ["mpirun", *extra, "-n", "3", built, *words]
    native = subprocess.run(launch, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert native.returncode == 0, native.stderr
    assert native.stdout == still


FAR_MODES = tuple(mode for mode in MODES if mode != "handoff")  # between hosts no memory is shared


@pytest.mark.parametrize("fault", ("", "channel:cut"))
def test_tiles_of_two_hosts(start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Messages, bulk, signals and moves over TCP in every mode, also when the connection breaks every few frames."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(3, 3, hosts=2)
    assert [tile["host"] for tile in board.ps()["tiles"]] == [0, 0, 0, 1, 1, 1]
    for mode in FAR_MODES:
        text, ends = ranks(board, 5, "ring", 10, 30000, 3, 6, MODES.index(mode))
        assert [(end["event"], end["status"]) for end in ends] == [("ended", 0)] * 5, (text, ends)
        assert text.count("ok 10 rounds") == 5
    still, _ = ranks(board, 4, "mpi-check", 3)
    moving, ends = run_ranks_that_move(board, "check", ["3"], 4, FAR_MODES)
    assert [(end["status"], end["why"]) for end in ends] == [(0, "")] * 4, (moving, ends)
    assert still == moving == "ok, 3 rounds\n"
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
    until(lambda: [p["tile"] for p in board.ps()["processes"] if p["program"] == "ring"] == [0, 2], "both run")
    assert Run(board, "send", guard.process, 3, "quit", tile=3).ended()["status"] == 0
    assert guard.ended()["status"] == 0
    watched = Balancer(board)

    def together() -> bool:
        if move := watched.look():
            board.move(move.process, move.tile)
            watched.moved(move.process)
        time.sleep(LOOK / 2)
        return {p["tile"] // 2 for p in board.ps()["processes"] if p["program"] == "ring"} in ({0}, {1})

    until(together, "together")


def test_a_host_dies(start: Callable[..., Board], tmp_path: Path) -> None:
    """Its processes are reported lost; those of the other go on, and one that was on its way there stays."""
    board = start(2, 3, hosts=2)
    there = Run(board, "busy", tile=2)
    there.said("ready")
    here = Run(board, "receive", tile=0)
    follower = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if str(tmp_path / "tiles.1.sock") in words_of(p))
    os.kill(follower, signal.SIGSTOP)
    moved: list[Exception | None] = []
    mover = threading.Thread(target=lambda: moved.append(failure(board.move, here.process, 3)))
    mover.start()
    time.sleep(0.3)
    os.kill(follower, signal.SIGKILL)
    mover.join(WAIT)
    assert moved and "host is gone" in str(getattr(moved[0], "why", ""))
    assert there.ended()["event"] == "lost" and "host 1 has not answered" in there.end["why"]
    assert Run(board, "send", here.process, 3, "quit", tile=1).ended()["status"] == 0
    assert here.ended()["status"] == 0
    assert [tile["alive"] for tile in board.ps()["tiles"]] == [True, True, False, False]
    (tmp_path / "tiles.1.sock").unlink()


@pytest.mark.parametrize(("fault", "mode"), [("host:state", "direct"), ("host:come", "precopy")])
def test_a_host_dies_with_a_frozen_process(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, mode: str
) -> None:
    """The destination's, with the whole process, or when it already runs there and nobody knows: it goes on here."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(1, 3, hosts=2)
    run = Run(board, "count", 60, 2000000, tile=0)
    run.said("1\n")
    with pytest.raises(Failed) as failure:
        board.move(run.process, 1, mode)
    assert failure.value.why == "the destination's host is gone"
    assert run.ended()["status"] == 0 and run.end["moves"] == 0
    assert run.text.splitlines()[:-1] == [str(n) for n in range(1, 61)]
    assert run.text.splitlines()[-1] == f"sum {count_sum(60 * 2000000):x}"
    (tmp_path / "tiles.1.sock").unlink()


@pytest.mark.parametrize("fault", ("host:give", "host:given"))
def test_a_host_dies_with_a_process_that_leaves_it(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    """It runs at its new host when all of it was on the way, or is reported lost; the tile it was to have is free."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(1, 3, hosts=3)
    run = Run(board, "count", 60, 2000000, tile=1)
    run.said("1\n")
    failed = failure(board.move, run.process, 2, "direct")
    end, lines = run.ended(), run.text.splitlines()
    if end["event"] == "ended":
        assert fault == "host:given" and (end["status"], end["moves"]) == (0, 1)
        assert lines == [*(str(n) for n in range(1, 61)), f"sum {count_sum(60 * 2000000):x}"]
        assert failed is None or "it runs at the new one" in str(failed)
    else:
        assert end["event"] == "lost" and "host 1 has not answered" in end["why"]
        assert failed and lines == [str(n) for n in range(1, len(lines) + 1)]
    assert Run(board, "count", 3, tile=2).ended()["status"] == 0
    (tmp_path / "tiles.1.sock").unlink()


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


def test_a_host_without_its_leader_ends(start: Callable[..., Board], tmp_path: Path) -> None:
    board = start(1, 2, hosts=2)
    leader = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if f"{tmp_path / 'tiles.sock'}" in words_of(p))
    os.kill(leader, signal.SIGKILL)
    until(lambda: not (tmp_path / "tiles.1.sock").exists(), "the follower ends")
    assert "host 0, the name server, has ended" in (tmp_path / "tiles.1.log").read_text()
    board.path.unlink()
    with pytest.raises(Refused) as refusal:
        board.ps()
    assert "the processes here end with it" in refusal.value.why


def test_ranks_end_together(start: Callable[..., Board]) -> None:
    """The third rank faults; the others wait for ever for it, and are ended."""
    board = start(3, 2)
    _, ends = ranks(board, 3, "wild", "r")
    assert [end["status"] for end in ends] == [128] * 3
    assert sorted(end["why"].split(":")[0] for end in ends)[0] == "rank 2"
    assert any(end["why"].startswith("thread 1 divided by zero") for end in ends)
    with pytest.raises(Refused, match="4 ranks need 4 free tiles; there are 3"):
        list(board.ranks(program("count"), [], 4))


def test_a_number_is_given_again_when_all_others_were(start: Callable[..., Board]) -> None:
    """What somebody still sends to the process that had it reaches nobody else for as long as can be."""
    board = start(1, 2)
    events = (list(board.run(program("count"), ["1"], 0)) for _ in range(40))
    assert [began["process"] for began, *_ in events] == [*range(1, 32), *range(1, 10)]


def test_names(start: Callable[..., Board]) -> None:
    """Linked, found, waited for, unlinked; they stay with a process that moves and go with one that ends."""
    board = start(4, 2)
    asker = Run(board, "names", "ask", "echo")  # waits: there is no such name
    server = Run(board, "names", "serve", "echo", 2)
    found = f"echo is process {server.process} port 6: 42\n"
    assert asker.ended()["status"] == 0 and asker.text == found
    assert board.wait_for("echo") == server.process
    board.move(server.process, 3)
    again = Run(board, "names", "ask", "echo")
    assert again.ended()["status"] == 0 and again.text == found
    assert server.ended()["status"] == 0
    with pytest.raises(Refused, match="no process has linked"):
        board.wait_for("echo", seconds=0.2)


def test_boot_rings(start: Callable[..., Board]) -> None:
    """A ring is started when all servers of the one before have linked their names."""
    board = start(4, 2)
    server = {"program": program("names"), "words": ["serve", "one", "1"], "name": "one"}
    late = {"program": program("names"), "words": ["ask", "one"], "name": "two"}
    booted = board.boot(TilesSpec.model_validate({"rings": [[{**server, "tile": 2}]]}))
    assert [place(board, process)["tile"] for process in booted.values()] == [2]
    with pytest.raises(Failed, match="server 'two' has not linked its name") as failure:
        board.boot(TilesSpec.model_validate({"rings": [[late]]}), seconds=0.5)
    assert "has ended" in failure.value.why


def test_a_sender_to_a_full_port_waits_and_one_to_nobody_is_told(start: Callable[..., Board]) -> None:
    board = start()
    receiver = Run(board, "busy")
    receiver.said("ready")
    sender = Run(board, "send", receiver.process, 3, *["x"] * 13, tile=1)
    assert sender.ended()["status"] == 0
    waiting = Run(board, "send", receiver.process, 3, *["x"] * 13, tile=1)  # the port holds 16
    time.sleep(0.2)
    assert not waiting.end
    board.move(waiting.process, 2)
    os.kill(board.ps()["tiles"][0]["pid"], signal.SIGKILL)
    assert receiver.ended()["event"] == "lost"
    assert waiting.ended()["status"] == 3  # ESRCH


WAYS = [*((mode, 0) for mode in MODES), ("faithful", 3), ("precopy", 3)]
"""Modes, on one host, and with a host for each tile."""
ANY = {
    "destination:reserved": True,
    "destination:copied": True,
    "destination:committed": False,
    "source:reserved": False,
    "source:frozen": None,  # the destination may already have what it needs
}
"""Fault -> whether the process survives."""
SOME = {
    "faithful": {"source:piece": False, "destination:piece": True},
    "direct": {"destination:pages": True},
    "precopy": {"destination:round": True, "destination:pages": True},
}
"""Those of steps that one mode has."""


@pytest.mark.parametrize(
    ("mode", "hosts", "fault", "survives"),
    [
        (mode, hosts, *fault)
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
    """One owner or a reported loss, never two and never none; on one host, and with a host for each tile."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", fault)
    board = start(1 if hosts else 3, 3, hosts)
    # One that dies with its tile has to run until then, however slow the machine; one that survives is waited for.
    run = Run(board, "count", 100, 40000000 if survives is False else 2000000, tile=0)
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
    """While a process moves: its tiles end with it, whatever they were doing, and who waits is told."""
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
    run.join(WAIT)
    assert not run.is_alive() and not run.end
    deadline = time.monotonic() + WAIT
    while any(Path(f"/proc/{pid}/root").exists() for pid in pids):  # a zombie has none
        assert time.monotonic() < deadline
        time.sleep(0.01)
    board.path.unlink()


def test_a_source_dies_between_rounds(start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the destination has of the process by then is worth nothing, and it is free for another."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", "source:scanned")
    board = start()
    run = Run(board, "count", 40, 2000000, tile=0)
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


def test_refusals(start: Callable[..., Board], tmp_path: Path) -> None:
    board = start(2, 2)
    run = Run(board, "busy", tile=0)
    run.said("ready")

    def refused(code: Code, why: str, act: Callable[..., Any], *words: Any) -> None:
        with pytest.raises(Refused, match=why) as refusal:
            act(*words)
        assert refusal.value.code == code

    refused(Code.WRONG_STATE, "up already", board.up, TilesSpec())
    refused(Code.NOT_FOUND, "no process 9", board.move, 9, 1)
    refused(Code.NOT_FOUND, "no tile 7", board.move, run.process, 7)
    refused(Code.WRONG_STATE, "is on tile 0", board.move, run.process, 0)
    refused(Code.USAGE, "a mode", board.move, run.process, 1, "teleport")
    refused(Code.NO_CAPACITY, "tile 0 has a process", board.start, program("count"), [], 0)
    refused(Code.NOT_FOUND, "no tile 2", board.start, program("count"), [], 2)
    refused(Code.USAGE, "too many arguments", board.start, program("count"), ["x"] * 16)
    refused(Code.INVALID_FILE, "fixed address", board.start, Path("/bin/true"), [])
    (tmp_path / "text").write_text("#!/bin/sh\n")
    refused(Code.INVALID_FILE, "not an ELF file", board.start, tmp_path / "text", [])
    other = bytearray(program("count").read_bytes())
    other[0x1008] += 1  # the version in the image head
    (tmp_path / "other").write_bytes(other)
    refused(Code.INVALID_FILE, "another version of the kernel", board.start, tmp_path / "other", [])
    full = Run(board, "count", 3, tile=1)
    assert full.ended()["status"] == 0


def test_the_graph_of_a_move() -> None:
    """The paper's 13 tasks and 19 edges; only the one from the last group to the end leads through who owns it now."""
    done = subprocess.run([native_program("wherry-tile"), "--dot"], check=True, capture_output=True, text=True)
    labels = dict(re.findall(r'^ +t(\d+) \[label="([^"\\]*)', done.stdout, re.MULTILINE))
    edges = {(labels[a], labels[b]) for a, b in re.findall(r"t(\d+) -> t(\d+)", done.stdout)}
    figure = {label for label in labels.values() if label[0].isdigit()}
    assert sorted(int(label.split()[0]) for label in figure) == list(range(1, 14))
    number = {label: int(label.split()[0]) for label in figure}
    between = {(number[a], number[b]) for a, b in edges if a in figure and b in figure}
    paper = {(1, 2), (2, 3), (3, 4), (3, 13), (4, 5), (5, 6), (5, 9), (5, 4), (6, 7), (6, 5), (7, 8), (8, 5), (9, 10)}
    paper |= {(9, 5), (10, 11), (11, 12), (12, 5), (13, 1)}
    assert between == paper | {(2, 13)}  # a move that is called off before anything was frozen
    last = "4 state handler"
    assert {(last, "commit"), ("commit", "adopt"), ("adopt", "13 finish")} <= edges
    assert {(last, "await"), ("await", "take back"), ("take back", "13 finish")} <= edges


BAD_PROGRAMS = {
    "thread-local": "_Thread_local int x; int main(void) { return x++; }",
    "instruction": 'int main(void) { __asm__("syscall"); return 0; }',
    "what is not there": "int puts(const char *); int main(void) { return puts(0); }",
    "too large": "char much[1600000]; int main(void) { return much[getpid_()]; }",
}


@pytest.mark.parametrize("why", BAD_PROGRAMS)
def test_the_build_refuses(tmp_path: Path, why: str) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int getpid_(void) { return 5; }\n" + BAD_PROGRAMS[why])
    tilecc = [str(NATIVE / "manycore" / "tilecc"), "-o", str(tmp_path / "bad"), str(source)]
    built = subprocess.run(tilecc, capture_output=True, text=True, timeout=60, env={**os.environ, "CFLAGS": "-w -O1"})
    assert built.returncode != 0
    assert why in built.stderr or (why == "what is not there" and "undefined reference" in built.stderr)


def test_no_tiles(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no tiles are up"):
        Board(tmp_path / "none.sock").ps()
