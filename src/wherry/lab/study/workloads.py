"""Workloads of studies: programs that run natively or on a cluster, there optionally with a scheduled move of one node.
Invariant: a run counts only if the program verified its result and if the move, if any, lies completely within the
measured part; otherwise the numbers would not show the cost of a move.
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
from wherry.lab import hpcc, native_mpirun
from wherry.lab.study.levels import RESULT_CHECKSUM, RunFailed, Value
from wherry.lab.study.program_output import json_lines
from wherry.lab.study.testbed import ClusterShape, ProgramResult, RunningJob, Testbed, installed, program
from wherry.model.records import Move

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of ranks. How they wait is left to Wherry on a cluster, and natively to the MPI: a setting of Open MPI's
would replace both."""
BY_HAND = "tcp-by-hand"
"""Transport of native ranks that wait as their MPI does of its own: TCP as a user types it."""
_TIME_LIMIT = 1800.0
"""Time limit of one run in seconds."""
_LONG_TIME_LIMIT = 6 * 3600.0
"""That of a program whose length is a setting."""
_POLL = 0.01
"""Seconds between two polls of an output file: the error of a time stamp."""
_RESIDUAL = re.compile(r"^\|\|Ax-b\|\|.*$", re.MULTILINE)
_NPB_STARTED, _RING_STARTED = b"Time step", b"iteration"
"""Texts that NPB's LU, SP and BT, and wherry-ring, print after their start."""
_NPB_TIME = re.compile(r"Time in seconds\s*=\s*([\d.]+)")
_SHALLOW_RESULT = re.compile(r"^ Time step +\d+ +checksum +\w+", re.MULTILINE)
_NPB_RESULT = re.compile(r"^.*relative error.*$", re.MULTILINE)


@dataclass(frozen=True)
class MoveSchedule:
    """A scheduled move: node, the two hosts it alternates between, seconds after the start, maximum number of rounds.
    `mode` selects how a VM's memory is sent (see `wherry.model.migration_parameters`).
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
    """HPL in Debian's hpcc: seconds of HPL timed from outside, flop rate, checksum of residuals. Without a cluster:
    native, over `transport`."""
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
    """Runs a program that writes `log` and returns the seconds between the appearances of two texts in it. The move
    starts `after` seconds after the first. Raises RunFailed if the program fails, a text does not appear, or the move
    ends after the second text. Without a cluster: native.
    """
    begin, end = marks
    watch, move = _FileWatcher(log, marks), None
    try:
        if cluster is None:
            done = _run_native(testbed, argv, ranks, directory, _TIME_LIMIT, transport)
        else:
            job = testbed.start_job(cluster, argv, ranks, directory, mpi="openmpi", env=ONE_THREAD)
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
    """As `run_timed_by_file`, with the texts on standard output: VMs on emulated hosts write to the user's directories
    only where an NFS server (nfs-ganesha) is installed, and their files may appear late then."""
    job = testbed.start_job(cluster, argv, ranks, directory, mpi="openmpi", env=ONE_THREAD)
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


def _run_native(
    testbed: Testbed, argv: Sequence[str], ranks: int, directory: Path, seconds: float, transport: str
) -> ProgramResult:
    """Runs a program by Open MPI natively. Over TCP its ranks wait as on nodes do; as its users run it, and over shared
    memory, as Open MPI does of its own."""
    words = [*native_mpirun.waiting_as_on_nodes("openmpi"), *argv] if transport == "tcp" else argv
    over = "tcp" if transport == BY_HAND else transport
    return testbed.run_native(words, ranks, directory, seconds, over, env=ONE_THREAD)


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
    """An NPB program of class `npb_class`: its own time and a checksum of its result. Without a cluster: native, over
    `transport`. The time is that of the slowest rank. It is correct also when a VM moves, whose clock stops meanwhile,
    because ranks on other nodes count the time that they wait for it.
    """
    argv = [str(native_program(f"npb-{kernel}-openmpi")), npb_class]
    if cluster is None:
        return npb_values(_run_native(testbed, argv, ranks, directory, _TIME_LIMIT, transport))
    job = testbed.start_job(cluster, argv, ranks, directory, "openmpi", npb_environment(cluster))
    move = _run_move(testbed, job, move_schedule, lambda: job.await_output(_NPB_STARTED)) if move_schedule else None
    values = npb_values(job.wait(_TIME_LIMIT))
    _require_end_after_move(move, job.ended)
    return [*values, *move_values(move)]


def npb_environment(cluster: ClusterShape) -> dict[str, str]:
    """Environment of NPB's ranks on a cluster. A node cannot see its own memory limit, and the kernel kills a rank that
    exceeds it."""
    return {**ONE_THREAD, "NPB_NODE_MEMORY": str(parse_size(cluster.memory))}


def npb_values(done: ProgramResult) -> list[Value]:
    """Parses the output of an NPB program: seconds and checksum of the result."""
    seconds = verified_seconds(done)
    return [seconds, fingerprint("\n".join(line.strip() for line in _NPB_RESULT.findall(done.stdout)))]


def verified_seconds(done: ProgramResult) -> Value:
    """The time printed by a program that prints as NPB's do and verified its result."""
    if "UNSUCCESSFUL" in done.stdout:  # checked before the exit code, because it is more specific
        raise RunFailed("the program's verification did not succeed")
    text = done.require_success()
    match = _NPB_TIME.search(text)
    if not match or "SUCCESSFUL" not in text:
        raise RunFailed("the program printed no verification")
    return Value("seconds", float(match[1]), "s")


