"""What a live move over a link takes, beside moves inside a site: `python -m wherry.lab.crossbench`, as root.

A node goes round four hosts under a running ring: inside a site, over the link, inside the other site, and back. So
local and crossing moves take turns in one sitting. A crossing shall take at most 1.25 x bytes / bandwidth, plus the
downtime of a local move, plus 10 round trips. Printed are medians and their ratio to that bound, for the downtime and
for the whole move from the request on; `--json` prints every sample with its phases and the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser
from typing import Any

from wherry.base.paths import native_program
from wherry.base.units import format_size, parse_duration, parse_rate
from wherry.client import Client
from wherry.lab.bench.session import short_sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment, load
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.model.objects import Job

_ROUND = ("b2", "a2", "a3", "b1")
"""Hosts in the order in which the node comes by them; it begins at b1."""
_SLACK, _ROUND_TRIPS = 1.25, 10
_LONGEST = 36_000


def main(words: list[str]) -> None:
    """Measures and prints."""
    parser = ArgumentParser(prog="python -m wherry.lab.crossbench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--memory", default="16,64,256", help="MiB that each rank rewrites, separated by commas")
    parser.add_argument("--reps", type=int, default=5, help="times round: two local and two crossing moves each")
    parser.add_argument("--latency", default="10ms", help="of one way")
    parser.add_argument("--bandwidth", default="1Gbit/s")
    parser.add_argument("--overlay", default="none", choices=("none", "openvpn", "wireguard"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    link = {"latency": asked.latency, "bandwidth": asked.bandwidth, "overlay": asked.overlay}
    samples = list[dict[str, Any]]()
    with short_sitting("crossbn") as client:
        client.wait(client.fabric_up(_fabric(link), "the bench's fabric").id)
        for memory in map(int, asked.memory.split(",")):
            samples += _moves(client, memory, asked.reps)
    if asked.json:
        print(json.dumps({"environment": environment(), "link": link, "samples": samples}))
    else:
        _report(samples, parse_rate(asked.bandwidth), parse_duration(asked.latency))


def _fabric(link: dict[str, str]) -> dict[str, Any]:
    hosts = [{"name": name, "site": name[0], "cores": 2, "memory": "2GiB"} for name in ("a1", "a2", "a3", "b1", "b2")]
    return {
        "kind": "fabric", "version": 1, "name": "crossbench", "sites": [{"name": "a"}, {"name": "b"}], "hosts": hosts,
        "links": [{"between": ["a", "b"], **link}],
    }  # fmt: skip


def _moves(client: Client, memory: int, reps: int) -> list[dict[str, Any]]:
    spec = {
        "kind": "container", "version": 1, "name": "far", "nodes": 2, "cpus": 1.0, "memory": f"{memory + 192}MiB",
        "hosts": ["a1", "b1"],
    }  # fmt: skip
    client.wait(client.up(spec, "the bench's cluster").id)
    argv = [str(native_program("wherry-ring-openmpi")), "--seconds", str(_LONGEST), "--memory", str(memory)]
    job = _running(client, client.run("far", argv, 2, None, {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}))
    samples = []
    for number in range(reps * len(_ROUND)):
        host = _ROUND[number % len(_ROUND)]
        before = next(node.host for node in client.nodes("far") if node.name == "far-1")
        move = client.move("far-1", host)
        samples.append(
            {
                "memory": memory, "kind": "local" if before[0] == host[0] else "crossing", "bytes": move.bytes,
                "downtime": move.downtime, "total": move.total, "phases": move.phases, "rounds": len(move.rounds),
                "load": load(),
            }
        )  # fmt: skip
        print(f"{memory} MiB, {before} to {host}: downtime {move.downtime:.3f} s", file=sys.stderr, flush=True)
    client.cancel_job(job.id)
    client.wait(client.down("far").id)
    return samples


def _running(client: Client, job: Job) -> Job:
    """The job once its ranks talk: its first line is out then."""
    deadline = time.monotonic() + 60
    while not any(data for _, _, data in client.output(job.id, follow=False)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return job


def _bound(size: float, local: float, bandwidth: int, latency: float) -> float:
    """Seconds that a crossing shall take at most."""
    return _SLACK * 8 * size / bandwidth + local + _ROUND_TRIPS * 2 * latency


def _report(samples: list[dict[str, Any]], bandwidth: int, latency: float) -> None:
    machine = environment()
    print(", ".join(f"{key} {machine[key]}" for key in ("cpu", "cpus", "kernel", "load")))
    rows: list[tuple[Any, ...]] = []
    for memory in dict.fromkeys(sample["memory"] for sample in samples):
        local, far = (
            [sample for sample in samples if sample["memory"] == memory and sample["kind"] == kind]
            for kind in ("local", "crossing")
        )
        size = _middle(far, "bytes")
        most = _bound(size, _middle(local, "downtime"), bandwidth, latency)
        for what in ("downtime", "total"):
            near = median([sample[what] for sample in local]).text()
            crossing = median([sample[what] for sample in far]).text()
            share = f"{_middle(far, what) / most:.2f}"
            rows.append((f"{memory} MiB", what, format_size(size), near, crossing, f"{most:.3f}", share))
    head = ("memory", "seconds of", "sent", "local", "crossing", "bound", "crossing : bound")
    print_table(Table("Moves over the link beside local ones", head, rows))


def _middle(samples: list[dict[str, Any]], what: str) -> float:
    return median([float(sample[what]) for sample in samples]).value


if __name__ == "__main__":
    main(sys.argv[1:])
