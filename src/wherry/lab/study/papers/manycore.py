"""`manycore`: the experiments of the paper on the multikernel, on tiles, beside what the machine can do at best.

Q1: threads. Q2: downtime of a move over threads and pages. Q3: moves at the same time. And what they are held against
in the same minute: a copy of 2 MiB, CRIU moving an ordinary process, pthreads, messages of Open MPI and MPICH over
shared memory.
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
from wherry.lab.study.levels import Combination, Factor, Level, SampleFailed, Value
from wherry.lab.study.papers import manycore_page
from wherry.lab.study.papers.manycore_levels import LARGEST, SLAVES, TCP, WORKING_SETS, cell_of
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed, program
from wherry.model.tiles import MODES

FLOOR = 2 << 20
"""Bytes of a tile process at most, and of the copy that its move is held against."""
_MPIS = ("openmpi", "mpich")
_HOSTS = ("a1", "a2")
"""Of the studies' fabric: those between which moves are measured."""
_ROUNDS = 20
_TRIES = 10
"""How often moves are begun together until two of the processes have stood at the same time."""
_STACK = 32 << 10
"""Bytes of a tile's thread's stack."""
_SECONDS = 120.0
"""Longest time of one run, with seventeen threads on each of eight tiles and two CPUs."""
_READY = 60.0


