"""Programs that run for a while, natively or on a cluster, there with or without a move of one node at a fixed time.

Invariant: a run counts only when its program says that its result is right, and when a move that was asked for both
began after the measured part did and ended before it: else the numbers would not show what a move costs.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.paths import native_program
from wherry.base.units import parse_size
from wherry.lab import hpcc
from wherry.lab.study.levels import RESULT_CHECKSUM, RunFailed, Value
from wherry.lab.study.program_output import json_lines
from wherry.lab.study.testbed import ClusterShape, ProgramResult, RunningJob, Testbed, installed, program
from wherry.model.records import Move

# Ranks share cores here; one that waits gives its core to one that computes, in every variant alike.
SHARED_CORES = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_TIME_LIMIT = 1800.0
"""Seconds for one run."""
_POLL = 0.01
"""Seconds between two looks at an output file: the error of a moment."""
_RESIDUAL = re.compile(r"^\|\|Ax-b\|\|.*$", re.MULTILINE)
_NPB_STARTED, _RING_STARTED = b"Time step", b"iteration"
"""What NPB's LU, SP and BT, and wherry-ring print when they have begun."""
_NPB_TIME = re.compile(r"Time in seconds\s*=\s*([\d.]+)")
_NPB_RESULT = re.compile(r"^.*relative error.*$", re.MULTILINE)


@dataclass(frozen=True)
class MoveSchedule:
    """Which node goes to and fro between two hosts, how many seconds after the start, with how many rounds at most.

    `mode` is how a virtual machine's memory is sent (see `wherry.model.migration_parameters`); containers have one way.
    """

    node: str
    hosts: tuple[str, str]
    after: float
    max_rounds: int | None = None
    mode: str | None = None


def hpl(
    testbed: Testbed,
    cluster: ClusterShape | None,
    problem: hpcc.Problem,
    directory: Path,
    move_schedule: MoveSchedule | None = None,
    transport: str = "tcp",
) -> list[Value]:
    """HPL in Debian's hpcc: seconds of HPL's part, seen from outside, its rate, and its residuals. No place: native,
    its messages over `transport`."""
    output, ranks, argv = directory / hpcc.OUTPUT, problem.p * problem.q, [installed("hpcc", "hpcc")]
    marks = (hpcc.BEGIN, hpcc.END)
    if cluster and cluster.nic:
        argv = [str(_script(directory, problem.wrapper_script(argv[0])))]
        output = directory / "stdout"
        seconds, move = run_timed_by_stdout(testbed, cluster, argv, ranks, directory, marks, move_schedule)
    else:
        (directory / hpcc.INPUT).write_text(problem.text())
        seconds, move = run_timed_by_file(
            testbed, cluster, argv, ranks, directory, output, marks, move_schedule, transport
        )
    result = hpcc.read(output)
    if not result.verified(problem):
        raise RunFailed(f"{result.passed} of {problem.runs} of HPL's residual checks passed")
    residuals = "\n".join(_RESIDUAL.findall(output.read_text(errors="replace")))
    return [
        Value("seconds", seconds, "s"),
        Value("flops", problem.operations / seconds, "1/s"),
        fingerprint(residuals),
        *(Value(name, value, "B/s" if name == hpcc.RING else "s") for name, value in result.b_eff.items()),
        *move_values(move),
    ]


def run_timed_by_file(
    testbed: Testbed,
    cluster: ClusterShape | None,
    argv: Sequence[str],
    ranks: int,
    directory: Path,
    log: Path,
    marks: tuple[str, str],
    move_schedule: MoveSchedule | None = None,
    transport: str = "tcp",
) -> tuple[float, Move | None]:
    """Runs a program that writes `log`; seconds between the moments when two texts appear in it, seen from outside.

    A move begins its time after the first of them. SampleFailed when the program fails, when a text never appears, or
    when the move is not over by the second. No place: native.
    """
    begin, end = marks
    watch, move = _FileWatcher(log, marks), None
    try:
        if cluster is None:
            done = testbed.run_native(argv, ranks, directory, _TIME_LIMIT, transport, env=SHARED_CORES)
        else:
            job = testbed.start_job(cluster, argv, ranks, directory, mpi="openmpi", env=SHARED_CORES)
            if move_schedule:
                move = _run_move(testbed, job, move_schedule, lambda: watch.wait(begin, job))
            done = job.wait(_TIME_LIMIT)
    finally:
        watch.stop()
    done.require_success()
    for mark in marks:
        if mark not in watch.moments:
            raise RunFailed(f"{mark!r} never appeared in {log.name}")
    if move and (move.created < watch.moments[begin] or (move.ended or watch.moments[end]) > watch.moments[end]):
        raise RunFailed("the program ended before the move did; a larger problem is needed")
    return watch.moments[end] - watch.moments[begin], move