def shallow(
    testbed: Testbed,
    cluster: ClusterShape | None,
    size: tuple[int, int, int],
    ranks: int,
    directory: Path,
    move_schedule: MoveSchedule | None = None,
    transport: str = "tcp",
) -> list[Value]:
    """wherry-shallow on (cells in a row, steps, steps between outputs): its own time, and a checksum of all its
    outputs. Without a cluster: native, over `transport`."""
    cells, steps, every = map(str, size)
    argv = [program("shallow", "openmpi"), "--n", cells, "--steps", steps, "--every", every]
    argv += ["--field", str(directory / "heights")] if cluster is None or not cluster.nic else []
    if cluster is None:
        return _shallow_values(_run_native(testbed, argv, ranks, directory, _LONG_TIME_LIMIT, transport))
    job = testbed.start_job(cluster, argv, ranks, directory, "openmpi", ONE_THREAD)
    move = _run_move(testbed, job, move_schedule, lambda: job.await_output(_NPB_STARTED)) if move_schedule else None
    values = _shallow_values(job.wait(_LONG_TIME_LIMIT))
    _require_end_after_move(move, job.ended)
    return [*values, *move_values(move)]


def _shallow_values(done: ProgramResult) -> list[Value]:
    return [verified_seconds(done), fingerprint("\n".join(_SHALLOW_RESULT.findall(done.stdout)))]


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
    """wherry-ring with `memory` MiB for each rank, which writes `pages` pages in each iteration and checks every byte.
    Values: iterations per second, bytes written per second and rank, largest gap."""
    argv = [program("ring", "openmpi"), "--seconds", f"{seconds:g}", "--memory", str(memory), "--pages", str(pages)]
    job = testbed.start_job(cluster, argv, ranks, directory, env=ONE_THREAD)
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
    """Moves a node on which no job runs."""
    testbed.ensure_cluster(cluster)
    return move_values(
        testbed.move(move_schedule.node, move_schedule.hosts, directory, move_schedule.max_rounds, move_schedule.mode)
    )


def move_values(move: Move | None) -> list[Value]:
    """The values of a move; none if there was no move. Raises RunFailed if the move was not completed."""
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
    """Checksum of the printed result, which differs if any digit does."""
    if not text:
        raise RunFailed("the program printed no result")
    return Value(RESULT_CHECKSUM, zlib.crc32(text.encode()), "")


class _FileWatcher:
    """Polls a growing file in a thread and records the wall-clock time of the first appearance of each text."""

    def __init__(self, path: Path, marks: Sequence[str]) -> None:
        self._path, self._marks = path, marks
        self.moments: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def wait(self, mark: str, job: RunningJob) -> None:
        """Returns when the mark has appeared; raises RunFailed if the job ends first."""
        deadline, polls = time.monotonic() + _TIME_LIMIT, 0
        while mark not in self.moments:
            polls += 1
            if time.monotonic() > deadline or (polls % 50 == 0 and job.has_ended()):
                raise RunFailed(f"{mark!r} never appeared in {self._path.name}")
            time.sleep(_POLL)

    def stop(self) -> None:
        """Polls once more and ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        size = 0
        while True:
            final = self._ended.is_set()
            size_now = self._path.stat().st_size if self._path.exists() else 0
            if final or size_now != size:  # a rewritten file may have the same size
                moment, size = time.time(), size_now
                text = self._path.read_text(errors="replace") if size_now else ""
                for mark in self._marks:
                    if mark in text:
                        self.moments.setdefault(mark, moment)
            if final:
                return
            self._ended.wait(_POLL)