class Manycore(Study):
    """The experiment."""

    name = "manycore"
    title = "Tiles: threads, moves, moves at the same time"
    question = "For how long does a process of a multikernel stand still when it moves, and what is that time made of?"
    verified = ("its program ends well, and no tile had anything to say.",)
    lasts = ("half an hour", "some minutes")
    repetitions = 20
    quick_repetitions = 5
    shows = (
        "The three experiments of the paper with its axes, in the paper's way of moving and in three others, each "
        "beside a copy of the same memory, CRIU, pthreads, Open MPI and MPICH on the same machine in the same minute.",
    )
    cannot = (
        "The paper's chip has 16 cores for each group of them; here a core is a thread of Linux. With more of them "
        "than CPUs the time until the last one runs again is the scheduler's, not the move's.",
        "A kernel without the User Area: the build that Q1 is compared with keeps the same structure in the tile's own "
        "memory. It shows what the shared memory costs, not what another layout would.",
        "No wire is between the hosts: moves between two of them cross the emulated network, all others only memory.",
    )

    def factors(self) -> Sequence[Factor]:
        no_criu = self.lacks.get("criu", "")
        ways = {
            "faithful": "as the paper: stop, 4 KiB pieces, each allowed by the receiver",
            "direct": "stop, one copy",
            "precopy": "copied while it runs, stop for the last pages",
            "handoff": "the pages change hands",
        }
        others = (
            *(Level(how, f"between two emulated hosts over TCP, {how[4:]}", self.lacks.get("root", "")) for how in TCP),
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
        cells = [cell_of("threads", how, threads="17") for how in ways]
        cells += [cell_of("move", mode, t, p) for mode in MODES for t in self._threads() for p in self._pages()]
        cells += [cell_of("move", mode, "0", LARGEST, w) for mode in MODES for w in WORKING_SETS]
        if not self.lacks.get("root"):
            cells += [cell_of("move", how, t, "32") for how in TCP for t in self._far_threads()]
            cells += [cell_of("move", how, "0", "0") for how in TCP]
            cells += [cell_of("move", how, "0", LARGEST, w) for how in TCP for w in WORKING_SETS]
        for pairs in ("1", "2", "4", "8"):
            for threads in ("1",) if self.quick else ("1", "17"):
                cells += [cell_of("parallel", mode, threads, "32", pairs=pairs) for mode in MODES]
        if not self.lacks.get("criu"):
            cells.append(cell_of("beside", "criu"))
        return [*cells, *(cell_of("message", how) for how in ("tiles", *_MPIS))]

    def _far_threads(self) -> tuple[str, ...]:
        return ("0", "4") if self.quick else ("0", "1", "4", "8", "14", "17")

    def measure(self, bench: Testbed, cell: Combination, directory: Path) -> list[Value]:
        what, how = cell["what"], cell["how"]
        if what == "move":
            written = cell["pages"] if cell["written"] == "all" else cell["written"]
            return _one_move(bench, directory, how, int(cell["threads"]), int(cell["pages"]), int(written))
        if what == "parallel":
            return _moves_at_once(bench.client, how, int(cell["threads"]), int(cell["pages"]), int(cell["pairs"]))
        if what == "beside":
            return _criu(directory)
        if how in _MPIS:
            done = bench.native([program("pingpong", how), "--max", "128"], 2, directory, _SECONDS, "shm", how)
            return [value for value in program_output.pingpong(done.verified(), 8) if value.metric == "latency_median"]
        if what == "message":
            return _messages(bench.client)
        if how in ("pthreads", "pthreads-small"):
            stack = [str(_STACK)] if how == "pthreads-small" else []
            found = _beside(bench, directory, "threads", "17", str(_ROUNDS), *stack)
            return [Value("create", found["create_ns"] / 1e9, "s"), Value("join", found["join_ns"] / 1e9, "s")]
        return _threads(bench.client, "joined" if how == "joined" else "separated")

    def page(self, results: Results) -> Page:
        return manycore_page.page(self.combinations(), results)


@contextmanager
def _tiles(
    client: Client, tiles: int, cores: int, hosts: Sequence[str] = (), build: str = "separated"
) -> Iterator[None]:
    """Tiles of this run alone. What they said is an error."""
    client.tiles_up({"tiles": tiles, "cores": cores, "hosts": list(hosts)}, "the study", build=build)
    try:
        yield
    finally:
        said = client.tiles_down()["said"]
    if said:
        raise SampleFailed(f"a tile said: {said[:200]}")


def _program(name: str) -> Path:
    return native_library("tile") / name


def _cores(threads: int) -> int:
    """The master's, and one for each thread, the first included, as far as there are."""
    return 1 + min(SLAVES, threads + 1)


def _start(client: Client, name: str, words: Sequence[str], tile: int | None = None) -> int:
    return int(client.start_on_tile(str(_program(name)), list(words), tile)[0]["process"])


def _ready(client: Client, process: int) -> None:
    """Waits until the program has said that it is."""
    said, limit = "", time.monotonic() + _READY
    for event in client.tile_output([process]):
        said += event.get("text", "")
        if "ready" in said:
            return
        if event["event"] in ("ended", "lost") or time.monotonic() > limit:
            break
    raise SampleFailed(f"the program did not get ready: {said[:200]}")


def _output(client: Client, name: str, *words: str) -> str:
    """What a program says until it ends well; nothing asks for it meanwhile."""
    events = list(client.tile_output([_start(client, name, words)], to_end=True))
    if events[-1]["event"] != "ended" or events[-1]["status"] != 0:
        raise SampleFailed(f"{name} did not end well: {events[-1]}")
    return "".join(event["text"] for event in events if event["event"] == "output")


def _beside(bench: Testbed, directory: Path, *words: str) -> dict[str, Any]:
    done = bench.plain([str(native_program("wherry-baseline")), *words], directory, _SECONDS)
    return next(program_output.json_lines(done.verified()))


def _values(event: dict[str, Any]) -> list[Value]:
    """What a move cost; `seen` is from the request to the name server until its answer, as the service sees it.

    `observed` is from the request until a thread runs: nearest to the paper's definition, which ends with a signal of
    the process at its destination and takes the time of such a signal off.
    """
    ns = {key: event[f"{key}_ns"] for key in ("prepare", "freeze", "copy", "commit", "first", "all", "seen")}
    ns["resume"] = ns["first"] - ns["freeze"] - ns["copy"] - ns["commit"]
    ns["observed"] = ns["prepare"] + ns["first"]
    values = [Value(name, value / 1e9, "s") for name, value in ns.items()]
    values += [Value("bytes", event["bytes"], "B"), Value("before", event["before"], "B")]
    return [*values, Value("rounds", event["rounds"], "")]


def _one_move(bench: Testbed, directory: Path, mode: str, threads: int, pages: int, written: int) -> list[Value]:
    """There and back, the way back counts: both tiles have then been used.

    `memcpy` is a copy of all that a process can have, `memcpy_same` of what this one had; `wire` is what was sent
    while it stood, over a TCP connection between the same hosts.
    """
    floor = _copy(bench, directory, FLOOR)
    client, hosts = bench.client, _HOSTS if mode in TCP else ()
    mode = mode.removeprefix("tcp-")
    with _tiles(client, 1 if hosts else 2, _cores(threads), hosts):
        process = _start(client, "busy", _busy(threads, pages, written), 0)
        _ready(client, process)
        client.move_tile_process(process, 1, mode)
        time.sleep(0.02)  # it runs, and writes `written` pages again and again
        event = client.move_tile_process(process, 0, mode)
    values = _values(event)
    if event["at_most"]:
        raise SampleFailed("the two hosts have two clocks, so what was measured between them are bounds")
    values.append(Value("memcpy", floor, "s"))
    if moved := min(FLOOR, event["bytes"] + event["before"]):  # what was copied in several rounds is there once
        values.append(Value("memcpy_same", _copy(bench, directory, moved), "s"))
    if hosts and event["bytes"]:
        values.append(Value("wire", _sent(bench, directory, event["bytes"]), "s"))
    return values


def _busy(threads: int, pages: int, written: int) -> list[str]:
    """Words for a program that computes for ever."""
    return [str(threads), str(pages), "0", str(written)]


def _copy(bench: Testbed, directory: Path, size: int) -> float:
    """Seconds of a copy within memory."""
    return float(_beside(bench, directory, "memcpy", str(size), "51")["nanoseconds"]) / 1e9


def _sent(bench: Testbed, directory: Path, size: int) -> float:
    """Seconds of a send from the second host to the first, the way that the move went."""
    places = bench.client.fabric()["places"]
    to, source = (places[name] for name in _HOSTS)
    words = (source["netns"], to["netns"], to["address"], str(size), "51")
    return float(_beside(bench, directory, "wire", *words)["nanoseconds"]) / 1e9


def _moves_at_once(client: Client, mode: str, threads: int, pages: int, pairs: int) -> list[Value]:
    """There, then back and there again until two have stood at the same time; `overlap` is how many have at most."""
    with _tiles(client, 2 * pairs, _cores(threads)):
        words = _busy(threads, pages, pages)
        processes = [_start(client, "busy", words, 2 * pair) for pair in range(pairs)]
        for process in processes:
            _ready(client, process)
        _begin_together(client, processes, 1, mode)
        for turn in range(_TRIES):
            time.sleep(0.02)
            moves = _begin_together(client, processes, turn % 2, mode)
            overlap = most_at_once(stood for stood, _ in moves)
            if overlap >= min(2, pairs):
                break
        else:
            raise SampleFailed(f"in {_TRIES} tries no two of {pairs} processes stood at the same time")
    found = [{value.metric: value.value for value in values} for _, values in moves]
    means = [
        Value(f"{name}_mean", sum(one[name] for one in found) / pairs, "s")
        for name in ("first", "all", "freeze", "copy", "commit", "resume", "seen")
    ]
    return [*means, Value("overlap", overlap, ""), Value("tries", turn + 1, "")]


def _begin_together(
    client: Client, processes: Sequence[int], side: int, mode: str
) -> list[tuple[tuple[int, int], list[Value]]]:
    """Moves each to that tile of its pair, all begun by one command: from when to when it stood (ns), what it cost."""
    moves = []
    for event in client.move_tile_processes({process: 2 * i + side for i, process in enumerate(processes)}, mode):
        froze = event["asked_ns"] + event["prepare_ns"]
        moves.append(((froze, froze + event["first_ns"]), _values(event)))
    return moves


def most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """How many of the spans of time have a moment in common, at most."""
    spans = list(spans)
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


def _threads(client: Client, build: str) -> list[Value]:
    """Each round's time, and for all of them what the machine counts, if it does."""
    cpus = len(os.sched_getaffinity(0))
    with _tiles(client, 1, min(16, cpus + 1), build=build):
        _output(client, "forkjoin", "17", "5")
        pid = client.tiles()["tiles"][0]["pid"]
        command = [str(native_program("wherry-baseline")), "count", str(pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as counter:
            assert counter.stdout
            counts = json.loads(counter.stdout.readline())["counted"]
            text = _output(client, "forkjoin", "17", str(_ROUNDS))
            said, _ = counter.communicate(timeout=_SECONDS)
    rounds = [[int(word) for word in line.split()] for line in text.splitlines()]
    values = [
        Value(name, sorted(one[i] for one in rounds)[_ROUNDS // 2] / 1e9, "s")
        for i, name in enumerate(("create", "join"))
    ]
    events = json.loads(said) if counts else {}
    return values + [Value(name, count / _ROUNDS, "") for name, count in events.items()]


def _messages(client: Client) -> list[Value]:
    values = []
    for size in (8, 128):
        with _tiles(client, 2, 2):
            echo = _start(client, "pong", [], 0)
            _ready(client, echo)
            said = _output(client, "pong", str(size), "1000", str(echo))
        values.append(Value("latency_median", int(said.split()[1]) / 2e9, "s", size))
    return values


def _criu(directory: Path) -> list[Value]:
    """Dumps and restores an ordinary process that writes as much memory; it keeps the longest time that it stood."""
    found = json.loads(_run([sys.executable, "-P", "-m", "wherry.node.container.criu.probe"], directory))
    told, images = directory / "told", directory / "images"
    images.mkdir()
    command = [str(native_program("wherry-baseline")), "stand", str(told), str(FLOOR)]
    null = subprocess.DEVNULL
    child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True, close_fds=True)
    pid = child.pid
    try:
        _runs(told, 0)
        before = _gap(told)
        began = time.monotonic()
        _run([found["path"], "dump", "-t", str(pid), "-D", str(images), "-v0"], directory)
        child.wait(_SECONDS)
        _run([found["path"], "restore", "-d", "-D", str(images), "-v0"], directory)
        total = time.monotonic() - began
        _runs(told, _rounds(told))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
    return [Value("downtime", _gap(told), "s"), Value("gap_before", before, "s"), Value("total", total, "s")]


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise SampleFailed(f"{command[0]} {command[1]}: {(done.stderr or done.stdout)[:300]}")
    return done.stdout


def _word(told: Path, number: int) -> int:
    try:
        return int.from_bytes(told.read_bytes()[8 * number : 8 * number + 8], "little")
    except OSError:
        return 0


def _rounds(told: Path) -> int:
    return _word(told, 0)


def _gap(told: Path) -> float:
    return _word(told, 1) / 1e9


def _runs(told: Path, before: int) -> None:
    """Waits until the process goes on."""
    limit = time.monotonic() + _READY
    while _rounds(told) <= before + 10:
        if time.monotonic() > limit:
            raise SampleFailed("the ordinary process does not run")
        time.sleep(0.01)
