"""`cluster-cost`: what a program pays for running on a virtual cluster that never moves, beside native TCP."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program
from wherry.client import Client, identity
from wherry.lab import native_mpirun
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.two_sites_job import await_end

_FABRIC = {
    "kind": "fabric",
    "version": 1,
    "name": "cluster-cost",
    "sites": [{"name": "a"}],
    # More cores than most machines have: nodes are limited by their own CPUs, not by those of their host.
    "hosts": [{"name": f"a{number}", "site": "a", "cores": 16, "memory": "16GiB"} for number in (1, 2)],
}
_CLUSTERS: Mapping[str, dict[str, Any]] = {
    "four": {"nodes": 4, "hosts": ["a1", "a2"], "placement": {"spread": "host"}},
    "together": {"nodes": 2, "hosts": ["a1"]},
    "crowd": {"nodes": 12, "hosts": ["a1", "a2"], "placement": {"spread": "host"}},
}
"""Clusters by name: nodes of one CPU each, over two hosts of a site, on one host, and six on each host."""
_LIMIT = 600.0
"""Time limit of a run in seconds."""
_TIME = re.compile(r"Time in seconds = +([\d.]+)")
_MESSAGES = {"8 B": 8, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
"""Sizes of messages in the table, in bytes."""
_PLACES = {"two hosts": ("four", 1.3, 0.85), "one host": ("together", 1.15, 0.95)}
"""Where the two ranks of the ping-pong are: cluster, goal of the time of 8 bytes, goal of the bandwidth at 1 MiB."""
_MOST, _MEAN = Goal(at_most=1.08), Goal(at_most=1.02)
_STALL = 200e-6
"""Goal: how much longer than natively a message may take at the 99.9th percentile, in seconds."""
_SHARED = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""The MPI's own yielding, for native ranks of which many share a processor."""


