"""The manycore runtime for real: tiles as processes, programs on them, moves between them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tile_runs import (
    C_TESTS,
    MANY,
    NATIVE,
    Run,
    build,
    count_sum,
    failure,
    move_around,
    place,
    program,
    ranks,
    run_ranks_that_move,
    start,
)

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import MODES, TilesSpec

__all__ = ["build", "start"]  # fixtures
ONE_MODE = [MODES[0], *(pytest.param(mode, marks=pytest.mark.thorough) for mode in MODES[1:])]


def test_the_c_unit_tests(build: Path) -> None:
    words = {} if build.name == "sanitized" else {"host_moves": ["8"]}  # fewer seeds than with sanitizers
    for name in C_TESTS:
        subprocess.run([str(build / "tests" / f"test_manycore_{name}"), *words.get(name, [])], check=True, timeout=120)


def test_a_program_runs_to_its_end(start: Callable[..., Board]) -> None:
    board = start()
    events = list(board.run(program("count"), ["50"]))
    text = "".join(event["text"] for event in events if event["event"] == "output")
    assert text.splitlines() == [*map(str, range(1, 51)), "sum 1"]
    assert events[-1]["event"] == "ended" and events[-1]["status"] == 0
    assert list(board.attach(events[0]["process"]))[-1]["event"] == "ended"  # also reported afterwards


def test_threads(start: Callable[..., Board]) -> None:
    """Eighteen threads on two cores, so most of them must be preempted; mutex, condition, barrier, join, limits."""
    run = Run(start(1, 3), "threads", 30)
    assert run.ended()["status"] == 0 and run.text == "ok 510\n"


@pytest.mark.parametrize("mode", ONE_MODE)
def test_threads_while_moving(start: Callable[..., Board], mode: str) -> None:
    board = start()
    run = Run(board, "threads", 600)
    moves = move_around(board, run, mode, 40)
    assert run.ended()["status"] == 0 and run.text == "ok 10200\n"
    assert run.end["moves"] == moves


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_thread_freezes_the_others(start: Callable[..., Board], mode: str) -> None:
    """Two that do so in turns, four that would count, three cores; also through moves."""
    board = start(3, 4)
    run = Run(board, "freeze", 60)
    assert move_around(board, run, mode, 20) > 0
    assert run.ended()["status"] == 0 and run.text == "ok 60\n"


@pytest.mark.parametrize("mode", ONE_MODE)
def test_every_register_survives(start: Callable[..., Board], mode: str) -> None:
    """General, SSE to AVX-512, masks, x87 and the control words and flags, of four threads that take turns."""
    board = start()
    run = Run(board, "patterns", 1200)
    assert move_around(board, run, mode, 20) > 0
    assert run.ended()["status"] == 0 and run.text == "ok 1200\n"


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_every_register_survives_a_move_after_every_instruction(
    start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """One thread with the trap flag set: with this fault the tile moves its process after every instruction."""
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
        waiting.until(
            lambda: failure(lambda: runs.append(Run(board, "count", steps, pause, tile=0))) is None,  # noqa: B023
            "tile 0 is free",
        )
        (run,) = runs
        with suppress(Refused, Failed):  # it has ended
            while left > 0:
                to = (place(board, run.process)["tile"] + 1) % 3
                board.move(run.process, to, MODES[left % len(MODES)])
                left -= 1
        assert run.ended()["status"] == 0, run.end
        assert run.text.splitlines() == [*map(str, range(1, steps + 1)), f"sum {count_sum(steps * pause):x}"]


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
    """The ways that are used where the machine lacks the best; the move reports its way."""
    monkeypatch.setenv("WHERRY_TILE_FAULT", f"tracking:{way}")
    board = start()
    run = Run(board, "patterns", 400)
    cost = board.move(run.process, (place(board, run.process)["tile"] + 1) % 3, "precopy")
    assert cost["tracking"] == way and (cost["rounds"] == 0) == (way == "none")
    move_around(board, run, "precopy", 8)
    assert run.ended()["status"] == 0 and run.text == "ok 400\n"


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
    source = NATIVE / "mpi" / "examples" / f"{name}.c"
    built = str(tmp_path / name)
    subprocess.run(["mpicc", "-std=c11", "-O2", "-Wall", "-Werror", "-o", built, str(source), "-lm"], check=True)
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=waiting.bound()).stdout
    extra = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []
    launch = ["mpirun", *extra, "-n", "3", built, *words]
    native = subprocess.run(launch, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert native.returncode == 0, native.stderr
    assert native.stdout == still


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
    """Messages that are still sent to the process that had it reach nobody else for as long as can be."""
    board = start(1, 2)
    events = (list(board.run(program("count"), ["1"], 0)) for _ in range(40))
    assert [began["process"] for began, *_ in events] == [*range(1, 32), *range(1, 10)]


def test_names(start: Callable[..., Board]) -> None:
    """Linked, found, waited for, unlinked; they stay with a process that moves, and disappear when it ends."""
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
    for seconds in (0.5, 5, 50):  # on a busy machine it takes longer to end
        with pytest.raises(Failed, match="server 'two' has not linked its name") as failure:
            board.boot(TilesSpec.model_validate({"rings": [[late]]}), seconds)
        if "has ended" in failure.value.why:
            break
    assert "has ended" in failure.value.why


def test_a_sender_to_a_full_port_waits_and_one_to_nobody_is_told(start: Callable[..., Board]) -> None:
    board = start()
    receiver = Run(board, "busy")
    receiver.said("ready")
    sender = Run(board, "send", receiver.process, 3, *["x"] * 13, tile=1)
    assert sender.ended()["status"] == 0
    blocked = Run(board, "send", receiver.process, 3, *["x"] * 13, tile=1)  # the port holds 16
    time.sleep(0.2)
    assert not blocked.end
    board.move(blocked.process, 2)
    os.kill(board.ps()["tiles"][0]["pid"], signal.SIGKILL)
    assert receiver.ended()["event"] == "lost"
    assert blocked.ended()["status"] == 3  # ESRCH


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
    "a missing function": "int puts(const char *); int main(void) { return puts(0); }",
    "too large": "char much[1600000]; int main(void) { return much[getpid_()]; }",
}


@pytest.mark.parametrize("why", BAD_PROGRAMS)
def test_the_build_refuses(tmp_path: Path, why: str) -> None:
    source = tmp_path / "bad.c"
    source.write_text("int getpid_(void) { return 5; }\n" + BAD_PROGRAMS[why])
    tilecc = [str(NATIVE / "tilecc"), "-o", str(tmp_path / "bad"), str(source)]
    built = subprocess.run(
        tilecc, capture_output=True, text=True, timeout=waiting.bound(), env={**os.environ, "CFLAGS": "-w -O1"}
    )
    assert built.returncode != 0
    assert why in built.stderr or (why == "a missing function" and "undefined reference" in built.stderr)


def test_no_tiles(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no tiles are up"):
        Board(tmp_path / "none.sock").ps()