def run_timed_by_stdout(
    testbed: Testbed,
    cluster: ClusterShape,
    argv: Sequence[str],
    ranks: int,
    directory: Path,
    marks: tuple[str, str],
    move_schedule: MoveSchedule | None = None,
) -> tuple[float, Move | None]:
    """As `between`, where the texts are on the program's standard output: virtual machines keep their files."""
    job = testbed.start_job(cluster, argv, ranks, directory, mpi="openmpi", env=SHARED_CORES)
    try:
        job.await_output(marks[0].encode())
        started, move = time.time(), None
        if move_schedule:
            move = _run_move(testbed, job, move_schedule, lambda: None)
        job.await_output(marks[1].encode())
        ended = time.time()
    except BaseException:
        job.cancel()
        raise
    job.wait(_TIME_LIMIT).require_success()
    _require_end_after_move(move, ended)
    return ended - started, move


def _script(directory: Path, text: str) -> Path:
    path = directory / "run"
    path.write_text(text)
    path.chmod(0o755)
    return path


def npb(
    testbed: Testbed,
    cluster: ClusterShape | None,
    kernel: str,
    npb_class: str,
    ranks: int,
    directory: Path,
    move_schedule: MoveSchedule | None = None,
    transport: str = "tcp",
) -> list[Value]:
    """An NPB program of class `letter`: its own seconds (by the time of day) and its result. No place: native, its
    messages over `transport`.

    Its seconds are those of the slowest rank. So they are right also when a virtual machine moves, whose clock stands
    meanwhile: the ranks on the others have counted the time for which they waited for it.
    """
    argv = [str(native_program(f"npb-{kernel}-openmpi")), npb_class]
    if cluster is None:
        return npb_values(testbed.run_native(argv, ranks, directory, _TIME_LIMIT, transport, env=SHARED_CORES))
    # A node does not see its own limit, and a rank that exceeds it is killed without a word.
    env = {**SHARED_CORES, "NPB_NODE_MEMORY": str(parse_size(cluster.memory))}
    job = testbed.start_job(cluster, argv, ranks, directory, "openmpi", env)
    move = _run_move(testbed, job, move_schedule, lambda: job.await_output(_NPB_STARTED)) if move_schedule else None
    values = npb_values(job.wait(_TIME_LIMIT))
    _require_end_after_move(move, job.ended)
    return [*values, *move_values(move)]


def npb_values(done: ProgramResult) -> list[Value]:
    """What an NPB program printed: its seconds and its result."""
    if "UNSUCCESSFUL" in done.stdout:  # before the exit code, which says less
        raise RunFailed("the program's verification did not succeed")
    text = done.require_success()
    found = _NPB_TIME.search(text)
    if not found or "SUCCESSFUL" not in text:
        raise RunFailed("the program printed no verification")
    results = "\n".join(line.strip() for line in _NPB_RESULT.findall(text))
    return [Value("seconds", float(found[1]), "s"), fingerprint(results)]


