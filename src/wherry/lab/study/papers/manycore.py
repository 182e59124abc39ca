"""`manycore`: the multikernel paper's experiments on tiles, with lower bounds and alternatives on the same machine. Q1:
threads. Q2: downtime of a move over threads and pages. Q3: concurrent moves. Baselines, measured within the same
minute: a copy of 2 MiB, CRIU moving an ordinary process, pthreads, messages of Open MPI and MPICH over shared memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wherry.base.paths import native_library, native_program
from wherry.client import Client
from wherry.lab.study import program_output
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.papers import manycore_page
from wherry.lab.study.papers.manycore_levels import LARGEST, SLAVES, TCP, WORKING_SETS, combination_of
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed, program
from wherry.model.tiles import MODES

PROCESS_SIZE = 2 << 20
"""Maximum size of a tile process in bytes, and size of the copy that is the baseline of its move."""
_MPIS = ("openmpi", "mpich")
_HOSTS = ("a1", "a2")
"""The hosts between which moves over TCP are measured."""
_ROUNDS = 20
_ATTEMPTS = 10
"""Attempts at concurrent moves until two of the processes were frozen at the same time."""
_STACK = 32 << 10
"""Stack size in bytes of a thread on a tile."""
_SECONDS = 120.0
"""Time limit of one run; the longest has 17 threads on each of eight tiles and two CPUs."""
_READY = 60.0


class Manycore(Study):
    """Design, runs and report of the study."""

    name = "manycore"
    title = "Tiles: threads, moves, moves at the same time"
    question = "For how long does a process of a multikernel stand still when it moves, and what is that time made of?"
    validity_checks = ("its program ends well, and no tile had anything to say.",)
    duration = ("half an hour", "some minutes")
    repetitions = 20
    quick_repetitions = 5
    shows = (
        "The three experiments of the paper with its axes, in the paper's way of moving and in three others, each "
        "beside a copy of the same memory, CRIU, pthreads, Open MPI and MPICH on the same machine in the same minute.",
    )
    limitations = (
        "The paper's chip has 16 cores for each group of them; here a core is a thread of Linux. With more of them "
        "than CPUs the time until the last one runs again is the scheduler's, not the move's.",
        "A kernel without the User Area: the build that Q1 is compared with keeps the same structure in the tile's own "
        "memory. It shows what the shared memory costs, not what another layout would.",
        "No wire is between the hosts: moves between two of them cross the emulated network, all others only memory.",
    )

    def factors(self) -> Sequence[Factor]:
        no_criu = self.unavailable.get("criu", "")
        ways = {
            "faithful": "as the paper: stop, 4 KiB pieces, each allowed by the receiver",
            "direct": "stop, one copy",
            "precopy": "copied while it runs, stop for the last pages",
            "handoff": "the pages change hands",
        }
        others = (
            *(
                Level(how, f"between two emulated hosts over TCP, {how[4:]}", self.unavailable.get("root", ""))
                for how in TCP
            ),
            Level("separated", "User Area separated"),
            Level("joined", "the same structure in the tile's own memory"),
            Level("pthreads", "pthreads, stacks of 8 MiB"),
            Level("pthreads-small", "pthreads, stacks of 32 KiB as of tiles"),
            Level("criu", "CRIU, an ordinary process", no_criu),
            Level("tiles", "mailbox of tiles"),
            Level("openmpi", "Open MPI, shared memory"),
            Level("mpich", "MPICH, shared memory"),
        )
        whats = {
            "threads": "Q1: create and join 17 threads",
            "move": "Q2: one move",
            "parallel": "Q3: moves at the same time",
            "beside": "the same memory, moved by CRIU",
            "message": "half of the round trip of a message",
        }
        counts = dict.fromkeys(("-", *self._threads(), "17"))
        return [
            Factor("what", "what is measured", tuple(Level(*pair) for pair in whats.items())),
            Factor("how", "in which way", (*(Level(mode, ways[mode]) for mode in MODES), *others)),
            Factor("threads", "threads beside the first", tuple(Level(t, t) for t in counts)),
            Factor("pages", "pages that it has grown by", tuple(Level(p, p) for p in ("-", *self._pages(), LARGEST))),
            Factor(
                "written", "of those, pages that it goes on writing", tuple(Level(w, w) for w in ("-", *WORKING_SETS))
            ),
            Factor("pairs", "pairs of tiles", tuple(Level(n, n) for n in ("-", "1", "2", "4", "8"))),
        ]

    def _threads(self) -> tuple[str, ...]:
        return ("0", "1", "4", "14", "15") if self.quick else tuple(str(count) for count in range(18))

    def _pages(self) -> tuple[str, ...]:
        return ("0", "32") if self.quick else ("0", "8", "16", "24", "32")

    def combinations(self) -> Sequence[Combination]:
        ways = ("separated", "joined", "pthreads", "pthreads-small")
        combinations = [combination_of("threads", how, threads="17") for how in ways]
        combinations += [
            combination_of("move", mode, t, p) for mode in MODES for t in self._threads() for p in self._pages()
        ]
        combinations += [combination_of("move", mode, "0", LARGEST, w) for mode in MODES for w in WORKING_SETS]
        if not self.unavailable.get("root"):
            combinations += [combination_of("move", how, t, "32") for how in TCP for t in self._far_threads()]
            combinations += [combination_of("move", how, "0", "0") for how in TCP]
            combinations += [combination_of("move", how, "0", LARGEST, w) for how in TCP for w in WORKING_SETS]
        for pairs in ("1", "2", "4", "8"):
            for threads in ("1",) if self.quick else ("1", "17"):
                combinations += [combination_of("parallel", mode, threads, "32", pairs=pairs) for mode in MODES]
        if not self.unavailable.get("criu"):
            combinations.append(combination_of("beside", "criu"))
        return [*combinations, *(combination_of("message", how) for how in ("tiles", *_MPIS))]

    def _far_threads(self) -> tuple[str, ...]:
        return ("0", "4") if self.quick else ("0", "1", "4", "8", "14", "17")

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        what, how = combination["what"], combination["how"]
        if what == "move":
            written = combination["pages"] if combination["written"] == "all" else combination["written"]
            return _single_move(
                testbed, directory, how, int(combination["threads"]), int(combination["pages"]), int(written)
            )
        if what == "parallel":
            return _parallel_moves(
                testbed.client, how, int(combination["threads"]), int(combination["pages"]), int(combination["pairs"])
            )
        if what == "beside":
            return _move_by_criu(directory)
        if how in _MPIS:
            done = testbed.run_native([program("pingpong", how), "--max", "128"], 2, directory, _SECONDS, "shm", how)
            return [
                value
                for value in program_output.pingpong(done.require_success(), 8)
                if value.metric == "latency_median"
            ]
        if what == "message":
            return _measure_messages(testbed.client)
        if how in ("pthreads", "pthreads-small"):
            stack = [str(_STACK)] if how == "pthreads-small" else []
            result = _run_beside(testbed, directory, "threads", "17", str(_ROUNDS), *stack)
            return [Value("create", result["create_ns"] / 1e9, "s"), Value("join", result["join_ns"] / 1e9, "s")]
        return _threads(testbed.client, "joined" if how == "joined" else "separated")

    def page(self, results: Results) -> Page:
        return manycore_page.page(self.combinations(), results)


@contextmanager
def _tiles(
    client: Client, tiles: int, cores: int, hosts: Sequence[str] = (), build: str = "separated"
) -> Iterator[None]:
    """Starts tiles for one run and stops them at the end. Raises RunFailed if they printed anything."""
    client.tiles_up({"tiles": tiles, "cores": cores, "hosts": list(hosts)}, "the study", build=build)
    try:
        yield
    finally:
        text = client.tiles_down()["said"]
    if text:
        raise RunFailed(f"a tile said: {text[:200]}")


def _program(name: str) -> Path:
    return native_library("tile") / name


def _cores(threads: int) -> int:
    """Cores of a tile: the master's and one for each thread, the first included, up to the maximum."""
    return 1 + min(SLAVES, threads + 1)