@dataclass(frozen=True)
class ClusterCost(Benchmark):
    """Each run is one program, natively or on a cluster; the clusters stay up, and nothing moves.

    The time of an NPB program is its own, of the computation alone; that of `start` is from the request, or the call of
    `mpirun`, to the end of a program that passes one message in a ring.
    """

    name = "cluster-cost"
    compares = "Times of programs on a virtual cluster, beside the same ranks natively over TCP"
    duration = ("three hours", "a minute")
    columns = ("cluster", "native")
    repetitions = 10
    quick_settings = {"programs": "cg,lu", "classes": "W", "ranks": "2", "crowds": "", "ring": 0, "messages": 1000}
    keeps_clusters = True
    remarks = (
        "Native ranks use TCP over the loopback interface, with the settings that ranks on a cluster have.",
        "The bandwidth is that of the mean time of a message in a ping-pong.",
    )

    programs: str = "bt,cg,ep,ft,is,lu,mg,sp"
    """NPB programs, separated by commas."""
    classes: str = "W,A"
    ranks: str = "2,4"
    mpis: str = "openmpi,mpich"
    crowds: str = "12,16"
    """Numbers of ranks that share the machine's processors, Open MPI, CG and LU of class A."""
    ring: int = 10
    """Seconds for which four ranks pass messages in a ring; 0: not."""
    messages: int = 3000
    """Repetitions of the ping-pong for each size."""

    def _npb(self) -> list[Levels]:
        found = []
        for mpi in _words(self.mpis):
            for size in _words(self.classes):
                for ranks in map(int, _words(self.ranks)):
                    found += [_task("npb", mpi, f"{name}:{size}", ranks) for name in _words(self.programs)]
        return found

    def _crowds(self) -> list[Levels]:
        counts = [int(word) for word in _words(self.crowds)]
        return [_task("crowd", "openmpi", f"{name}:A", ranks) for name in ("cg", "lu") for ranks in counts]

    def _others(self) -> list[Levels]:
        found = []
        for mpi in _words(self.mpis):
            found += [_task("ping-pong", mpi, place, 2) for place in _PLACES]
            found += [_task("ring", mpi, "ring", 4)] if self.ring else []
            found.append(_task("start", mpi, "start", 4))
        return found

    def levels(self) -> Sequence[Levels]:
        tasks = [*self._npb(), *self._crowds(), *self._others()]
        return [{**task, "by": by} for task in tasks for by in ("native", "cluster")]

    def prepare(self, client: Client) -> None:
        client.wait(client.fabric_up(_FABRIC, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        kind, mpi, what = levels["kind"], levels["mpi"], levels["what"]
        cluster = "four"
        env: Mapping[str, str] = {}
        if kind in ("npb", "crowd"):
            program, _, size = what.partition(":")
            argv = [f"npb-{program}-{mpi}", size]
            if kind == "crowd":
                cluster, env = "crowd", _SHARED
        elif kind == "ping-pong":
            cluster = _PLACES[what][0]
            argv = [f"wherry-pingpong-{mpi}", "--max", str(1 << 20), "--repeat", str(self.messages)]
        elif kind == "ring":
            argv = [f"wherry-ring-{mpi}", "--json", "--memory", "1", "--size", "1024", "--seconds", str(self.ring)]
        else:
            argv = [f"wherry-ring-{mpi}", "--json", "--memory", "1", "--seconds", "0.001"]
        if levels["by"] == "native":
            began = time.monotonic()
            output = _natively(argv, levels["ranks"], mpi, directory, env)
        else:
            _ensure(client, cluster, directory)
            began = time.monotonic()
            output = _on_cluster(client, cluster, argv, levels["ranks"], mpi, directory)
        yield _sample(kind, output, time.monotonic() - began)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for task in self._npb():
            rows.append(_compared(samples, task, "seconds", f"{_label(task)}: s", _MOST))
        for mpi in _words(self.mpis):
            means = _geometric_means(samples, mpi)
            rows.append(Comparison(f"NPB, {_TITLES[mpi]}: geometric mean of the ratios", means, goal=_MEAN))
        for task in self._crowds():
            label = f"{_label(task)} on {os.cpu_count()} processors: s"
            rows.append(_compared(samples, task, "seconds", label, Goal(at_most=0.9)))
        for task in self._others():
            rows += self._rows(samples, task)
        return rows

    def _rows(self, samples: Samples, task: Levels) -> list[Comparison]:
        title, kind = _TITLES[task["mpi"]], task["kind"]
        if kind == "start":
            return [_compared(samples, task, "seconds", f"a program that ends at once, 4 ranks, {title}: s", None)]
        if kind == "ring":
            mpich = Goal(at_least=1.0) if task["mpi"] == "mpich" else None
            rows = [_compared(samples, task, "rounds", f"ring of 4 ranks, {title}: rounds", mpich)]
            ours, theirs = (samples.values("rounds", **{**task, "mpi": mpi}, by="cluster") for mpi in _TITLES)
            if mpich and ours and theirs:
                rows.append(Comparison("the same, beside Open MPI on the cluster", theirs, ours, Goal(at_least=0.5)))
            return rows
        _, slower, slowest = _PLACES[task["what"]]
        where = f"{task['what']}, {title}"
        rows = []
        for name, size in _MESSAGES.items():
            goal = Goal(at_most=slower) if size == 8 else None
            rows.append(_compared(samples, task, f"us.{size}", f"{name}, {where}: \N{MICRO SIGN}s", goal))
        rows.append(_compared(samples, task, "gbit", f"1 MiB, {where}: Gbit/s", Goal(at_least=slowest)))
        late = _compared(samples, task, "p999.8", "", None)
        excess = [one - other for one, other in zip(late.samples, late.baseline, strict=False)]
        bound = Goal(at_most=_STALL * 1e6)
        label = f"8 B, {where}: 99.9th percentile, \N{MICRO SIGN}s more than natively"
        return [*rows, Comparison(label, excess, goal=bound)]


_TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _task(kind: str, mpi: str, what: str, ranks: int) -> Levels:
    return {"kind": kind, "mpi": mpi, "what": what, "ranks": ranks}


def _label(task: Levels) -> str:
    program, _, size = task["what"].partition(":")
    return f"{program.upper()} {size}, {task['ranks']} ranks, {_TITLES[task['mpi']]}"


def _compared(samples: Samples, task: Levels, field: str, label: str, goal: Goal | None) -> Comparison:
    ours, native = (samples.values(field, **task, by=by) for by in ("cluster", "native"))
    return Comparison(label, ours, native, goal)


def _geometric_means(samples: Samples, mpi: str) -> list[float]:
    """For each turn, the geometric mean of cluster : native over the tasks that count in both."""
    ratios: dict[int, list[float]] = {}
    for ours in samples.good(kind="npb", mpi=mpi, by="cluster"):
        same = {key: ours[key] for key in ("turn", "kind", "mpi", "what", "ranks")}
        for native in samples.good(**same, by="native"):
            ratios.setdefault(ours["turn"], []).append(math.log(ours["seconds"] / native["seconds"]))
    return [math.exp(fmean(logs)) for logs in ratios.values()]


def _ensure(client: Client, name: str, directory: Path) -> None:
    """Makes the cluster unless it is there."""
    if not any(cluster["name"] == name for cluster in client.clusters()):
        spec = {"kind": "container", "version": 1, "name": name, "cpus": 1.0, "memory": "512MiB", **_CLUSTERS[name]}
        client.wait(client.up(spec, "the benchmark's cluster", identity.process_owner(directory)).id)


def _program(name: str, directory: Path) -> str:
    """A copy of the program, which nodes see, in the directory that jobs may use."""
    path = directory / name
    if not path.exists():
        shutil.copy(native_program(name), path)
    return str(path)


def _natively(argv: Sequence[str], ranks: int, mpi: str, directory: Path, env: Mapping[str, str]) -> str:
    launcher = shutil.which(native_mpirun.LAUNCHERS[mpi])
    if launcher is None:
        raise Refused(Code.UNSUPPORTED, f"{native_mpirun.LAUNCHERS[mpi]} is not installed", "", "make setup")
    words = [launcher, *native_mpirun.options(mpi, "tcp"), "-n", str(ranks), _program(argv[0], directory), *argv[1:]]
    done = subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, **native_mpirun.environment(mpi, "tcp"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    return _checked(done.returncode, done.stdout, done.stderr)


def _on_cluster(client: Client, cluster: str, argv: Sequence[str], ranks: int, mpi: str, directory: Path) -> str:
    words = [_program(argv[0], directory), *argv[1:]]
    job = await_end(client, client.run(cluster, words, ranks, mpi, owner=identity.process_owner(directory)))
    texts = {"stdout": "", "stderr": ""}
    for stream, _, data in client.output(job.id, follow=False):
        texts[stream] = texts.get(stream, "") + data.decode(errors="replace")
    return _checked(job.exit_code, texts["stdout"], texts["stderr"])


def _checked(code: int | None, output: str, errors: str) -> str:
    if code != 0:
        raise Failed(Code.FAILED, "the program failed", f"exit code {code}: {(errors or output)[-300:]}")
    return output


def _sample(kind: str, output: str, seconds: float) -> Row:
    if kind == "start":
        return {"seconds": seconds}
    if kind in ("npb", "crowd"):
        match = _TIME.search(output)
        if match is None or "SUCCESSFUL" not in output:
            raise Failed(Code.FAILED, "the program did not verify its result", output[-200:])
        return {"seconds": float(match[1]), "whole": seconds}
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not lines or any(line["errors"] for line in lines):
        raise Failed(Code.FAILED, "a message was lost or wrong", output[-200:])
    if kind == "ring":
        return {"rounds": float(lines[-1]["iterations"])}
    sizes = {line["bytes"]: line for line in lines}
    row = {f"us.{size}": 1e6 * sizes[size]["mean"] for size in _MESSAGES.values()}
    return {**row, "gbit": sizes[1 << 20]["bits_per_second"] / 1e9, "p999.8": 1e6 * sizes[8]["p999"]}
