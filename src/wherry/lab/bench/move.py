"""`wherry bench`: downtime and total time of a move by memory size, beside the same move by hand with runc.

Each sample is one node made anew that holds so much memory, moved once: by `wherry move`, or by hand. Both kinds and
all sizes are mixed in one sitting, in an order drawn with a kept seed, and compared as ratios.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import instance
from wherry.base.units import format_size, parse_size
from wherry.client import Client
from wherry.lab.bench.baseline_runc import ByHand
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment, load
from wherry.lab.report.page import Report, Table
from wherry.lab.report.statistics import compared

_SEED = 7
_NODE, _FROM, _TO = "bench-0", "a1", "b1"
_HOLD = (
    "import os, sys, time\n"
    "size = int(sys.argv[1])\n"
    "memory = bytearray(size)\n"
    "block = os.urandom(1 << 20)\n"
    "for at in range(0, size, len(block)):\n"
    "    memory[at : at + len(block)] = block[: size - at]\n"
    "print('holding', flush=True)\n"
    "time.sleep(600)\n"
)
"""Fills its memory with what no page has twice in a row, and waits."""
_READY = 120.0


def command(
    out: Path = Path("bench-report"), *, reps: int = 5, sizes: str = "8MiB,64MiB,256MiB,1GiB", keep: bool = False
) -> None:
    """Downtime and total time of a move by memory size, beside runc checkpoint, copy and restore by hand.

    Parameters
    ----------
    out
        Directory for report.html and samples.jsonl.
    reps
        Samples of each size and kind.
    sizes
        Memory that the node's program holds, separated by commas.
    keep
        Leave the instance as it is at the end.
    """
    if reps < 1:
        raise Refused(Code.USAGE, f"--reps {reps}: at least one sample of each", "", "wherry bench --reps 5")
    try:
        wanted = [parse_size(size) for size in sizes.split(",")]
    except ValueError as error:
        raise Refused(
            Code.USAGE, "--sizes is not a list of sizes", str(error), "wherry bench --sizes 64MiB,1GiB"
        ) from None
    with sitting("bench", out, keep=keep) as place:
        bench = Bench(place, wanted, reps)
        bench.run()
    bench.report()


class Bench:
    """One sitting: samples and report."""

    def __init__(self, out: Path, sizes: list[int], reps: int) -> None:
        self._out, self._sizes, self._reps = out, sizes, reps
        self._samples = Samples(out / "samples.jsonl")
        self._environment = environment()

    def run(self) -> None:
        """All samples, mixed."""
        order = [(size, kind) for size in self._sizes for kind in ("wherry", "by hand")] * self._reps
        random.Random(_SEED).shuffle(order)  # noqa: S311 - an order, not a secret
        with Client() as client:
            for number, (size, kind) in enumerate(order, 1):
                sample = self._one(client, size, kind)
                self._samples.add(size=size, kind=kind, load=load(), **sample)
                what = sample.get("problem") or f"downtime {sample['downtime']:.3f} s, total {sample['total']:.3f} s"
                print(f"{number} of {len(order)}: {format_size(size)}, {kind}: {what}", file=sys.stderr, flush=True)
        self._environment["load after"] = load()

    def _one(self, client: Client, size: int, kind: str) -> dict[str, Any]:
        memory = f"{size // 2**20 + 512}MiB"
        spec = {"name": "bench", "nodes": 1, "cpus": 1.0, "memory": memory, "hosts": [_FROM]}
        try:
            client.wait(client.up(spec, "the bench's cluster").id)
            self._fill(client, size)
            return _moved(client) if kind == "wherry" else _by_hand(client)
        except WherryError as error:
            return {"ok": False, "problem": f"{error}"}
        finally:
            client.wait(client.down("bench").id)

    def _fill(self, client: Client, size: int) -> None:
        job = client.run("bench", ["/usr/bin/python3", "-c", _HOLD, str(size)], 1, mpi="openmpi")
        deadline = time.monotonic() + _READY
        while not any(b"holding" in data for _, _, data in client.output(job.id, follow=False)):
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, f"the program did not fill {format_size(size)}", f"{_READY:.0f} s went by")
            time.sleep(0.05)

    def report(self) -> None:
        """Prints the table and writes report.html."""
        rows = []
        for size in self._sizes:
            for what in ("downtime", "total"):
                ours = self._samples.values(what, size=size, kind="wherry")
                hand = self._samples.values(what, size=size, kind="by hand")
                rows.append((format_size(size), what, *compared(ours, hand)))
        table = Table("A move by memory size, in seconds", ("memory", "", "wherry", "by hand", "ratio"), rows)
        Report(
            title="A move beside runc by hand",
            summary="One node, one program that holds memory and waits. Medians with 95 % intervals; below six "
            "samples the interval is the range.",
            tables=[table],
            remarks=[
                "By hand: runc checkpoint, cp -a, runc restore, all on tmpfs, the destination prepared beforehand and "
                "its time not counted. For wherry the total counts the preparation, too.",
                "By hand nothing crosses a network and no peer's frames are kept; wherry sends over the emulated one.",
                f"Samples that failed and do not count: {self._samples.failed()}.",
            ],
            environment=self._environment,
        ).write(self._out / "report.html")
        print_table(table)
        print(f"\nreport: {self._out / 'report.html'}\nsamples: {self._samples.path}")


def _moved(client: Client) -> dict[str, Any]:
    move = client.move(_NODE, _TO)
    return {"downtime": move.downtime, "total": move.total, "bytes": move.bytes, "phases": move.phases}


def _by_hand(client: Client) -> dict[str, Any]:
    node = next(node for node in client.nodes("bench") if node.name == _NODE)
    hand = ByHand(instance(), node)
    try:
        hand.prepare()
        seconds = hand.run()
    finally:
        hand.close()
    return {"downtime": seconds, "total": seconds}
