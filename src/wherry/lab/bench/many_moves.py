"""`many-moves`: one job whose nodes move all the time: nothing hangs, and nothing grows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import instance, native_program
from wherry.client import Client, daemon_process, identity
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.samples import Samples

_HOSTS = ("a1", "a2", "a3")
_NODES = 4
_AFTER = 120.0
"""Seconds for which a job may outlive its own end before it counts as hanging."""
_GROWTH = Goal(at_most=1.15)


@dataclass(frozen=True)
class ManyMoves(Benchmark):
    """Four ranks pass messages in a ring and check each byte, more tasks than processors on most machines, so they wait
    asleep (docs/design/0019); their nodes move from host to host by turns without a pause. Each run is one job.
    """

    name = "many-moves"
    compares = (
        "The last tenth of many moves of one job, beside the first: downtime, total, the daemon's memory and open files"
    )
    duration = ("forty minutes", "a minute")
    columns = ("last tenth", "first tenth")
    repetitions = 2
    quick_settings = {"seconds": 20}

    seconds: int = 600
    """For how long the job runs."""
    mpis: str = "openmpi,mpich"
    memory: int = 1
    """MiB that each rank rewrites."""

    def levels(self) -> Sequence[Levels]:
        return [{"mpi": mpi} for mpi in self.mpis.split(",")]

    def prepare(self, client: Client) -> None:
        hosts = [{"name": name, "site": "a", "cores": _NODES, "memory": "8GiB"} for name in _HOSTS]
        fabric = {"kind": "fabric", "version": 1, "name": "many-moves", "sites": [{"name": "a"}], "hosts": hosts}
        client.wait(client.fabric_up(fabric, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        owner = identity.process_owner(directory)
        spec = {"name": "ring", "nodes": _NODES, "cpus": 1.0, "memory": f"{self.memory + 256}MiB"}
        client.wait(client.up({**spec, "placement": "spread"}, "the benchmark's cluster", owner).id)
        ring = str(native_program(f"wherry-ring-{levels['mpi']}"))
        argv = [ring, "--json", "--memory", str(self.memory), "--seconds", str(self.seconds)]
        job = client.run("ring", argv, _NODES, levels["mpi"], owner=owner)
        rows, ends = list[Row](), time.monotonic() + self.seconds
        while time.monotonic() < ends - 5:
            node = f"ring-{len(rows) % _NODES}"
            at = _HOSTS.index(client.node(node)["node"]["host"])
            move = client.move(node, _HOSTS[(at + 1) % len(_HOSTS)])
            rows.append({"downtime": move.downtime, "total": move.total, **_held()})
        for _ in client.output(job.id, seconds=ends - time.monotonic() + _AFTER):
            continue
        text = b"".join(data for stream, _, data in client.output(job.id, follow=False) if stream == "stdout")
        found = [json.loads(line) for line in text.decode(errors="replace").splitlines() if line.startswith("{")]
        if not found or found[-1]["errors"]:
            raise Failed(Code.FAILED, f"a message was lost or wrong after {len(rows)} moves", text[-300:].decode())
        tenth = max(1, len(rows) // 10)
        for part, some in (("first", rows[:tenth]), ("last", rows[-tenth:])):
            yield from ({"part": part, **row} for row in some)
        yield {"part": "all", "moves": float(len(rows)), "iterations": float(found[-1]["iterations"])}

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for levels in self.levels():
            mpi = levels["mpi"]
            rows.append(Comparison(f"{mpi}: moves of one job", samples.values("moves", **levels, part="all")))
            for field, text in _FIELDS.items():
                last, first = (samples.values(field, **levels, part=part) for part in ("last", "first"))
                rows.append(Comparison(f"{mpi}: {text}", last, first, _GROWTH))
        return rows


_FIELDS = {
    "downtime": "downtime, s",
    "total": "total migration time, s",
    "descriptors": "open descriptors of the daemon",
    "memory": "memory of the daemon, MiB",
}


def _held() -> Row:
    """The daemon's open descriptors, and its resident memory in MiB."""
    process = Path(f"/proc/{daemon_process.holder(instance())}")
    resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"descriptors": float(len(os.listdir(process / "fd"))), "memory": resident / 2**20}