def _start_program(client: Client, name: str, words: Sequence[str], tile: int | None = None) -> int:
    return int(client.start_on_tile(str(_program(name)), list(words), tile)[0]["process"])


def _await_ready(client: Client, process: int) -> None:
    """Waits until the program has printed `ready`."""
    text, limit = "", time.monotonic() + _READY
    for event in client.tile_output([process]):
        text += event.get("text", "")
        if "ready" in text:
            return
        if event["event"] in ("ended", "lost") or time.monotonic() > limit:
            break
    raise RunFailed(f"the program did not get ready: {text[:200]}")


def _output(client: Client, name: str, *words: str) -> str:
    """Runs a program and returns its output. It is read by one request at the end, so nothing polls while it runs."""
    events = list(client.tile_output([_start_program(client, name, words)], to_end=True))
    if events[-1]["event"] != "ended" or events[-1]["status"] != 0:
        raise RunFailed(f"{name} did not end well: {events[-1]}")
    return "".join(event["text"] for event in events if event["event"] == "output")


def _run_beside(testbed: Testbed, directory: Path, *words: str) -> dict[str, Any]:
    done = testbed.run_command([str(native_program("wherry-baseline")), *words], directory, _SECONDS)
    return next(program_output.json_lines(done.require_success()))


def _move_values(event: dict[str, Any]) -> list[Value]:
    """The times and sizes of a move. `seen`: from the request to the name server until its answer, measured by the
    service. `observed`: from the request until a thread runs. It is closest to the paper's definition, which ends with
    a signal of the process at its destination and subtracts the time of such a signal."""
    ns = {key: event[f"{key}_ns"] for key in ("prepare", "freeze", "copy", "commit", "first", "all", "seen")}
    ns["resume"] = ns["first"] - ns["freeze"] - ns["copy"] - ns["commit"]
    ns["observed"] = ns["prepare"] + ns["first"]
    values = [Value(name, value / 1e9, "s") for name, value in ns.items()]
    values += [Value("bytes", event["bytes"], "B"), Value("before", event["before"], "B")]
    return [*values, Value("rounds", event["rounds"], "")]


