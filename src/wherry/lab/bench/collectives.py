"""`collectives`: time of collectives over two sites, by the MPI's own algorithms and by sites."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.base.units import parse_duration
from wherry.client import Client, identity
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.jobs import await_end
from wherry.lab.bench.samples import Samples
from wherry.model.job_request import Layout

_TITLES = {"mpich": "MPICH", "openmpi": "Open MPI"}
_MEANS = {"mpich": Goal(at_least=2.5), "openmpi": Goal(at_least=2.2)}
"""Goals of the geometric mean of default : by sites."""
_NEVER = Goal(at_most=1 / 0.95)
_SMALL, _SHORT = 1.25, 8
"""Goal of operations of so many bytes: one-way latencies of the link."""
_OPERATIONS = ("barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall")
_CLUSTER = "split"
_WARM = 2
"""Calls of each case that do not count where nothing is chosen."""


@dataclass(frozen=True)
class Collectives(Benchmark):
    """One job for each MPI and way. Each case is called several times before it counts, so that connections are there
    and choices by measuring are made; then all ranks begin at one moment, and the last one to end counts. Ranks
    are `placed` at random over the nodes of both sites, the same in all runs of a benchmark, or in blocks.
    """

    name = "collectives"
    compares = "Time of collectives over two sites (ms) by sites, beside the MPI's own"
    duration = ("ten minutes", "a minute")
    columns = ("by sites", "own")
    quick_repetitions = 1
    quick_settings = {"sizes": 2, "rounds": 2}  # noqa: RUF012
    keeps_clusters = True

    nodes: int = 6
    """Nodes at each site, with one rank each."""
    latency: str = "10ms"
    """One-way latency of the link."""
    bandwidth: str = "1Gbit/s"
    placed: Literal["random", "blocks"] = "random"
    sizes: int = 5
    """Sizes of each operation, of five from 8 B to 1 MiB (64 KiB where each rank gets the data of all)."""
    rounds: int = 5
    """Calls of each case that count, in a run."""
    warm: int = 8
    """Calls of each case before them, by sites."""

    def __post_init__(self) -> None:
        if not 2 <= self.sizes <= 5 or self.rounds < 1 or self.nodes < 1:
            raise ValueError("2 to 5 sizes, at least a round and a node at each site")

    def levels(self) -> Sequence[Levels]:
        return [{"mpi": mpi, "way": way} for mpi, way in product(_TITLES, ("own", "sites"))]

    def prepare(self, client: Client) -> None:
        hosts = [
            {"name": f"{site}{number}", "site": site, "cores": 1, "memory": "512MiB"}
            for site in "ab"
            for number in range(1, self.nodes + 1)
        ]
        link = {"between": ["a", "b"], "latency": self.latency, "bandwidth": self.bandwidth}
        about = {"kind": "fabric", "version": 1, "name": "apart", "sites": [{"name": "a"}, {"name": "b"}]}
        client.wait(client.fabric_up({**about, "hosts": hosts, "links": [link]}, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        owner, mpi = identity.process_owner(directory), levels["mpi"]
        if not any(cluster["name"] == _CLUSTER for cluster in client.clusters()):
            spec = {"name": _CLUSTER, "nodes": 2 * self.nodes, "cpus": 1, "memory": "256MiB", "placement": "spread"}
            client.wait(client.up(spec, "the benchmark's cluster", owner).id)
        program = directory / f"collectives-{mpi}"
        shutil.copy(native_program(f"wherry-collectives-{mpi}"), program)
        warm = self.warm if levels["way"] == "sites" else min(self.warm, _WARM)
        argv = [str(program), str(self.sizes), str(self.rounds), str(warm)]
        layout = Layout(rankfile=tuple(self._seats(client)))
        job = client.run(
            _CLUSTER, argv, 2 * self.nodes, mpi, owner=owner, layout=layout, site_collectives=levels["way"] == "sites"
        )
        ended = await_end(client, job)
        output = b"".join(data for stream, _, data in client.output(job.id, follow=False) if stream == "stdout")
        rows = read_cases(output.decode())
        if ended.exit_code or not rows:
            raise Failed(Code.FAILED, f"the program of {mpi} ended with {ended.exit_code}", ended.reason)
        yield from rows

    def _seats(self, client: Client) -> list[str]:
        """The node of each rank."""
        nodes = sorted(client.nodes(_CLUSTER), key=lambda node: (node.host, node.name))
        names = [node.name for node in nodes]
        if self.placed == "random":
            random.Random(self.nodes).shuffle(names)  # noqa: S311 - a placement, not a secret
        return names

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for mpi, title in _TITLES.items():
            cases = {(row["what"], row["bytes"]) for row in samples.good(mpi=mpi)}
            order = sorted(cases, key=lambda case: (_OPERATIONS.index(case[0]), case[1]))
            for what, size in order:
                where = {"mpi": mpi, "what": what, "bytes": size}
                ours, own = (samples.values("ms", **where, way=way) for way in ("sites", "own"))
                rows.append(Comparison(f"{title}: {what} {size} B", ours, own, _NEVER))
                if size <= _SHORT:
                    bound = Goal(at_most=1e3 * _SMALL * parse_duration(self.latency))
                    rows.append(Comparison(f"{title}: {what} {size} B, by itself", ours, goal=bound))
            means = geometric_means(samples, "turn", mpi=mpi)
            rows.append(Comparison(f"{title}: geometric mean of own : by sites", means, goal=_MEANS[mpi]))
        return rows


def read_cases(output: str) -> list[Row]:
    """A sample for each round of each case that the program wrote."""
    rows = list[Row]()
    for line in output.splitlines():
        case = json.loads(line)
        problem = {} if case["right"] else {"ok": False, "problem": f"the result of {case['what']} is wrong"}
        rows += [{"what": case["what"], "bytes": case["bytes"], "ms": 1e3 * one, **problem} for one in case["seconds"]]
    return rows


def geometric_means(samples: Samples, over: str, **where: Any) -> list[float]:
    """For each value of the field `over`, the geometric mean of own : by sites over the cases of all operations with
    data that both ways have, by their medians; of samples whose fields equal `where`."""
    found = []
    for value in sorted({row[over] for row in samples.good(**where)}):
        times: dict[tuple[str, int], dict[str, list[float]]] = {}
        for row in samples.good(**where, **{over: value}):
            if row["bytes"]:
                times.setdefault((row["what"], row["bytes"]), {}).setdefault(row["way"], []).append(row["ms"])
        logs = [math.log(_middle(ways["own"]) / _middle(ways["sites"])) for ways in times.values() if len(ways) == 2]
        found += [math.exp(fmean(logs))] if logs else []
    return found


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
