"""`vm-move`: live move of a VM under an MPI job that dirties memory, compared with `virsh migrate --live`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import instance, native_program
from wherry.client import Client, identity
from wherry.lab.bench.baseline_virsh import BaselineVirsh
from wherry.lab.bench.definition import Benchmark, Comparison, Levels, Row
from wherry.lab.bench.jobs import await_output
from wherry.lab.bench.samples import Samples

_CLUSTER, _NODE, _FROM, _TO = "vmbench", "vmbench-1", "b1", "a1"
_MEASURES = {
    "total": "total migration time in seconds",
    "downtime": "downtime in seconds, as its mover measured it",
    "gap": "longest pause between two messages, as a rank saw it",
}
_SYSTEM_MEMORY = 176
"""MiB of a VM's memory besides the memory that the job's ranks write to."""
_SETTLE = 3.0
"""Seconds between the job's start and the move."""
_READY = 180.0


@dataclass(frozen=True)
class MoveByVirsh(Benchmark):
    """Each sample is a new cluster of two VMs and one move of the second while a ring of messages runs."""

    name = "vm-move"
    compares = "A virtual machine's move under an MPI job, beside virsh migrate --live with its defaults"
    duration = ("an hour without KVM", "a quarter of an hour without KVM")
    columns = ("wherry", "virsh by hand")
    repetitions = 10
    quick_settings = {"memory": 8}
    remarks = (
        "A move is whole when the machine answers at its destination and its source is free. wherry's seconds are "
        "those of the command, which waits for both, and include its preparation. By hand: the command virsh migrate "
        "--live --p2p with libvirt's default limits, and then until the machine's agent accepts a connection (some "
        "0.02 s); TAP device and files are ready before, and their time is not counted.",
        "Machines are emulated where there is no KVM: the ratio counts, not the seconds.",
    )

    memory: int = 32
    """MiB that each rank rewrites continuously."""
    seconds: int = 40
    """Duration of each job; it must exceed that of the move."""

    def __post_init__(self) -> None:
        if self.memory < 1 or self.seconds < 1:
            raise ValueError("memory and seconds are at least 1")

    def levels(self) -> Sequence[Levels]:
        return [{"by": by} for by in ("wherry", "virsh")]

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        owner = identity.process_owner(directory)
        spec = {
            "kind": "vm",
            "name": _CLUSTER,
            "nodes": 2,
            "cpus": 1.0,
            "memory": f"{_SYSTEM_MEMORY + self.memory}MiB",
            "hosts": [_TO, _FROM],
        }
        program = str(native_program("wherry-ring-mpich"))
        argv = [program, "--seconds", str(self.seconds), "--memory", str(self.memory), "--size", "16384"]
        client.wait(client.up(spec, "the benchmark's cluster", owner).id)
        job = client.run(_CLUSTER, argv, 2, owner=owner)
        await_output(client, job.id, b"iteration", _READY)
        time.sleep(_SETTLE)
        if levels["by"] == "wherry":
            yield _move_by_wherry(client) | _job_result(client, job.id)
        else:
            with _move_by_hand(client) as sample:
                yield sample | _job_result(client, job.id)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        return [
            Comparison(text, samples.values(name, by="wherry"), samples.values(name, by="virsh"))
            for name, text in _MEASURES.items()
        ]


def _job_result(client: Client, job: str) -> dict[str, Any]:
    """The job's result line. Raises Failed when the job failed or printed none."""
    output = b"".join(data for _, _, data in client.output(job)).decode(errors="replace").splitlines()
    ended = client.job(job)
    if ended.exit_code != 0 or not output or not output[-1].startswith("{"):
        raise Failed(Code.JOB_FAILED, f"the job ended with {ended.exit_code}", " | ".join(output[-3:]))
    result = json.loads(output[-1])
    return {"gap": result["max_gap_ms"] / 1000, "gap_at": result["max_gap_at"], "errors": result["errors"]}


def _move_by_wherry(client: Client) -> Row:
    began = time.monotonic()
    move = client.move(_NODE, _TO)
    total = time.monotonic() - began
    details = {"bytes": move.bytes, "rounds": len(move.rounds), "phases": move.phases}
    return {"began": move.created, "total": total, "downtime": move.downtime, **details}


@contextmanager
def _move_by_hand(client: Client) -> Iterator[Row]:
    """The move by hand. The VM is destroyed at the end, because the service does not know its new host."""
    node = next(node for node in client.nodes(_CLUSTER) if node.name == _NODE)
    network = next(cluster["network"] for cluster in client.clusters() if cluster["name"] == _CLUSTER)
    baseline = BaselineVirsh(instance(), node, network, _TO)
    try:
        baseline.prepare()
        began = time.time()
        total, downtime = baseline.run()
        yield {"began": began, "total": total, "downtime": downtime}
    finally:
        baseline.close()
