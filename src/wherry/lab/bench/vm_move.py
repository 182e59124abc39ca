"""`wherry vmbench`: a virtual machine moved under an MPI job that writes to memory, beside `virsh migrate --live`.

Each sample is a cluster of two machines made anew and one move of the second, by `wherry move` or by hand, while a ring
of messages runs over both; the job must end right. Samples come in pairs of one each, in an order drawn with a kept
seed, and are compared as ratios.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import instance, native_program
from wherry.client import Client
from wherry.lab.bench.baseline_virsh import VirshMove
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment, load
from wherry.lab.report.page import Report, Table
from wherry.lab.report.statistics import compared

_SEED = 11
_CLUSTER, _NODE, _FROM, _TO = "vmbench", "vmbench-1", "b1", "a1"
_KINDS = ("wherry", "virsh")
_MEASURES = (
    ("total", "seconds of the whole move"),
    ("downtime", "seconds that the machine stood, as its mover says"),
    ("gap", "longest pause between two messages, as a rank saw it"),
)
_SYSTEM = 176
"""MiB of a machine beside what the job's ranks write to."""
_SETTLE = 3.0
"""Seconds that the job runs before the move."""
_READY = 180.0


def command(
    out: Path = Path("vmbench-report"), *, pairs: int = 10, memory: int = 32, seconds: int = 40, keep: bool = False
) -> None:
    """A virtual machine's move under an MPI job, beside virsh migrate --live with default options.

    Parameters
    ----------
    out
        Directory for report.html and samples.jsonl.
    pairs
        Samples of each kind.
    memory
        MiB that each rank writes to, over and over.
    seconds
        How long each job runs; it must outlast the move.
    keep
        Leave the instance as it is at the end.
    """
    if pairs < 1 or memory < 1 or seconds < 1:
        raise Refused(Code.USAGE, "--pairs, --memory and --seconds are at least 1", "", "wherry vmbench --pairs 10")
    program = str(native_program("wherry-ring-mpich"))
    argv = [program, "--seconds", str(seconds), "--memory", str(memory), "--size", "16384"]
    with sitting("vmbench", out, keep=keep) as place:
        bench = Bench(place, pairs, memory, argv)
        bench.run()
    bench.report()


class Bench:
    """One sitting: samples and report."""

    def __init__(self, out: Path, pairs: int, memory: int, argv: list[str]) -> None:
        self._out, self._pairs, self._memory, self._argv = out, pairs, memory, argv
        self._samples = Samples(out / "samples.jsonl")
        self._environment = environment()

    def run(self) -> None:
        """All samples, pair by pair."""
        draw = random.Random(_SEED)  # noqa: S311 - an order, not a secret
        with Client() as client:
            for pair in range(1, self._pairs + 1):
                for kind in draw.sample(_KINDS, len(_KINDS)):
                    sample = self._one(client, kind)
                    self._samples.add(pair=pair, kind=kind, memory=self._memory, load=load(), **sample)
                    what = sample.get("problem") or ", ".join(f"{name} {sample[name]:.3f} s" for name, _ in _MEASURES)
                    print(f"pair {pair} of {self._pairs}, {kind}: {what}", file=sys.stderr, flush=True)
        self._environment["load after"] = load()

    def _one(self, client: Client, kind: str) -> dict[str, Any]:
        spec = {
            "kind": "vm", "name": _CLUSTER, "nodes": 2, "cpus": 1.0, "memory": f"{_SYSTEM + self._memory}MiB",
            "hosts": [_TO, _FROM],
        }  # fmt: skip
        try:
            client.wait(client.up(spec, "the bench's cluster").id)
            job = client.run(_CLUSTER, self._argv, 2)
            self._await_messages(client, job.id)
            if kind == "wherry":
                return _moved(client) | self._result(client, job.id)
            with _by_hand(client) as sample:
                return sample | self._result(client, job.id)
        except WherryError as error:
            return {"ok": False, "problem": f"{error}"}
        finally:
            client.wait(client.down(_CLUSTER).id)

    def _await_messages(self, client: Client, job: str) -> None:
        deadline = time.monotonic() + _READY
        while not any(b"iteration" in data for _, _, data in client.output(job, follow=False)):
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, "the job sent no message", f"{_READY:.0f} s went by")
            time.sleep(0.2)
        time.sleep(_SETTLE)

    @staticmethod
    def _result(client: Client, job: str) -> dict[str, Any]:
        """What the job says at its end. Failed when it, or anything that it checked, was wrong."""
        said = b"".join(data for _, _, data in client.output(job)).decode(errors="replace").splitlines()
        ended = client.job(job)
        if ended.exit_code != 0 or not said or not said[-1].startswith("{"):
            raise Failed(Code.JOB_FAILED, f"the job ended with {ended.exit_code}", " | ".join(said[-3:]))
        result = json.loads(said[-1])
        return {"gap": result["max_gap_ms"] / 1000, "gap_at": result["max_gap_at"], "errors": result["errors"]}

    def report(self) -> None:
        """Prints the table and writes report.html."""
        rows = []
        for name, text in _MEASURES:
            ours, hand = (self._samples.values(name, kind=kind) for kind in _KINDS)
            rows.append((text, *compared(ours, hand)))
        table = Table("A machine's move under a job", ("", "wherry", "virsh", "ratio"), rows)
        Report(
            title="A virtual machine's move beside virsh migrate --live",
            summary=f"Two machines, a ring of messages over them; each rank writes to {self._memory} MiB again and "
            "again. Medians with 95 % intervals; below six samples the interval is the range.",
            tables=[table],
            remarks=[
                "A move is whole when the machine answers at its destination and its source is free. wherry's seconds "
                "are those of the command, which waits for both, and counts what it prepares. By hand: the command "
                "virsh migrate --live --p2p with libvirt's default limits, and then until the machine's agent accepts "
                "a connection (some 0.02 s); TAP device and files are ready before, and their time is not counted.",
                "Machines are emulated where there is no KVM: the ratio counts, not the seconds.",
                f"Samples that failed and do not count: {self._samples.failed()}.",
            ],
            environment=self._environment,
        ).write(self._out / "report.html")
        print_table(table)
        print(f"\nreport: {self._out / 'report.html'}\nsamples: {self._samples.path}")


def _moved(client: Client) -> dict[str, Any]:
    began = time.monotonic()
    move = client.move(_NODE, _TO)
    total = time.monotonic() - began
    more = {"bytes": move.bytes, "rounds": len(move.rounds), "phases": move.phases}
    return {"began": move.created, "total": total, "downtime": move.downtime, **more}


@contextmanager
def _by_hand(client: Client) -> Iterator[dict[str, Any]]:
    """What the move by hand took; at the end the machine is taken away where only the hand knows it."""
    node = next(node for node in client.nodes(_CLUSTER) if node.name == _NODE)
    network = next(cluster["network"] for cluster in client.clusters() if cluster["name"] == _CLUSTER)
    hand = VirshMove(instance(), node, network, _TO)
    try:
        hand.prepare()
        began = time.time()
        total, downtime = hand.run()
        yield {"began": began, "total": total, "downtime": downtime}
    finally:
        hand.close()
