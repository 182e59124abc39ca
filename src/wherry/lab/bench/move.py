"""`move`: downtime and total time of a container node's move by memory size, compared with runc by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import instance
from wherry.base.units import format_size, parse_size
from wherry.client import Client, identity
from wherry.lab.bench.baseline_runc import BaselineRunc
from wherry.lab.bench.definition import Benchmark, Comparison, Levels, Row
from wherry.lab.bench.samples import Samples

_CLUSTER, _NODE, _FROM, _TO = "bench", "bench-0", "a1", "b1"
_PROGRAM = (
    "import os, sys, time\n"
    "size = int(sys.argv[1])\n"
    "memory = bytearray(size)\n"
    "block = os.urandom(1 << 20)\n"
    "for at in range(0, size, len(block)):\n"
    "    memory[at : at + len(block)] = block[: size - at]\n"
    "print('holding', flush=True)\n"
    "time.sleep(600)\n"
)
"""Python program that fills its memory with random data and sleeps."""
_READY = 120.0


@dataclass(frozen=True)
class MoveByRunc(Benchmark):
    """Each sample is one move of a new node whose program holds the given amount of memory."""

    name = "move"
    compares = "Downtime and total time of a move in seconds, beside runc checkpoint, copy and restore by hand"
    duration = ("ten minutes", "two minutes")
    columns = ("wherry", "runc by hand")
    quick_settings = {"sizes": "8MiB,64MiB"}
    remarks = (
        "By hand: runc checkpoint, cp -a, runc restore, all on tmpfs, the destination prepared beforehand and its time "
        "not counted. For wherry the total counts the preparation, too.",
        "By hand nothing crosses a network and no peer's frames are kept; wherry sends over the emulated one.",
    )

    sizes: str = "8MiB,64MiB,256MiB,1GiB"
    """Sizes of the program's memory, separated by commas."""

    def __post_init__(self) -> None:
        self._sizes()

    def _sizes(self) -> list[int]:
        return [parse_size(size) for size in self.sizes.split(",")]

    def levels(self) -> Sequence[Levels]:
        return [{"memory": size, "by": by} for size in self._sizes() for by in ("wherry", "runc")]

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        size, owner = levels["memory"], identity.process_owner(directory)
        memory = f"{size // 2**20 + 512}MiB"
        spec = {"name": _CLUSTER, "nodes": 1, "cpus": 1.0, "memory": memory, "hosts": [_FROM]}
        client.wait(client.up(spec, "the benchmark's cluster", owner).id)
        argv = ["/usr/bin/python3", "-c", _PROGRAM, str(size)]
        job = client.run(_CLUSTER, argv, 1, mpi="openmpi", owner=owner)
        await_output(client, job.id, b"holding", _READY)
        yield _move_by_wherry(client) if levels["by"] == "wherry" else _move_by_hand(client)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for size in self._sizes():
            for what in ("downtime", "total"):
                ours, baseline = (samples.values(what, memory=size, by=by) for by in ("wherry", "runc"))
                rows.append(Comparison(f"{format_size(size)}, {what}", ours, baseline))
        return rows


def await_output(client: Client, job: str, text: bytes, seconds: float) -> None:
    """Returns when the job has written `text`. Raises TIMED_OUT after `seconds`."""
    deadline = time.monotonic() + seconds
    while text not in b"".join(data for _, _, data in client.output(job, follow=False)):
        if time.monotonic() > deadline:
            raise Failed(Code.TIMED_OUT, f"the job did not write {text.decode()!r}", f"{seconds:.0f} s went by")
        time.sleep(0.1)


def _move_by_wherry(client: Client) -> Row:
    move = client.move(_NODE, _TO)
    return {"downtime": move.downtime, "total": move.total, "bytes": move.bytes, "phases": move.phases}


def _move_by_hand(client: Client) -> Row:
    node = next(node for node in client.nodes(_CLUSTER) if node.name == _NODE)
    baseline = BaselineRunc(instance(), node)
    try:
        baseline.prepare()
        seconds = baseline.run()
    finally:
        baseline.close()
    return {"downtime": seconds, "total": seconds}
