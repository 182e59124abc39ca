"""`balance`: gain and cost of automatic balancing that packs a job at one site.

A job starts spread over two sites, because other clusters occupy the rest of both. After some seconds the cluster at
the first site is removed, which frees capacity there. In half of the runs automatic balancing is on; in the other half
nothing is moved or measured. The fabric is recreated for each run. All emulated hosts share this machine's CPUs, so
packing costs no compute capacity, and the gain by a second site's processors cannot be shown. Runs must be long:
capacity appears after ten seconds, two measurements take eight. The time until the nodes are packed is part of the
ratio.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.client import Client, identity
from wherry.lab.bench.definition import Comparison, Goal, Levels, Row
from wherry.lab.bench.jobs import await_end, why_invalid
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.two_sites_job import JOB, TwoSitesBenchmark
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.model.records import Job

_NETWORK_BOUND = frozenset({"cg"})
"""Programs that should be packed; all others should stay spread."""
_PACKED, SPREAD = Goal(at_most=0.6), Goal(at_most=1.05)
"""Goals for total time with over without balancing: of a network-bound program, and of any other."""


@dataclass(frozen=True)
class Balance(TwoSitesBenchmark):
    """A sample is the job's total time, moves included, and the daemon's decisions with their reasons."""

    name = "balance"
    compares = "Total time (s) of a job that the daemon may move together, beside the same job left alone"
    duration = ("an hour and a half", "five minutes")
    columns = ("balanced", "left alone")
    fresh_fabric = True
    repetitions = 3
    quick_repetitions = 1
    quick_settings = {"jobs": "cg:A", "nodes": 2, "ranks": 4}
    remarks = ("break-evens: how often the predicted cost is earned back in the time the job still had, left alone.",)

    jobs: str = "cg:B,ep:C,lu:B"
    """NPB programs as PROGRAM:CLASS, separated by commas."""
    after: float = 10.0
    """Seconds until capacity appears."""

    def levels(self) -> Sequence[Levels]:
        return [{"job": job, "balanced": balanced} for job in self.jobs.split(",") for balanced in (False, True)]

    def prepare(self, client: Client) -> None:
        self.make_fabric(client)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        last_event, moves = max((event.id for event in client.events()), default=0), len(client.moves())
        owner = identity.process_owner(directory)
        client.auto_balance(levels["balanced"])
        self.make_clusters(client, owner)
        job = self.start_program(client, levels["job"], directory, owner)
        time.sleep(self.after)
        client.wait(client.down("guesta", end_jobs=True).id)
        job = await_end(client, job)
        yield _sample(client, job, last_event, moves)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        return [self._comparison(samples, job) for job in self.jobs.split(",")]

    @staticmethod
    def _comparison(samples: Samples, job: str) -> Comparison:
        """The row of one program. The goal depends on the program, not on the daemon's decision."""
        balanced, left = (samples.values("total", job=job, balanced=kind) for kind in (True, False))
        packed = sum(row["together"] for row in samples.good(job=job, balanced=True))
        pack = job.partition(":")[0] in _NETWORK_BOUND
        overruled = "" if packed == (len(balanced) if pack else 0) else f"{packed} of {len(balanced)} packed"
        text = f"{job}, to be {'packed' if pack else 'left'}"
        return Comparison(text, balanced, left, _PACKED if pack else SPREAD, missed_because=overruled)

    def tables(self, samples: Samples) -> Sequence[Table]:
        head = ("job", "total (s)", "kind", "link", "step", "cost (s)", "moved after (s)", "break-evens", "moves",
                "frozen (s)", "load")  # fmt: skip
        rows = [
            (job, *_prediction(run, median(left).value))
            for job in self.jobs.split(",")
            if (left := samples.values("total", job=job, balanced=False))
            for run in samples.good(job=job, balanced=True)
        ]
        return [Table(f"The daemon's last decision ({self.settings_text()})", head, rows)]


def _sample(client: Client, job: Job, last_event: int, moves: int) -> Row:
    problem = why_invalid(client, job)
    sites = {host.name: host.site for host in client.hosts()}
    moves_made = client.moves()[moves:]
    return {
        "ok": not problem,
        "problem": problem,
        "total": (job.ended or 0.0) - (job.started or 0.0),
        "moves": len(moves_made),
        "downtimes": [move.downtime for move in moves_made],
        "together": len({sites[node.host] for node in client.nodes(JOB)}) == 1,
        "decisions": [
            {"after": event.time - (job.started or 0.0), "text": event.text, "data": event.data}
            for event in client.events(last_event)
            if event.kind == "balance.decision"
        ],
    }


def _prediction(run: Row, left: float) -> tuple[str, ...]:
    """Numbers of the decision to move, or of the last decision: predicted step time (1: unchanged) and cost of
    moving."""
    acting = [candidate for candidate in run["decisions"] if candidate["data"]["moves"]]
    decision = (acting or run["decisions"] or [None])[-1]
    numbers: dict[str, Any] = (
        decision["data"]["numbers"] if decision else {"kind": "none", "link": 0.0, "step": 1.0, "cost": 0.0}
    )
    frozen = sum(seconds or 0.0 for seconds in run["downtimes"])
    after, times = "-", "-"
    if acting:
        after = f"{acting[0]['after']:.0f}"
        times = (
            f"{(left - acting[0]['after']) * (1 - numbers['step']) / numbers['cost']:.1f}" if numbers["cost"] else "-"
        )
    figures = (f"{numbers['link']:.0%}", f"{numbers['step']:.2f}", f"{numbers['cost']:.1f}", after, times)
    return (f"{run['total']:.1f}", str(numbers["kind"]), *figures, str(run["moves"]), f"{frozen:.1f}", str(run["load"]))