def _single_move(testbed: Testbed, directory: Path, mode: str, threads: int, pages: int, written: int) -> list[Value]:
    """Moves a process there and back; the move back is measured, since both tiles are then warm. `memcpy`: copy of the
    maximum process size; `memcpy_same`: copy of this process's size; `wire`: sending the bytes that were sent during
    the freeze over a TCP connection between the same hosts."""
    copy_seconds = _copy_seconds(testbed, directory, PROCESS_SIZE)
    client, hosts = testbed.client, _HOSTS if mode in TCP else ()
    mode = mode.removeprefix("tcp-")
    with _tiles(client, 1 if hosts else 2, _cores(threads), hosts):
        process = _start_program(client, "busy", _busy_arguments(threads, pages, written), 0)
        _await_ready(client, process)
        client.move_tile_process(process, 1, mode)
        time.sleep(0.02)  # it runs and keeps rewriting `written` pages
        event = client.move_tile_process(process, 0, mode)
    values = _move_values(event)
    if event["at_most"]:
        raise RunFailed("the two hosts have two clocks, so what was measured between them are bounds")
    values.append(Value("memcpy", copy_seconds, "s"))
    if moved := min(PROCESS_SIZE, event["bytes"] + event["before"]):  # pages sent in several rounds count once
        values.append(Value("memcpy_same", _copy_seconds(testbed, directory, moved), "s"))
    if hosts and event["bytes"]:
        values.append(Value("wire", _send_seconds(testbed, directory, event["bytes"]), "s"))
    return values


def _busy_arguments(threads: int, pages: int, written: int) -> list[str]:
    """Arguments for the program `busy` without an end."""
    return [str(threads), str(pages), "0", str(written)]


def _copy_seconds(testbed: Testbed, directory: Path, size: int) -> float:
    """Seconds of a memory copy of `size` bytes."""
    return float(_run_beside(testbed, directory, "memcpy", str(size), "51")["nanoseconds"]) / 1e9


def _send_seconds(testbed: Testbed, directory: Path, size: int) -> float:
    """Seconds to send `size` bytes from the second host to the first, the direction of the measured move."""
    places = testbed.client.fabric()["places"]
    to, source = (places[name] for name in _HOSTS)
    words = (source["netns"], to["netns"], to["address"], str(size), "51")
    return float(_run_beside(testbed, directory, "wire", *words)["nanoseconds"]) / 1e9


def _parallel_moves(client: Client, mode: str, threads: int, pages: int, pairs: int) -> list[Value]:
    """Moves all processes back and forth until two were frozen at the same time. `overlap`: the largest number frozen
    at once."""
    with _tiles(client, 2 * pairs, _cores(threads)):
        words = _busy_arguments(threads, pages, pages)
        processes = [_start_program(client, "busy", words, 2 * pair) for pair in range(pairs)]
        for process in processes:
            _await_ready(client, process)
        _move_together(client, processes, 1, mode)
        for turn in range(_ATTEMPTS):
            time.sleep(0.02)
            moves = _move_together(client, processes, turn % 2, mode)
            overlap = max_overlap(standing for standing, _ in moves)
            if overlap >= min(2, pairs):
                break
        else:
            raise RunFailed(f"in {_ATTEMPTS} tries no two of {pairs} processes stood at the same time")
    result = [{value.metric: value.value for value in values} for _, values in moves]
    means = [
        Value(f"{name}_mean", sum(one[name] for one in result) / pairs, "s")
        for name in ("first", "all", "freeze", "copy", "commit", "resume", "seen")
    ]
    return [*means, Value("overlap", overlap, ""), Value("tries", turn + 1, "")]


