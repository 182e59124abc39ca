"""What it costs a job that the daemon looks at it and leaves it: `python -m wherry.lab.watchbench`, as root.

A job runs over two sites that are full, so nothing is moved. While it runs the daemon's balancing is on for a while and
off for a while, in pairs of windows whose order is drawn with a kept seed: on, it measures, decides, and has frames
counted; off, it does nothing of that. How fast the job goes on is told by the bytes that its nodes send, as each of its
steps sends as many. A pair is one sample: the job's speed alone over that when it is looked at, so the times the other
way round. A window lies within the daemon's first two measurements, between which it makes no pause, so what is found
is the cost of looking itself. With its pauses it looks for a part of a job's time only, so balancing costs that part of
it. Runs that did not verify their result do not count, nor does the pair in which a run ends.

Whole runs, as `balancebench` compares, differ by a fifth among themselves when 16 ranks share two processors: a cost of
a few hundredths is not seen there. Here both halves of a sample are of one run, seconds apart.
"""

from __future__ import annotations

import random
import sys
import time
from argparse import Namespace
from typing import Any

from wherry.client import Client
from wherry.lab.bench.balance import SPREAD, crowd, ended, fabric, judged, parser_of, start, wrong
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import short_sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment, load
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.model.objects import JobState

_SEED = 7
_SETTLE = 4.0
"""Seconds after which the daemon, which wakes every four, has begun to look, or has ended."""
_WINDOW = 4.0
"""Seconds of a window: for two measurements the daemon looks without a pause, of which the first began in _SETTLE."""
_BEGIN = 10.0
"""Seconds that a program is given before it is measured."""
_PART = 28 / 120
"""Of a job's first two minutes for which the daemon looks, when nothing changes (docs/design/0011); later a sixth."""


def main(words: list[str]) -> None:
    """Measures and prints."""
    parser = parser_of("watchbench", __doc__)
    parser.add_argument("--job", default="lu:B", help="a program of NPB with its class")
    parser.add_argument("--pairs", type=int, default=60, help="of windows, in as many runs as it takes")
    asked = parser.parse_args(words)
    samples, draw = Samples(asked.out), random.Random(_SEED)  # noqa: S311 - an order, not a secret
    with short_sitting("watchbn") as client:
        client.wait(client.fabric_up(fabric(asked), "the bench's fabric").id)
        crowd(client, asked.nodes)
        for _ in range(asked.pairs):  # each run that is right has at least one
            if len(samples.values("ratio")) < asked.pairs:
                _run(client, samples, draw, asked)
    if not samples.values("ratio"):
        raise SystemExit(f"no run of {asked.job} was right: see {samples.path}")
    _report(samples, asked)


def _run(client: Client, samples: Samples, draw: random.Random, asked: Namespace) -> None:
    """One run of the program, with as many pairs as it lasts for."""
    most, moves = asked.pairs - len(samples.values("ratio")), len(client.moves())
    job, found = start(client, asked.job, asked), list[dict[str, Any]]()
    time.sleep(_BEGIN)
    while len(found) < most:
        rates = dict[bool, float]()
        for looked in draw.sample([True, False], 2):
            client.auto_balance(looked)
            time.sleep(_SETTLE)
            rates[looked] = _rate(client)
        if client.job(job.id).state != JobState.RUNNING:
            break
        ratio = rates[False] / rates[True]
        found.append({"looked": rates[True], "alone": rates[False], "ratio": ratio, "load": load()})
        print(f"a pair: {ratio:.3f}", file=sys.stderr, flush=True)
    client.auto_balance(False)
    problem = wrong(client, ended(client, job)) or ("nodes were moved" if len(client.moves()) > moves else "")
    if not found:
        problem = problem or f"it was over in {_BEGIN + 2 * (_SETTLE + _WINDOW):g} s"
        raise SystemExit(f"{asked.job} is not measured so: {problem}; next: a larger class")
    for sample in found:
        samples.add(ok=not problem, problem=problem, job=job.id, **sample)


def _rate(client: Client) -> float:
    """Bytes per second that the job's nodes sent."""
    before, began = _sent(client), time.monotonic()
    time.sleep(_WINDOW)
    return (_sent(client) - before) / (time.monotonic() - began)


def _sent(client: Client) -> int:
    return sum(client.node(node.name)["usage"]["sent"] for node in client.nodes("job"))


def _report(samples: Samples, asked: Namespace) -> None:
    machine = environment()
    print(", ".join(f"{key} {machine[key]}" for key in ("cpu", "cpus", "kernel", "load")))
    found = median(samples.values("ratio"))
    rates = [median([rate / 1e6 for rate in samples.values(kind)]).text() for kind in ("alone", "looked")]
    whole = median([1 + (ratio - 1) * _PART for ratio in samples.values("ratio")])
    title = f"{asked.nodes} + {asked.nodes} nodes, {asked.ranks} ranks, {asked.latency}, windows of {_WINDOW:g} s"
    head = ("job", "MB/s alone", "MB/s looked at", "time looked at : alone", "of two minutes", "goal", "")
    row = (asked.job, *rates, found.text(), whole.text(), f"at most {SPREAD:g}", judged(whole, SPREAD))
    print_table(Table(title, head, [row]))
    print(f"failed: {samples.failed()}; samples: {samples.path}")


if __name__ == "__main__":
    main(sys.argv[1:])