def ring(
    testbed: Testbed,
    cluster: ClusterShape,
    memory: int,
    seconds: float,
    ranks: int,
    directory: Path,
    move_schedule: MoveSchedule | None = None,
    pages: int = 16,
) -> list[Value]:
    """wherry-ring with `memory` MiB a rank, of which it writes so many `pages` in each iteration: iterations and bytes
    written per second (of a rank), the largest gap, and every byte checked."""
    argv = [program("ring", "openmpi"), "--seconds", f"{seconds:g}", "--memory", str(memory), "--pages", str(pages)]
    job = testbed.start_job(cluster, argv, ranks, directory, env=SHARED_CORES)
    move = _run_move(testbed, job, move_schedule, lambda: job.await_output(_RING_STARTED)) if move_schedule else None
    done = job.wait(_TIME_LIMIT)
    lines = list(json_lines(done.require_success()))
    if not lines or lines[-1]["errors"]:
        raise RunFailed("the ring found wrong content")
    _require_end_after_move(move, job.ended)
    final = lines[-1]
    return [
        Value("rate", final["iterations"] / final["seconds"], "1/s"),
        Value("largest_gap", final["max_gap_ms"] * 1e-3, "s"),
        Value("seconds", final["seconds"], "s"),
        Value("written", final["written_bytes"] / final["seconds"] / final["ranks"], "B/s"),
        Value("checked", final["checked_bytes"], "B"),
        *move_values(move),
    ]


def move_idle_node(
    testbed: Testbed, cluster: ClusterShape, directory: Path, move_schedule: MoveSchedule
) -> list[Value]:
    """A move of a node on which nothing runs."""
    testbed.ensure_cluster(cluster)
    return move_values(
        testbed.move(move_schedule.node, move_schedule.hosts, directory, move_schedule.max_rounds, move_schedule.mode)
    )


def move_values(move: Move | None) -> list[Value]:
    """What a move cost; nothing when there was none. SampleFailed when it did not come to its end."""
    if move is None:
        return []
    if move.downtime is None or move.total is None:
        raise RunFailed(f"the move ended in {move.phase}")
    values = [
        Value("downtime", move.downtime, "s"),
        Value("total", move.total, "s"),
        Value("bytes", move.bytes, "B"),
        Value("rounds", len(move.rounds), ""),
    ]
    values += [Value(f"phase_{phase}", seconds, "s") for phase, seconds in move.phases.items()]
    return values


def _run_move(testbed: Testbed, job: RunningJob, move_schedule: MoveSchedule, wait_ready: Callable[[], None]) -> Move:
    try:
        wait_ready()
        return testbed.move(
            move_schedule.node,
            move_schedule.hosts,
            job.directory,
            move_schedule.max_rounds,
            move_schedule.mode,
            move_schedule.after,
        )
    except BaseException:
        job.cancel()
        raise


def _require_end_after_move(move: Move | None, ended: float | None) -> None:
    if move and ended and (move.ended or ended) >= ended:
        raise RunFailed("the program ended before the move did; a longer run is needed")


def fingerprint(text: str) -> Value:
    """The result as printed, as a number that is the same only when every digit is."""
    if not text:
        raise RunFailed("the program printed no result")
    return Value(RESULT_CHECKSUM, zlib.crc32(text.encode()), "")


class _FileWatcher:
    """Notes when texts first appear in a file that grows, by the time of day."""

    def __init__(self, path: Path, marks: Sequence[str]) -> None:
        self._path, self._marks = path, marks
        self.moments: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def wait(self, mark: str, job: RunningJob) -> None:
        """Returns when the mark has appeared; SampleFailed when the job is over before."""
        deadline, polls = time.monotonic() + _TIME_LIMIT, 0
        while mark not in self.moments:
            polls += 1
            if time.monotonic() > deadline or (polls % 50 == 0 and job.has_ended()):
                raise RunFailed(f"{mark!r} never appeared in {self._path.name}")
            time.sleep(_POLL)

    def stop(self) -> None:
        """Looks once more and ends."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        size = 0
        while True:
            final = self._ended.is_set()
            size_now = self._path.stat().st_size if self._path.exists() else 0
            if final or size_now != size:  # one that was written anew may be as long as the one before
                moment, size = time.time(), size_now
                text = self._path.read_text(errors="replace") if size_now else ""
                for mark in self._marks:
                    if mark in text:
                        self.moments.setdefault(mark, moment)
            if final:
                return
            self._ended.wait(_POLL)
