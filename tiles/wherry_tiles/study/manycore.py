"""`manycore`: the multikernel paper's experiments on tiles, with lower bounds and alternatives on the same machine. Q1:
threads. Q2: downtime of a move over threads and pages. Q3: concurrent moves. And the use of moves: processes that
talk, brought together on a network on chip (`mesh`). Baselines, measured within the same
minute: a copy of 2 MiB, CRIU moving an ordinary process, pthreads, messages of Open MPI and MPICH over shared memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wherry.base.paths import native_program
from wherry.lab.study import program_output
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, NUMBERS, Setting, several
from wherry.lab.study.testbed import Testbed, program
from wherry_tiles.client import TileRequests, tile_requests
from wherry_tiles.spec import MODES
from wherry_tiles.study import mesh, page
from wherry_tiles.study.levels import LARGEST, TCP, combination_of
from wherry_tiles.study.tiles import READY, await_ready, cores_of, output_of, start_program, tiles

PROCESS_SIZE = 2 << 20
"""Maximum size of a tile process in bytes, and size of the copy that is the baseline of its move."""
_MPIS = ("openmpi", "mpich")
_HOSTS = ("a1", "a2")
"""The hosts between which moves over TCP are measured."""
_BUILDS = ("separated", "joined", "mixed")
CREATED = Setting("create.threads", "Q1: threads that are created and joined", 17, 17, most=17)
ROUNDS = Setting("create.rounds", "Q1: how often in one run", 20, 20, most=1000)
THREADS = Setting(
    "threads",
    "Q2: threads beside the first",
    several("0-17"),
    several("0,1,14,15,17"),
    several("1-17"),
    NUMBERS,
    least=0,
    most=17,
)
PAGES = Setting(
    "pages",
    "Q2: pages that it has grown by",
    several("0,8,16,24,32"),
    several("0,8,32"),
    None,
    NUMBERS,
    least=0,
    most=359,
)
FAR_THREADS = Setting(
    "tcp.threads",
    "threads beside the first, between hosts",
    several("0,1,4,8,14,17"),
    several("0,4"),
    None,
    NUMBERS,
    least=0,
    most=17,
)
WRITTEN = Setting(
    "written",
    f"pages of {LARGEST} that are written all the time; all of them besides",
    "8,64",
    "8,64",
    None,
    NUMBERS,
    most=359,
)
PAIRS = Setting("pairs", "Q3: moves at the same time", "1,2,4,8", "1,2,4,8", None, NUMBERS, most=8)
PAIR_THREADS = Setting("pairs.threads", "Q3: threads beside the first", "1,17", "1,17", "17", NUMBERS, least=0, most=17)
MESSAGES = Setting("messages", "round trips of a message", 1000, 1000, most=4000)
MESSAGE_SIZES = Setting(
    "message.sizes", "their sizes in bytes", "8,128", "8,128", None, NUMBERS, least=2, most=128, many=16
)
STACK = Setting(
    "pthreads.stack", "stack of a pthread, beside 8 MiB; a tile's is 32 KiB", 32 << 10, 32 << 10, unit=BYTES,
    least=16 << 10, most=1 << 30,
)  # fmt: skip
ATTEMPTS = Setting("attempts", "Q3: tries until two of the processes were frozen at the same time", 10, 10, most=1000)
_SECONDS = 120.0
"""Time limit of one run; the longest has 17 threads on each of eight tiles and two CPUs."""


class Manycore(Study):
    """Design, runs and report of the study."""

    name = "manycore"
    why_not_on_own_hosts = "its tiles are processes of this machine"
    title = "Tiles: threads, moves, moves at the same time"
    question = "How long is the downtime of a moving process of a multikernel, and of which parts does it consist?"
    validity_checks = ("its program ends well, and no tile had anything to say.",)
    duration = ("half an hour", "some minutes")
    repetitions = 20
    quick_repetitions = 5
    settings = (
        CREATED,
        ROUNDS,
        THREADS,
        PAGES,
        WRITTEN,
        FAR_THREADS,
        PAIRS,
        PAIR_THREADS,
        ATTEMPTS,
        MESSAGES,
        MESSAGE_SIZES,
        STACK,
        *mesh.SETTINGS,
    )
    shows = (
        "The three experiments of the paper with its axes, in the paper's way of moving and in three others, each "
        "beside a copy of the same memory, CRIU, pthreads, Open MPI and MPICH on the same machine in the same minute.",
        "The purpose of moves: two processes that talk, far apart on a mesh, after the balancer has moved one, and "
        "near.",
    )
    limitations = (
        "The paper's chip has 16 cores for each group of them; here a core is a thread of Linux. With more of them "
        "than CPUs the time until the last one runs again is the scheduler's, not the move's.",
        "The paper's kernel before user areas is not here: Q1 is compared with our kernel with a process's threads in "
        "one table with its own cores. It shows the gain of keeping them apart here, with caches of another size.",
        "A network on chip is not here: that of the mesh is declared, so its times are the declared ones and our "
        "overhead.",
        "No wire is between the hosts: moves between two of them cross the emulated network, all others only memory.",
    )

    def require_compatible_settings(self) -> None:
        mesh.Mesh.of(self).require_size()

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
            Level("mixed", "no User Area: threads in one table with the kernel's cores"),
            Level("pthreads", "pthreads, stacks of 8 MiB"),
            Level("pthreads-small", f"pthreads, stacks of {STACK.shown(self.value(STACK))}"),
            Level("criu", "CRIU, an ordinary process", no_criu),
            Level("tiles", "mailbox of tiles"),
            Level("openmpi", "Open MPI, shared memory"),
            Level("mpich", "MPICH, shared memory"),
            *(Level(*pair) for pair in mesh.WAYS.items()),
        )
        whats = {
            "threads": "Q1: create and join threads",
            "move": "Q2: one move",
            "parallel": "Q3: moves at the same time",
            "beside": "the same memory, moved by CRIU",
            "message": "half of the round trip of a message",
            "mesh": "the same between two processes on a mesh",
        }
        threads = {*self._threads(), *self.numbers(FAR_THREADS), *self.numbers(PAIR_THREADS), self._created()}
        pages = {*self._pages(), LARGEST}
        return [
            Factor("what", "what is measured", tuple(Level(*pair) for pair in whats.items())),
            Factor("how", "in which way", (*(Level(mode, ways[mode]) for mode in MODES), *others)),
            Factor("threads", "threads beside the first", _levels("-", *sorted(threads, key=int))),
            Factor("pages", "pages that it has grown by", _levels("-", *sorted(pages, key=int))),
            Factor("written", "of those, pages that it continues to write", _levels("-", *self._written())),
            Factor("pairs", "pairs of tiles", _levels("-", *self.numbers(PAIRS))),
        ]

    def _message_sizes(self) -> list[int]:
        return [int(size) for size in self.numbers(MESSAGE_SIZES)]

    def _created(self) -> str:
        return str(self.value(CREATED))

    def _threads(self) -> tuple[str, ...]:
        return self.numbers(THREADS)

    def _pages(self) -> tuple[str, ...]:
        return self.numbers(PAGES)

    def _written(self) -> tuple[str, ...]:
        return (*self.numbers(WRITTEN), "all")

    def combinations(self) -> Sequence[Combination]:
        ways = (*_BUILDS, "pthreads", "pthreads-small")
        combinations = [combination_of("threads", how, threads=self._created()) for how in ways]
        combinations += [
            combination_of("move", mode, t, p) for mode in MODES for t in self._threads() for p in self._pages()
        ]
        combinations += [combination_of("move", mode, "0", LARGEST, w) for mode in MODES for w in self._written()]
        least, most = self._pages()[0], self._pages()[-1]
        if not self.unavailable.get("root"):
            combinations += [combination_of("move", how, t, most) for how in TCP for t in self.numbers(FAR_THREADS)]
            if "0" not in self.numbers(FAR_THREADS) or least != most:
                combinations += [combination_of("move", how, "0", least) for how in TCP]
            combinations += [combination_of("move", how, "0", LARGEST, w) for how in TCP for w in self._written()]
        combinations += self._parallel(most)
        if not self.unavailable.get("criu"):
            combinations.append(combination_of("beside", "criu"))
        combinations += [combination_of("message", how) for how in ("tiles", *_MPIS)]
        return [*combinations, *(combination_of("mesh", how) for how in mesh.WAYS)]

    def _parallel(self, pages: str) -> list[Combination]:
        """With --quick those of most threads only as the paper moves, as few and as many at once as there are."""
        pairs, threads = self.numbers(PAIRS), self.numbers(PAIR_THREADS)
        some = {pairs[0], pairs[-1]}
        return [
            combination_of("parallel", mode, count, pages, pairs=number)
            for number in pairs
            for count in threads
            for mode in MODES
            if not self.quick or count == threads[0] or (mode == "faithful" and number in some)
        ]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        what, how = combination["what"], combination["how"]
        if what == "move":
            written = combination["pages"] if combination["written"] == "all" else combination["written"]
            return _single_move(
                testbed, directory, how, int(combination["threads"]), int(combination["pages"]), int(written)
            )
        if what == "parallel":
            threads, pages, pairs = (int(combination[name]) for name in ("threads", "pages", "pairs"))
            return _parallel_moves(tile_requests(testbed.client), how, threads, pages, pairs, self.value(ATTEMPTS))
        if what == "beside":
            return _move_by_criu(directory)
        if how in _MPIS:
            sizes = self._message_sizes()
            argv = [program("pingpong", how), *(word for size in sizes for word in ("--only", str(size)))]
            done = testbed.run_native(argv, 2, directory, _SECONDS, "shm", how)
            return [
                value
                for value in program_output.pingpong(done.require_success(), len(sizes))
                if value.metric == "latency_median"
            ]
        if what == "message":
            return _measure_messages(tile_requests(testbed.client), self.value(MESSAGES), self._message_sizes())
        if what == "mesh":
            return mesh.measure(tile_requests(testbed.client), how, mesh.Mesh.of(self))
        created, rounds = self._created(), self.value(ROUNDS)
        if how in ("pthreads", "pthreads-small"):
            stack = [str(self.value(STACK))] if how == "pthreads-small" else []
            result = _run_beside(testbed, directory, "threads", created, str(rounds), *stack)
            return [Value("create", result["create_ns"] / 1e9, "s"), Value("join", result["join_ns"] / 1e9, "s")]
        return _threads(tile_requests(testbed.client), how, created, rounds)

    def page(self, results: Results) -> Page:
        return page.page(self.combinations(), results, STACK.shown(self.value(STACK)))


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
    client, hosts = tile_requests(testbed.client), _HOSTS if mode in TCP else ()
    mode = mode.removeprefix("tcp-")
    with tiles(client, 1 if hosts else 2, cores_of(threads), hosts):
        process = start_program(client, "busy", _busy_arguments(threads, pages, written), 0)
        await_ready(client, process)
        client.move_tile_process(process, 1, mode)
        time.sleep(0.02)  # it runs and keeps rewriting `written` pages
        event = client.move_tile_process(process, 0, mode)
    values = _move_values(event)
    if event["at_most"]:
        raise RunFailed("the two hosts have two clocks, so the times measured between them are bounds")
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


def _parallel_moves(
    client: TileRequests, mode: str, threads: int, pages: int, pairs: int, attempts: int
) -> list[Value]:
    """Moves all processes back and forth until two were frozen at the same time. `overlap`: the largest number frozen
    at once."""
    with tiles(client, 2 * pairs, cores_of(threads)):
        words = _busy_arguments(threads, pages, pages)
        processes = [start_program(client, "busy", words, 2 * pair) for pair in range(pairs)]
        for process in processes:
            await_ready(client, process)
        _move_together(client, processes, 1, mode)
        for turn in range(attempts):
            time.sleep(0.02)
            moves = _move_together(client, processes, turn % 2, mode)
            overlap = max_overlap(standing for standing, _ in moves)
            if overlap >= min(2, pairs):
                break
        else:
            raise RunFailed(f"in {attempts} tries no two of {pairs} processes were stopped at the same time")
    result = [{value.metric: value.value for value in values} for _, values in moves]
    means = [
        Value(f"{name}_mean", sum(one[name] for one in result) / pairs, "s")
        for name in ("first", "all", "freeze", "copy", "commit", "resume", "seen")
    ]
    return [*means, Value("overlap", overlap, ""), Value("tries", turn + 1, "")]


def _move_together(
    client: TileRequests, processes: Sequence[int], side: int, mode: str
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


def _levels(*names: str) -> tuple[Level, ...]:
    return tuple(Level(name, name) for name in names)


def _threads(client: TileRequests, build: str, created: str, count: int) -> list[Value]:
    """Median time of a round, and the hardware counters over all rounds if the machine has them."""
    cpus = len(os.sched_getaffinity(0))
    with tiles(client, 1, min(16, cpus + 1), build=build):
        output_of(client, "forkjoin", created, "5")
        pid = client.tiles()["tiles"][0]["pid"]
        command = [str(native_program("wherry-baseline")), "count", str(pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as counter:
            assert counter.stdout
            counts = json.loads(counter.stdout.readline())["counted"]
            text = output_of(client, "forkjoin", created, str(count))
            counted, _ = counter.communicate(timeout=_SECONDS)
    rounds = [[int(word) for word in line.split()] for line in text.splitlines()]
    values = [
        Value(name, sorted(one[i] for one in rounds)[len(rounds) // 2] / 1e9, "s")
        for i, name in enumerate(("create", "join"))
    ]
    events = json.loads(counted) if counts else {}
    return values + [Value(name, number / count, "") for name, number in events.items()]


def _measure_messages(client: TileRequests, count: int, sizes: Sequence[int]) -> list[Value]:
    values = []
    for size in sizes:
        with tiles(client, 2, 2):
            echo = start_program(client, "pong", [], 0)
            await_ready(client, echo)
            text = output_of(client, "pong", str(size), str(count), str(echo))
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
    limit = time.monotonic() + READY
    while _round_count(counters) <= before + 10:
        if time.monotonic() > limit:
            raise RunFailed("the ordinary process does not run")
        time.sleep(0.01)


STUDIES = (Manycore,)
