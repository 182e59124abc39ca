"""`cluster-cost`: the overhead of a program on a virtual cluster that never moves, beside native TCP."""

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
from wherry.base.remedies import packages
from wherry.client import Client, identity
from wherry.lab import native_mpirun
from wherry.lab.applications import APPLICATIONS
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.jobs import await_end
from wherry.lab.bench.samples import Samples

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
    "single": {"nodes": 1, "hosts": ["a1"], "cpus": 2.0},
}
"""Clusters by name: nodes of one CPU each, over two hosts of a site, on one host, six on each host; one node of two."""
_LIMIT = 600.0
"""Time limit of a run in seconds."""
_TIME = re.compile(r"Time in seconds = +([\d.]+)")
_MESSAGES = {"8 B": 8, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
"""Sizes of messages in the table, in bytes."""
_PLACES = {"two hosts": ("four", 1.3, 0.85), "one host": ("together", 1.15, 0.95)}
"""Where the two ranks of the ping-pong are: cluster, goal of the time of 8 bytes, goal of the bandwidth at 1 MiB."""
_BESIDE = {"one host, by its memory": "together", "one node": "single"}
"""Where they are besides, which is compared with each other."""
_SIZES = {"8 B": (8, 2.0), "64 KiB": (64 << 10, 1.1), "128 KiB": (128 << 10, 1.1), "256 KiB": (256 << 10, 1.1)}
"""Sizes of messages there, in bytes; goals of the time by the host's memory, beside that in one node."""
_MAX_GOAL, _MEAN_GOAL = Goal(at_most=1.08), Goal(at_most=1.02)
_STALL = 200e-6
"""Goal: how much longer than natively a message may take at the 99.9th percentile, in seconds."""
_SQUARE = ("bt", "sp")
"""NPB programs that run with a square number of ranks only."""


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
    quick_settings = {
        "programs": "cg",
        "classes": "W",
        "ranks": "2",
        "apps": "",
        "crowds": "",
        "ring": 0,
        "messages": 500,
    }
    keeps_clusters = True
    remarks = (
        "Native ranks use TCP over the loopback interface, with the settings that ranks on a cluster have. They wait "
        "as their MPI does of its own, as a user runs them: Open MPI yields where ranks outnumber the processors, "
        "MPICH polls on, which with more ranks than processors costs it far more than a cluster does.",
        "The bandwidth is that of the mean time of a message in a ping-pong.",
    )

    programs: str = "bt,cg,ep,ft,is,lu,mg,sp"
    """NPB programs, separated by commas."""
    classes: str = "W,A"
    ranks: str = "2,4"
    mpis: str = "openmpi,mpich"
    apps: str = "lammps,gromacs"
    """Applications, for Open MPI; missing ones (make setup-apps) are left out."""
    crowds: str = "12,16"
    """Numbers of ranks that share the machine's processors, Open MPI, CG and LU of class A."""
    ring: int = 10
    """Seconds for which four ranks pass messages in a ring; 0: not."""
    messages: int = 3000
    """Repetitions of the ping-pong for each size, and exchanges before them that do not count."""

    def _npb(self) -> list[Levels]:
        found = []
        for mpi in _words(self.mpis):
            for size in _words(self.classes):
                for ranks in map(int, _words(self.ranks)):
                    names = [
                        name for name in _words(self.programs) if name not in _SQUARE or math.isqrt(ranks) ** 2 == ranks
                    ]
                    found += [_task("npb", mpi, f"{name}:{size}", ranks) for name in names]
        return found

    def _apps(self) -> list[Levels]:
        there = [name for name in _words(self.apps) if not APPLICATIONS[name].why_missing()]
        return [_task("app", "openmpi", name, int(ranks)) for name in there for ranks in _words(self.ranks)]

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

    def _together(self) -> list[Levels]:
        return [_task("ping-pong", mpi, place, 2) for mpi in _words(self.mpis) for place in _BESIDE]

    def levels(self) -> Sequence[Levels]:
        tasks = [*self._npb(), *self._apps(), *self._crowds(), *self._others()]
        each = [{**task, "by": by} for task in tasks for by in ("native", "cluster")]
        return [*each, *({**task, "by": "cluster"} for task in self._together())]

    def prepare(self, client: Client) -> None:
        client.wait(client.fabric_up(_FABRIC, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        kind, mpi, what = levels["kind"], levels["mpi"], levels["what"]
        cluster = "four"
        if kind == "app":
            directory = directory / what
            argv = _app_command(what, directory)
        elif kind in ("npb", "crowd"):
            program, _, size = what.partition(":")
            argv = [f"npb-{program}-{mpi}", size]
            cluster = "crowd" if kind == "crowd" else cluster
        elif kind == "ping-pong":
            cluster = _PLACES[what][0] if what in _PLACES else _BESIDE[what]
            count = str(self.messages)
            argv = [f"wherry-pingpong-{mpi}", "--max", str(1 << 20), "--warm", count, "--repeat", count]
        elif kind == "ring":
            argv = [f"wherry-ring-{mpi}", "--json", "--memory", "1", "--size", "1024", "--seconds", str(self.ring)]
        else:
            argv = [f"wherry-ring-{mpi}", "--json", "--memory", "1", "--seconds", "0.001"]
        if levels["by"] == "native":
            began = time.monotonic()
            output = _natively(argv, levels["ranks"], mpi, directory)
        else:
            _ensure(client, cluster, directory)
            began = time.monotonic()
            by_memory = what == "one host, by its memory"
            output = _on_cluster(client, cluster, argv, levels["ranks"], mpi, directory, by_memory)
        seconds = time.monotonic() - began
        yield _app_sample(what, directory, seconds) if kind == "app" else _sample(kind, output, seconds)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for task in self._npb():
            rows.append(_compared(samples, task, "seconds", f"{_label(task)}: s", _MAX_GOAL))
        for mpi in _words(self.mpis):
            means = _geometric_means(samples, mpi)
            rows.append(Comparison(f"NPB, {_TITLES[mpi]}: geometric mean of the ratios", means, goal=_MEAN_GOAL))
        for task in self._apps():
            label = f"{APPLICATIONS[task['what']].text.split(',')[0]}, {task['ranks']} ranks: s"
            rows.append(_compared(samples, task, "seconds", label, _MAX_GOAL))
        for task in self._crowds():
            label = f"{_label(task)} on {os.cpu_count()} processors: s"
            rows.append(_compared(samples, task, "seconds", label, Goal(at_most=0.9)))
        for task in self._others():
            rows += self._rows(samples, task)
        for mpi in _words(self.mpis):
            ways = [_task("ping-pong", mpi, place, 2) for place in (*_BESIDE, "one host")]
            for name, (size, goal) in _SIZES.items():
                ours, node, network = (samples.values(f"us.{size}", **way, by="cluster") for way in ways)
                label = f"{name}, {_TITLES[mpi]}, one host, by its memory: \N{MICRO SIGN}s, beside"
                rows.append(Comparison(f"{label} one node", ours, node, Goal(at_most=goal)))
                rows.append(Comparison(f"{label} the network", ours, network))
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


def _app_command(name: str, directory: Path) -> list[str]:
    """The command of an application, whose input is made once."""
    application = APPLICATIONS[name]
    directory.mkdir(exist_ok=True)

    def native(words: list[str], where: Path) -> None:
        done = subprocess.run(words, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        _checked(done.returncode, done.stdout, done.stderr)

    program = shutil.which(application.program) or application.program
    (directory / application.log).unlink(missing_ok=True)
    return application.prepare(native, program, application.steps[1], directory)


def _app_sample(name: str, directory: Path, whole: float) -> Row:
    application = APPLICATIONS[name]
    log = (directory / application.log).read_text(errors="replace")
    if (seconds := application.seconds_of(log, application.steps[1])) is None:
        raise Failed(Code.FAILED, f"{name} did not come to its last step", log[-200:])
    return {"seconds": seconds, "whole": whole}


def _program(name: str, directory: Path) -> str:
    """A copy of the program, which nodes see, in the directory that jobs may use. One of the system is there."""
    if "/" in name:
        return name
    path = directory / name
    if not path.exists():
        shutil.copy(native_program(name), path)
    return str(path)


def _natively(argv: Sequence[str], ranks: int, mpi: str, directory: Path) -> str:
    launcher = shutil.which(native_mpirun.LAUNCHERS[mpi])
    if launcher is None:
        raise Refused(
            Code.UNSUPPORTED,
            f"{native_mpirun.LAUNCHERS[mpi]} is not installed",
            "",
            packages("openmpi-bin mpich"),
        )
    words = [launcher, *native_mpirun.options(mpi, "tcp"), "-n", str(ranks), _program(argv[0], directory), *argv[1:]]
    done = subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, **native_mpirun.environment(mpi, "tcp")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    return _checked(done.returncode, done.stdout, done.stderr)


def _on_cluster(
    client: Client, cluster: str, argv: Sequence[str], ranks: int, mpi: str, directory: Path, by_memory: bool
) -> str:
    words, owner = [_program(argv[0], directory), *argv[1:]], identity.process_owner(directory)
    job = await_end(client, client.run(cluster, words, ranks, mpi, owner=owner, host_memory=by_memory))
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
    counted = {*_MESSAGES.values(), *(size for size, _ in _SIZES.values())}
    row = {f"us.{size}": 1e6 * sizes[size]["mean"] for size in counted}
    return {**row, "gbit": sizes[1 << 20]["bits_per_second"] / 1e9, "p999.8": 1e6 * sizes[8]["p999"]}
