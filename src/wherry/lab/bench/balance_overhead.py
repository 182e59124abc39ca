"""`balance-overhead`: what it costs a job that the daemon looks at it and leaves it where it is.

A job runs over two sites that are full, so nothing is moved. While it runs the daemon's balancing is on for a while and
off for a while, in pairs of windows in drawn order: on, it measures, decides, and has frames counted; off, it does
nothing of that. How fast the job goes on is told by the bytes that its nodes send, as each of its steps sends as many.
A pair is one sample: the job's speed alone over that when it is looked at. A window lies within the daemon's first two
measurements, between which it makes no pause, so what is found is the cost of looking itself; with its pauses it looks
for a part of a job's time only. Runs that did not verify their result do not count, nor does the pair in which a run
ends.

Whole runs, as `balance` compares, differ by a fifth among themselves when 16 ranks share two processors: a cost of a
few hundredths is not seen there. Here both halves of a sample are of one run, seconds apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from wherry.base.errors import Code, Failed
from wherry.client import Client, identity
from wherry.lab.bench.balance import SPREAD
from wherry.lab.bench.definition import Comparison, Levels, Row
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.two_sites_job import JOB, TwoSitesBenchmark, await_end, why_invalid
from wherry.lab.interleave import interleaved
from wherry.model.records import JobState

_SETTLE = 4.0
"""Seconds after which the daemon, which wakes every four, has begun to look, or has ended."""
_WINDOW = 4.0
"""Seconds of a window: for two measurements the daemon looks without a pause, of which the first began in _SETTLE."""
_BEGIN = 10.0
"""Seconds that a program is given before it is measured."""
_SAMPLED_SHARE = 28 / 120
"""Of a job's first two minutes for which the daemon looks, when nothing changes (docs/design/0011); later a sixth."""


@dataclass(frozen=True)
class BalanceOverhead(TwoSitesBenchmark):
    """A repetition is a run of the program; it gives as many samples as it lasts for."""

    name = "balance-overhead"
    compares = "Time of a job's steps while the daemon looks at it, beside its steps alone (pairs of windows)"
    duration = ("forty minutes", "two minutes")
    columns: ClassVar[tuple[str, str]] = ("found", "alone")
    repetitions = 10
    quick_repetitions = 1
    quick_settings = {"job": "lu:A", "nodes": 2, "ranks": 4}

    job: str = "lu:B"
    """A program of NPB with its class."""

    def levels(self) -> Sequence[Levels]:
        return [{"job": self.job}]

    def prepare(self, client: Client) -> None:
        self.make_fabric(client)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        owner, moves, rows = identity.process_owner(directory), len(client.moves()), list[Row]()
        self.make_clusters(client, owner)
        job = self.start_program(client, self.job, directory, owner)
        time.sleep(_BEGIN)
        while True:
            rates = dict[bool, float]()
            for balancing in interleaved([True, False], f"{job.id}/{len(rows)}"):
                client.auto_balance(balancing)
                time.sleep(_SETTLE)
                rates[balancing] = _send_rate(client)
            if client.job(job.id).state != JobState.RUNNING:
                break
            rows.append({"looked": rates[True], "alone": rates[False], "ratio": rates[False] / rates[True]})
        client.auto_balance(False)
        problem = why_invalid(client, await_end(client, job)) or (
            "nodes were moved" if len(client.moves()) > moves else ""
        )
        if not rows:
            why = problem or f"it was over in {_BEGIN + 2 * (_SETTLE + _WINDOW):g} s"
            raise Failed(Code.FAILED, f"{self.job} is not measured so: {why}", "", "a larger class")
        return [{"ok": not problem, "problem": problem, **row} for row in rows]

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        ratios = samples.values("ratio")
        speeds = [Comparison(f"MB/s {kind}", [rate / 1e6 for rate in samples.values(kind)]) for kind in _SPEEDS]
        whole = [1 + (ratio - 1) * _SAMPLED_SHARE for ratio in ratios]
        return [
            *speeds,
            Comparison("step's time, looked at : alone", ratios),
            Comparison("the same over a job's first two minutes", whole, goal=SPREAD),
        ]


_SPEEDS = ("alone", "looked")


def _send_rate(client: Client) -> float:
    """Bytes per second that the job's nodes sent."""
    before, began = _bytes_sent(client), time.monotonic()
    time.sleep(_WINDOW)
    return (_bytes_sent(client) - before) / (time.monotonic() - began)


def _bytes_sent(client: Client) -> int:
    return sum(client.node(node.name)["usage"]["sent"] for node in client.nodes(JOB))
