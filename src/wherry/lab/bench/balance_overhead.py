"""`balance-overhead`: slowdown of a job by the daemon's measurements when nothing is moved.

A job runs over two sites that are full, so nothing can be moved. Balancing is switched on and off for pairs of time
windows in random order: on, the daemon measures, decides and counts frames. The job's speed is the rate at which its
nodes send bytes, since each of its steps sends the same amount. A pair is one sample: speed with balancing off over
speed with balancing on. A window lies within the daemon's first two measurements, which follow each other without a
pause, so it shows the cost of measuring itself; in normal operation the daemon measures during a part of the time only.
Runs that did not verify their result, and the pair in which a run ends, do not count.

Total times of runs, as in `balance`, vary by a fifth when 16 ranks share two processors, so an overhead of a few
percent would not be detected. Here both windows of a sample are from one run, seconds apart.
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
from wherry.lab.bench.jobs import await_end, why_invalid
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.two_sites_job import JOB, TwoSitesBenchmark
from wherry.lab.interleave import interleaved
from wherry.model.records import JobState

_SETTLE = 4.0
"""Seconds until the daemon, which wakes every four, has started or stopped measuring."""
_WINDOW = 4.0
"""Length of a window in seconds; within the daemon's first two measurements, of which the first began in _SETTLE."""
_BEGIN = 10.0
"""Seconds that a program runs before it is measured."""
_SAMPLED_SHARE = 28 / 120
"""Share of a job's first two minutes in which the daemon measures if nothing changes (docs/design/0011); later 1/6."""


@dataclass(frozen=True)
class BalanceOverhead(TwoSitesBenchmark):
    """A repetition is one run of the program, with one sample for each pair of windows that fits into it."""

    name = "balance-overhead"
    compares = "Time of a job's steps while the daemon looks at it, beside its steps alone (pairs of windows)"
    duration = ("forty minutes", "two minutes")
    columns: ClassVar[tuple[str, str]] = ("found", "alone")
    repetitions = 10
    quick_repetitions = 1
    quick_settings = {"job": "lu:A", "nodes": 2, "ranks": 4}

    job: str = "lu:B"
    """An NPB program as PROGRAM:CLASS."""

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
    """Bytes per second that the job's nodes send, measured over one window."""
    before, began = _bytes_sent(client), time.monotonic()
    time.sleep(_WINDOW)
    return (_bytes_sent(client) - before) / (time.monotonic() - began)


def _bytes_sent(client: Client) -> int:
    return sum(client.node(node.name)["usage"]["sent"] for node in client.nodes(JOB))