def _move_together(
    client: Client, processes: Sequence[int], side: int, mode: str
) -> list[tuple[tuple[int, int], list[Value]]]:
    """Moves each process to tile `side` of its pair by one command. Returns for each its freeze interval (ns) and
    values."""
    moves = []
    for event in client.move_tile_processes({process: 2 * i + side for i, process in enumerate(processes)}, mode):
        froze = event["asked_ns"] + event["prepare_ns"]
        moves.append(((froze, froze + event["first_ns"]), _move_values(event)))
    return moves


def max_overlap(spans: Iterable[tuple[int, int]]) -> int:
    """The largest number of half-open intervals that contain a common point."""
    spans = list(spans)
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


def _threads(client: Client, build: str) -> list[Value]:
    """Median time of a round, and the hardware counters over all rounds if the machine has them."""
    cpus = len(os.sched_getaffinity(0))
    with _tiles(client, 1, min(16, cpus + 1), build=build):
        _output(client, "forkjoin", "17", "5")
        pid = client.tiles()["tiles"][0]["pid"]
        command = [str(native_program("wherry-baseline")), "count", str(pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as counter:
            assert counter.stdout
            counts = json.loads(counter.stdout.readline())["counted"]
            text = _output(client, "forkjoin", "17", str(_ROUNDS))
            counted, _ = counter.communicate(timeout=_SECONDS)
    rounds = [[int(word) for word in line.split()] for line in text.splitlines()]
    values = [
        Value(name, sorted(one[i] for one in rounds)[_ROUNDS // 2] / 1e9, "s")
        for i, name in enumerate(("create", "join"))
    ]
    events = json.loads(counted) if counts else {}
    return values + [Value(name, count / _ROUNDS, "") for name, count in events.items()]


def _measure_messages(client: Client) -> list[Value]:
    values = []
    for size in (8, 128):
        with _tiles(client, 2, 2):
            echo = _start_program(client, "pong", [], 0)
            _await_ready(client, echo)
            text = _output(client, "pong", str(size), "1000", str(echo))
        values.append(Value("latency_median", int(text.split()[1]) / 2e9, "s", size))
    return values


def _move_by_criu(directory: Path) -> list[Value]:
    """Dumps and restores an ordinary process with the same memory size, which records the longest gap of its
    execution."""
    result = json.loads(_run([sys.executable, "-P", "-m", "wherry.node.container.criu.probe"], directory))
    counters, images = directory / "told", directory / "images"
    images.mkdir()
    command = [str(native_program("wherry-baseline")), "stand", str(counters), str(PROCESS_SIZE)]
    null = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True, close_fds=True)
    pid = child.pid
    try:
        _await_running(counters, 0)
        before = _longest_gap(counters)
        began = time.monotonic()
        _run([result["path"], "dump", "-t", str(pid), "-D", str(images), "-v0"], directory)
        child.wait(_SECONDS)
        _run([result["path"], "restore", "-d", "-D", str(images), "-v0"], directory)
        total = time.monotonic() - began
        _await_running(counters, _round_count(counters))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
    return [
        Value("downtime", _longest_gap(counters), "s"),
        Value("gap_before", before, "s"),
        Value("total", total, "s"),
    ]


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RunFailed(f"{command[0]} {command[1]}: {(done.stderr or done.stdout)[:300]}")
    return done.stdout


def _counter(counters: Path, number: int) -> int:
    try:
        return int.from_bytes(counters.read_bytes()[8 * number : 8 * number + 8], "little")
    except OSError:
        return 0


def _round_count(counters: Path) -> int:
    return _counter(counters, 0)


def _longest_gap(counters: Path) -> float:
    return _counter(counters, 1) / 1e9


def _await_running(counters: Path, before: int) -> None:
    """Waits until the process has run more than ten rounds beyond `before`."""
    limit = time.monotonic() + _READY
    while _round_count(counters) <= before + 10:
        if time.monotonic() > limit:
            raise RunFailed("the ordinary process does not run")
        time.sleep(0.01)
