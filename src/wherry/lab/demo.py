"""`wherry demo`: HPL natively, on a virtual cluster, and on the cluster while one node moves live.

The four variants are interleaved, at least three times, so that background load affects all alike. A run counts only
when HPL's residual checks pass. Times are measured outside the nodes, between two lines of HPL's output file.
Everything belongs to the instance `demo`, which is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.base.units import format_duration, format_size
from wherry.client import Client, identity
from wherry.lab import hpcc, native_mpirun
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import temporary_instance
from wherry.lab.environment import environment, load
from wherry.lab.interleave import interleaved
from wherry.lab.report.console import print_table
from wherry.lab.report.page import Report, Table, svg
from wherry.lab.report.statistics import median, ratio
from wherry.model.records import Move

_RANKS = 4
_CLUSTER = {"kind": "container", "version": 1, "name": "demo", "nodes": _RANKS, "cpus": 1.0, "memory": "512MiB"}
_MOVED = "demo-2"
_HOSTS = ("a1", "b1")
"""The node moves back and forth between these; it starts on the second."""
_SEED = 4
_POLL = 0.005
"""Seconds between two polls of the output file: the error of a time."""
_RUN_LIMIT = 600.0
_OUTPUT_FILE = "output"
"""File with the output of a native run."""
# Ranks share cores: in every variant a waiting rank yields its core to a computing one.
_SHARED_CORES = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    name: str
    text: str
    transport: str = "tcp"


NATIVE = Variant("native", "native, TCP")
SHARED = Variant("native-shm", "native, shared memory", "shm")
CLUSTER = Variant("cluster", "virtual cluster")
MOVED = Variant("moved", "virtual cluster, one move")
VARIANTS = (NATIVE, SHARED, CLUSTER, MOVED)


def run(out: Path, reps: int, n: int, keep: bool) -> None:
    """Runs every variant `reps` times and reports. Unless `keep`, the instance is removed at the end."""
    if reps < 3:
        raise Refused(Code.USAGE, f"--reps {reps} is too few for a median", "", "wherry demo --reps 3")
    if not 100 <= n <= 1500:
        raise Refused(Code.USAGE, f"--n {n} is out of range", "100 to 1500 keep a run below a minute", "wherry demo")
    if not shutil.which("hpcc"):
        raise Refused(Code.UNSUPPORTED, "hpcc is not installed", "the demo runs HPL in it", "make setup")
    out = out.resolve()
    with temporary_instance("demo", keep=keep):
        demo = Demo(out, hpcc.Problem(n=n), reps)
        demo.run()
        if not keep:
            _print_progress("taking down what the demo made")
    demo.report()


class Demo:
    """One demonstration: runs, samples, report."""

    def __init__(self, out: Path, problem: hpcc.Problem, reps: int) -> None:
        self._out, self._problem, self._reps = out, problem, reps
        self._samples = Samples(out / "samples.jsonl", {"demo": problem.description, "environment": environment()})
        self._environment = dict(self._samples.header["environment"])

    def run(self) -> None:
        """Makes all runs, in a random order within each turn that depends on a fixed seed."""
        with Client() as client:
            client.wait(client.up(dict(_CLUSTER), "the demo's cluster", identity.owner(self._out)).id, _print_progress)
            for turn in range(self._reps):
                for variant in interleaved(VARIANTS, f"{_SEED}/demo/{turn}"):
                    self._run_once(client, variant, turn)
        self._environment["load after"] = load()
        for variant in VARIANTS:
            if not self._samples.values("seconds", variant=variant.name):
                raise Failed(Code.FAILED, f"no run of {variant.text!r} counts", f"see {self._samples.path}")

    def _run_once(self, client: Client, variant: Variant, turn: int) -> None:
        directory = self._out / "runs" / f"{turn}-{variant.name}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / hpcc.INPUT).write_text(self._problem.text())
        watch = _OutputWatcher(directory / hpcc.OUTPUT, (lambda: self._move(client)) if variant is MOVED else None)
        problem, exit_code = "", None
        try:
            exit_code = _native(variant, directory) if variant in (NATIVE, SHARED) else _on_cluster(client, directory)
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_RUN_LIMIT:.0f} s"
        watch.stop()
        result = hpcc.read(directory / hpcc.OUTPUT)
        output = f", see {directory / _OUTPUT_FILE}" if (directory / _OUTPUT_FILE).exists() else ""
        problem = problem or watch.problem or ("" if exit_code == 0 else f"exit code {exit_code}{output}")
        if not problem and not result.verified(self._problem):
            problem = f"{result.passed} of {self._problem.runs} residual checks passed"
        sample: dict[str, Any] = {
            "variant": variant.name,
            "turn": turn,
            "ok": not problem,
            "problem": problem,
            "seconds": watch.seconds,
            "residuals_passed": result.passed,
            "inside_seconds": list(result.times),
            "load": load(),
        }
        if watch.move:
            move = watch.move
            sample |= {"downtime": move.downtime, "total": move.total, "bytes": move.bytes, "move": move.model_dump()}
        self._samples.add(**sample)
        downtime = f", downtime {format_duration(watch.move.downtime or 0)}" if watch.move else ""
        _print_progress(
            f"run {turn + 1} of {self._reps}, {variant.text}: {problem or f'{watch.seconds:.2f} s{downtime}'}"
        )

    def _move(self, client: Client) -> Move:
        current = next(node.host for node in client.nodes("demo") if node.name == _MOVED)
        return client.move(_MOVED, _HOSTS[current == _HOSTS[0]])

    def report(self) -> None:
        """Prints the table and writes report.html."""
        tables = [self._runs_table(), self._moves_table()]
        report = Report(
            title="HPL while a node moves",
            summary=(
                f"HPL (N={self._problem.n}, {self._problem.runs} factorisations) in Debian's hpcc, {_RANKS} ranks, "
                f"{self._reps} runs of each variant in turn. Medians with 95 % intervals; below six runs the "
                "interval is the range."
            ),
            tables=tables,
            figures=[("Seconds of each run; the bar is the median.", svg(self._figure()))],
            remarks=[
                "Ratios compare runs of one session on one machine; absolute times are this machine's.",
                "The hosts are emulated on this machine: nothing here shows the latency of a real network.",
                f"{_RANKS} ranks share {self._environment['cpus']} CPUs, so what else runs shows in every row.",
                "Seconds are from the first to the last line of HPL's section as it appears in the output file "
                f"(looked at every {_POLL * 1e3:.0f} ms), by the clock of the machine and not of a node.",
                f"Runs that failed and do not count: {self._samples.failed()}.",
            ],
            environment=self._environment,
        )
        report.write(self._out / "report.html")
        for table in tables:
            print_table(table)
        print(f"\nreport: {self._out / 'report.html'}\nsamples: {self._samples.path}")

    def _seconds(self, variant: Variant) -> list[float]:
        return self._samples.values("seconds", variant=variant.name)

    def _runs_table(self) -> Table:
        native, cluster = self._seconds(NATIVE), self._seconds(CLUSTER)
        rows = []
        for variant in VARIANTS:
            seconds = self._seconds(variant)
            baseline = cluster if variant is MOVED else native
            name = "virtual cluster" if variant is MOVED else "native"
            cost = "" if variant is NATIVE else f"{ratio(seconds, baseline).text()} of {name}"
            middle = median(seconds).value  # HPL prints hundredths of a second, so a small problem may take none
            gflops = f"{self._problem.operations / middle / 1e9:.3g}" if middle else ""
            rows.append((variant.text, median(seconds).text(), gflops, cost))
        return Table("HPL", ("variant", "seconds", "GFLOPS", "cost"), rows)

    def _moves_table(self) -> Table:
        moves = {name: self._samples.values(name, variant=MOVED.name) for name in ("downtime", "total", "bytes")}
        longer = median(self._seconds(MOVED)).value - median(self._seconds(CLUSTER)).value
        rows = [
            ("downtime", f"{median(moves['downtime']).text()} s"),
            ("total move time", f"{median(moves['total']).text()} s"),
            ("bytes sent", format_size(median(moves["bytes"]).value)),
            ("HPL longer by (difference of medians)", f"{longer:.3g} s"),
        ]
        return Table("The move", ("", "median"), rows)

    def _figure(self) -> Any:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(7, 2.6))
        for row, variant in enumerate(reversed(VARIANTS)):
            seconds = self._seconds(variant)
            axes.barh(row, median(seconds).value, color="#9db8d6", height=0.6)
            axes.plot(seconds, [row] * len(seconds), "o", color="#1f3a5f", markersize=4)
        axes.set_yticks(range(len(VARIANTS)), [variant.text for variant in reversed(VARIANTS)])
        axes.set_xlabel("seconds of HPL")
        axes.set_xlim(left=0)
        pyplot.close(figure)
        return figure


class _OutputWatcher:
    """Polls an output file in a thread, and starts the move when HPL begins."""

    def __init__(self, output: Path, move: Any) -> None:
        self._output, self._move = output, move
        self._stop = threading.Event()
        self._mover: threading.Thread | None = None
        self._begin: float | None = None
        self._end: float | None = None
        self.move: Move | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    @property
    def seconds(self) -> float | None:
        """Duration of HPL's section of the output."""
        return None if self._begin is None or self._end is None else self._end - self._begin

    def stop(self) -> None:
        """Ends polling, and waits for the move if there is one."""
        self._stop.set()
        self._thread.join()
        if self._mover is not None:
            self._mover.join()
        if self._move is not None and self.move is None and not self.problem:
            self.problem = "HPL never began, so nothing was moved"

    def _run(self) -> None:
        size = -1
        while True:
            last = self._stop.is_set()
            size_now = self._output.stat().st_size if self._output.exists() else 0
            if size_now != size:
                size, moment = size_now, time.monotonic()
                self._scan(self._output.read_text(errors="replace") if size_now else "", moment)
            if last:
                return
            self._stop.wait(_POLL)

    def _scan(self, text: str, moment: float) -> None:
        if self._begin is None and hpcc.BEGIN in text:
            self._begin = moment
            if self._move is not None:
                self._mover = threading.Thread(target=self._try_move, name="move")
                self._mover.start()
        if self._end is None and hpcc.END in text:
            self._end = moment

    def _try_move(self) -> None:
        try:
            self.move = self._move()
        except Exception as error:  # the run is marked as failed and the demo goes on
            self.problem = f"the move failed: {error}"


def _native(variant: Variant, directory: Path) -> int:
    launcher = shutil.which(native_mpirun.LAUNCHERS["openmpi"]) or shutil.which("mpirun")
    if launcher is None:
        raise Refused(Code.UNSUPPORTED, "Open MPI is not installed", "hpcc is linked against it", "make setup")
    with (directory / _OUTPUT_FILE).open("wb") as output:
        done = subprocess.run(
            [launcher, *native_mpirun.options("openmpi", variant.transport), "-n", str(_RANKS), "hpcc"],
            cwd=directory,
            env={**os.environ, **_SHARED_CORES},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_RUN_LIMIT,
            check=False,
        )
    return done.returncode


def _on_cluster(client: Client, directory: Path) -> int | None:
    env = {**os.environ, **_SHARED_CORES}
    job = client.run("demo", [str(shutil.which("hpcc"))], _RANKS, env=env, owner=identity.owner(directory))
    deadline = time.monotonic() + _RUN_LIMIT
    while job.state.under_way:
        if time.monotonic() > deadline:
            client.cancel_job(job.id)
            raise subprocess.TimeoutExpired("hpcc", _RUN_LIMIT)
        time.sleep(0.05)
        job = client.job(job.id)
    return job.exit_code


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
