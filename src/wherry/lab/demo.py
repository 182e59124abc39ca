"""`wherry demo`: HPL natively, on a virtual cluster, and on the cluster while one node moves live.

The four variants are interleaved, at least three times, so that background load affects all alike. A run counts only
when HPL's residual checks pass. Times are measured outside the nodes, between two lines of HPL's output file.
Everything belongs to the instance `demo`, which is removed at the end, however that comes.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import as_root, instance
from wherry.base.remedies import packages
from wherry.base.units import format_duration, format_size
from wherry.client import Client, identity
from wherry.lab import hpcc, native_mpirun
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import temporary_instance
from wherry.lab.demo_page import MOVED, NATIVE, SHARED, VARIANTS, DemoPage, Variant
from wherry.lab.environment import environment, load
from wherry.lab.hpcc_watch import HpccWatch
from wherry.lab.interleave import interleaved
from wherry.lab.report.console import Progress, print_table

_RANKS = 4
_CLUSTER = {"kind": "container", "version": 1, "name": "demo", "nodes": _RANKS, "cpus": 1.0, "memory": "512MiB"}
_MOVED = "demo-2"
_HOSTS = ("a1", "b1")
"""The node moves back and forth between these; it starts on the second."""
_SEED = 4
_RUN_LIMIT = 600.0
_OUTPUT_FILE = "output"
"""File with the output of a native run."""
_MAX_CONSECUTIVE_FAILURES = 3
_MEMORY, _DISK = 2**30, 256 * 2**20
"""Bytes that must be available: four ranks with the daemon, and the images of a move with the samples."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""How ranks wait is left to Wherry on the cluster, and natively to Open MPI: it yields where they outnumber the
processors, as when a user starts it."""


def run(out: Path, reps: int, n: int, keep: bool) -> None:
    """Runs every variant `reps` times and reports. Unless `keep`, the instance is removed at the end."""
    if reps < 3:
        raise Refused(Code.USAGE, f"--reps {reps} is too few for a median", "", "wherry demo --reps 3")
    if not 100 <= n <= 1500:
        raise Refused(Code.USAGE, f"--n {n} is out of range", "100 to 1500 keep a run below a minute", "wherry demo")
    out = out.resolve()
    os.environ.setdefault("WHERRY_INSTANCE", "demo")
    check_machine(out)
    print(announcement(reps, n), file=sys.stderr, flush=True)
    demo = Demo(out, hpcc.Problem(n=n), reps)
    with Progress("making a virtual cluster") as progress:
        with temporary_instance("demo", keep=keep):
            demo.run(progress)
            if not keep:
                progress.say("taking down the demo's instance")
    demo.report()


def check_machine(out: Path) -> None:
    """Refused, with the remedy, when the demo could not run to its end on this machine."""
    if os.geteuid() != 0:
        raise Refused(Code.PERMISSION, "the demo needs root", "it makes a cluster", as_root(sys.argv[1:] or ["demo"]))
    if not shutil.which("hpcc"):
        raise Refused(
            Code.UNSUPPORTED,
            "hpcc is not installed",
            "the demo runs HPL in it",
            packages("hpcc"),
        )
    if _mpirun() is None:
        raise Refused(
            Code.UNSUPPORTED,
            "Open MPI is not installed",
            "hpcc is linked against it",
            packages("openmpi-bin"),
        )
    if (free := _available_memory()) < _MEMORY:
        why = f"four ranks of HPL and the daemon need {format_size(_MEMORY)}"
        what = f"only {format_size(free)} of memory is available"
        raise Refused(Code.NO_CAPACITY, what, why, "end other programs (ps aux --sort=-rss | head), then: wherry demo")
    for directory, again in ((out, "wherry demo --out DIRECTORY"), (instance().state, ""), (instance().run, "")):
        there = next(path for path in (directory, *directory.parents) if path.exists())
        if (room := shutil.disk_usage(there).free) < _DISK:
            what = f"only {format_size(room)} is free at {there}"
            why = f"samples and the images of a move need {format_size(_DISK)}"
            make_room = f"remove files there (df -h {there})"
            raise Refused(Code.NO_CAPACITY, what, why, f"{make_room}, or: {again}" if again else make_room)


def announcement(reps: int, n: int) -> str:
    """The next steps, and about how long they take; rounded, from runs on two cores that had nothing else to do."""
    runs = reps * len(VARIANTS)
    minutes = max(1, round(runs * (10 + 18 * (n / 1000) ** 2) / 60))
    about = "a minute" if minutes == 1 else f"{minutes} minutes"
    return (
        f"demo: makes a virtual cluster, runs HPL {runs} times (natively, on the cluster, and while a node moves), "
        f"writes a report, takes the cluster down: about {about} on two idle cores"
    )


class Demo:
    """One demonstration: runs, samples, report."""

    def __init__(self, out: Path, problem: hpcc.Problem, reps: int) -> None:
        self._out, self._problem, self._reps = out, problem, reps
        self._samples = Samples(out / "samples.jsonl", {"demo": problem.description, "environment": environment()})
        self._environment = dict(self._samples.header["environment"])

    def run(self, progress: Progress) -> None:
        """Makes all runs, in a random order within each turn that depends on a fixed seed."""
        planned = [
            (turn, variant) for turn in range(self._reps) for variant in interleaved(VARIANTS, f"{_SEED}/demo/{turn}")
        ]
        with Client() as client:
            progress.say(f"making a virtual cluster of {_RANKS} nodes")
            client.wait(client.up(dict(_CLUSTER), "the demo's cluster", identity.owner(self._out)).id, progress.note)
            client.predict(_MOVED, _destination(client))  # refuses now, not in the middle of a run
            began, failures = time.monotonic(), 0
            for done, (turn, variant) in enumerate(planned, 1):
                name = f"run {done} of {len(planned)}, {variant.text}"
                note = functools.partial(_note, progress, name)
                problem, said = self._run_once(client, variant, turn, note)
                left = (time.monotonic() - began) / done * (len(planned) - done)
                progress(done, len(planned), f"{variant.text}: {said}", left)
                failures = failures + 1 if problem else 0
                if failures == _MAX_CONSECUTIVE_FAILURES:
                    raise self._failed(f"{failures} runs in a row failed", problem)
        self._environment["load after"] = load()
        for variant in VARIANTS:
            if not self._samples.values("seconds", variant=variant.name):
                bad = [row["problem"] for row in self._samples.bad() if row["variant"] == variant.name]
                raise self._failed(f"no run of {variant.text!r} counts", bad[-1] if bad else "")

    def _failed(self, what: str, why: str) -> Failed:
        return Failed(Code.FAILED, what, why, f"look into {self._out / 'runs'}, and: {as_root(['doctor'])}")

    def _run_once(self, client: Client, variant: Variant, turn: int, note: Callable[[str], None]) -> tuple[str, str]:
        """Makes one run and stores its sample. Returns its problem, empty when it counts, and what to say of it."""
        directory = self._out / "runs" / f"{turn}-{variant.name}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        (directory / hpcc.INPUT).write_text(self._problem.text())
        note("hpcc's other tests come first")
        problem, exit_code = "", None
        move = (lambda: client.move(_MOVED, _destination(client))) if variant is MOVED else None
        with HpccWatch(directory, self._problem, move, lambda count: note(self._count(count))) as watch:
            try:
                exit_code = (
                    _native(variant, directory) if variant in (NATIVE, SHARED) else _on_cluster(client, directory)
                )
            except subprocess.TimeoutExpired:
                problem = f"did not end within {_RUN_LIMIT:.0f} s"
        result = hpcc.read(directory / hpcc.OUTPUT)
        problem = problem or watch.problem or self._problem_of(result, exit_code, directory)
        sample: dict[str, Any] = {
            "variant": variant.name,
            "turn": turn,
            "ok": not problem,
            "problem": problem,
            "seconds": watch.seconds,
            "residuals_passed": result.passed,
            "inside_seconds": list(result.times),
            "load": load(),
            **watch.progress(),
        }
        if moved := watch.move:
            sample |= {
                "downtime": moved.downtime,
                "total": moved.total,
                "bytes": moved.bytes,
                "move": moved.model_dump(),
            }
        self._samples.add(**sample)
        downtime = f", downtime {format_duration(moved.downtime)}" if moved and moved.downtime else ""
        return problem, problem or f"{watch.seconds:.2f} s{downtime}"

    def _count(self, count: int) -> str:
        return f"HPL, {count} of {self._problem.runs}"

    def _problem_of(self, result: hpcc.Result, exit_code: int | None, directory: Path) -> str:
        output = directory / _OUTPUT_FILE
        if exit_code != 0:
            return f"exit code {exit_code}{f', see {output}' if output.exists() else ''}"
        if not result.verified(self._problem):
            what = f"{result.passed} of {self._problem.runs} residual checks passed"
            return f"{what}, see {directory / hpcc.OUTPUT}"
        return ""

    def report(self) -> None:
        """Writes report.html; prints verdict, tables and chart, and at the end the path of the report."""
        page = DemoPage(self._samples, self._problem, self._environment)
        path = self._out / "report.html"
        page.report().write(path)
        print(f"\n{page.verdict()}")
        print_table(page.runs_table(), page.medians())
        print_table(page.moves_table())
        for sample in self._samples.bad():
            print(f"run {sample['turn'] + 1} of {sample['variant']} failed and does not count: {sample['problem']}")
        print(f"samples: {self._samples.path}\nreport:\n{path}")


def _note(progress: Progress, name: str, text: str) -> None:
    progress.note(f"{name}: {text}")


def _destination(client: Client) -> str:
    """Where the node is not."""
    current = next(node.host for node in client.nodes("demo") if node.name == _MOVED)
    return _HOSTS[current == _HOSTS[0]]


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _mpirun() -> str | None:
    return shutil.which(native_mpirun.LAUNCHERS["openmpi"]) or shutil.which("mpirun")


def _native(variant: Variant, directory: Path) -> int:
    """Runs it in a session of its own, which Ctrl-C does not reach: it is ended here, with its ranks."""
    command = [str(_mpirun()), *native_mpirun.options("openmpi", variant.transport), "-n", str(_RANKS), "hpcc"]
    with (directory / _OUTPUT_FILE).open("wb") as output:
        launcher = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return launcher.wait(_RUN_LIMIT)
    finally:
        _end(launcher)


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Ends a launcher that still runs; it ends its ranks, which have process groups of their own, when it is asked."""
    if launcher.poll() is None:
        launcher.terminate()
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(10)
    if launcher.poll() is None:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def _on_cluster(client: Client, directory: Path) -> int | None:
    env = {**os.environ, **_ONE_THREAD}
    job = client.run("demo", [str(shutil.which("hpcc"))], _RANKS, env=env, owner=identity.owner(directory))
    try:
        for _ in client.output(job.id, seconds=_RUN_LIMIT):
            continue
    except Failed as error:
        if error.code == Code.TIMED_OUT:
            client.cancel_job(job.id)
            raise subprocess.TimeoutExpired("hpcc", _RUN_LIMIT) from None
        raise
    return client.job(job.id).exit_code
