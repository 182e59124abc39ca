"""What moving a job together by itself gains and costs: `python -m wherry.lab.bench.balance`, as root.

A job starts spread over two sites, as neither has room for all its nodes: other clusters have the rest. Some seconds
later the one at the first site goes, and room appears there. In half of the runs the daemon balances by itself, in the
other half nothing is moved, nor measured, nor counted: the fabric is made anew for each run. Each turn has both kinds
of every program once, in an order drawn with a kept seed. Printed: the job's total time (from its start to its end,
moves included) with and without, their ratio beside the goal, where its nodes were at the end, and what the daemon had
predicted. A goal is met when the whole interval of the ratio is within it. Every sample is kept in a file, with what
the daemon decided and why, and the load.

A node may use one CPU and the machine's are all that there are, at one site as at two: so packing a job loses nothing,
and what a second site's processors would gain cannot be seen here. Ranks that wait let others run (docs/design/0005),
else a message waits longer for its receiver's turn to run than for the link. Runs must be long: room appears after ten
seconds, two measurements take eight, and what goes on in the machine beside is seconds. The time that goes by until
the nodes are together is part of the ratio, so it is the milder the shorter the job is.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from wherry.base.errors import WherryError
from wherry.base.paths import native_program
from wherry.client import Client
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.session import short_sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment, load
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median, ratio
from wherry.model.objects import Job

_SEED = 5
_HOSTS = 3
"""Hosts at each site."""
_NETWORK_BOUND = frozenset({"cg"})
"""Programs that are to be packed; any other is to stay spread."""
_PACKED, SPREAD = 0.6, 1.05
"""The goals: total time with the balancer over that without, of a network-bound program and of any other."""


def main(words: list[str]) -> None:
    """Measures and prints."""
    parser = parser_of("balancebench", __doc__)
    parser.add_argument("--jobs", default="cg:B,ep:C,lu:B", help="NPB programs with their classes")
    parser.add_argument("--reps", type=int, default=3, help="runs of each program, with and without")
    parser.add_argument("--after", type=float, default=10.0, help="seconds until room appears")
    asked = parser.parse_args(words)
    samples = Samples(asked.out)
    with short_sitting("balbench") as client:
        _all(client, samples, asked)
    _report(samples, asked)


def parser_of(name: str, about: str | None) -> ArgumentParser:
    """What can be said of a job over two sites."""
    parser = ArgumentParser(prog=f"python -m wherry.lab.{name}", description=(about or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=6, help="of the job at each site")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--latency", default="10ms", help="of the link, one way")
    parser.add_argument("--bandwidth", default="1Gbit/s")
    parser.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich"))
    out = Path(f"{name}.jsonl").resolve()
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), default=out, help="file for the samples")
    return parser


def _all(client: Client, samples: Samples, asked: Namespace) -> None:
    kinds = [(job, moved) for job in asked.jobs.split(",") for moved in (False, True)]
    draw = random.Random(_SEED)  # noqa: S311 - an order, not a secret
    order = [kind for _ in range(asked.reps) for kind in draw.sample(kinds, len(kinds))]
    for number, (job, moved) in enumerate(order, 1):
        client.wait(client.fabric_up(fabric(asked), "the bench's fabric").id)
        sample = _one(client, job, moved, asked)
        client.wait(client.fabric_down().id)
        samples.add(job=job, balanced=moved, load=load(), **sample)
        how = "balanced" if moved else "left"
        said = f"{sample['total']:.1f} s, {sample['moves']} moves" if sample["ok"] else sample["problem"]
        print(f"{number} of {len(order)}: {job} {how}: {said}", file=sys.stderr, flush=True)


def _one(client: Client, name: str, balanced: bool, asked: Namespace) -> dict[str, Any]:
    """One run of a program."""
    seen, moves = max((event.id for event in client.events()), default=0), len(client.moves())
    client.auto_balance(balanced)
    crowd(client, asked.nodes)
    job = start(client, name, asked)
    try:
        time.sleep(asked.after)
        client.wait(client.down("guesta").id)
        job = ended(client, job)
        problem = wrong(client, job)
        sites = {host.name: host.site for host in client.hosts()}
        where = [sites[node.host] for node in client.nodes("job")]
        return {
            "ok": not problem,
            "problem": problem,
            "total": (job.ended or 0.0) - (job.started or 0.0),
            "moves": len(client.moves()) - moves,
            "downtimes": [move.downtime for move in client.moves()[moves:]],
            "together": len(set(where)) == 1,
            "decisions": [
                {"after": event.time - (job.started or 0.0), "text": event.text, "data": event.data}
                for event in client.events(seen)
                if event.kind == "balance.decision"
            ],
        }
    finally:
        client.auto_balance(False)
        for operation in client.operations(running=True):  # nodes may be on their way when the job ends
            with suppress(WherryError):
                client.wait(operation.id)
        for cluster in client.clusters():
            client.wait(client.down(cluster["name"]).id)


def crowd(client: Client, nodes: int) -> None:
    """A cluster for a job over two sites, and others that have the rest of both."""
    client.wait(client.up(_cluster("job", 2 * nodes, {"placement": "spread"})).id)
    for site in ("a", "b"):
        client.wait(client.up(_cluster(f"guest{site}", nodes, {"sites": [site], "memory": "32MiB"})).id)


def start(client: Client, name: str, asked: Namespace) -> Job:
    """Begins a program of NPB, `PROGRAM:CLASS`."""
    program, _, size = name.partition(":")
    path = Path(f"npb-{program}")
    shutil.copy(native_program(f"npb-{program}-{asked.mpi}"), path)
    return client.run("job", [f"./{path}", size], asked.ranks, asked.mpi)


def ended(client: Client, job: Job) -> Job:
    """The job when it is over."""
    for _ in client.output(job.id):
        continue
    while job.state.under_way:  # its output ends a little before it
        time.sleep(0.05)
        job = client.job(job.id)
    return job


def wrong(client: Client, job: Job) -> str:
    """Why the run of a program that is over does not count; empty when it verified its result."""
    text = b"".join(data for stream, _, data in client.output(job.id, follow=False) if stream == "stdout").decode()
    return "" if job.exit_code == 0 and "SUCCESSFUL" in text else f"exit code {job.exit_code}: {text[-200:]}"


def fabric(asked: Namespace) -> dict[str, Any]:
    """Two sites, each with room for all nodes of the job."""
    each = -(-2 * asked.nodes // _HOSTS)
    hosts = [
        {"name": f"{site}{number}", "site": site, "cores": each, "memory": "4GiB"}
        for site in "ab"
        for number in range(1, _HOSTS + 1)
    ]
    link = {"between": ["a", "b"], "latency": asked.latency, "bandwidth": asked.bandwidth}
    about = {"kind": "fabric", "version": 1, "name": "balancebench", "sites": [{"name": "a"}, {"name": "b"}]}
    return {**about, "hosts": hosts, "links": [link]}


def _cluster(name: str, nodes: int, more: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "nodes": nodes, "cpus": 1, "memory": "256MiB", **more}


def _report(samples: Samples, asked: Namespace) -> None:
    machine = environment()
    print(", ".join(f"{key} {machine[key]}" for key in ("cpu", "cpus", "kernel", "load")))
    totals, predictions = [], []
    for job in asked.jobs.split(","):
        left, balanced = (samples.values("total", job=job, balanced=kind) for kind in (False, True))
        runs = list(samples.good(job=job, balanced=True))
        if left and balanced:
            totals.append(_total(job, left, balanced, sum(run["together"] for run in runs)))
            predictions += [(job, *_prediction(run, median(left).value)) for run in runs]
    title = f"{asked.nodes} + {asked.nodes} nodes, {asked.ranks} ranks, {asked.latency}, room after {asked.after:g} s"
    print_table(Table(title, ("job", "left (s)", "balanced (s)", "ratio", "packed", "goal", ""), totals))
    head = ("job", "total (s)", "kind", "link", "step", "cost (s)", "moved after (s)", "break-evens", "moves",
            "frozen (s)", "load")  # fmt: skip
    print_table(Table("What the daemon found when it last decided, run by run", head, predictions))
    print("break-evens: how often the predicted cost is earned back in the time that the job still had, left alone")
    print(f"failed: {samples.failed()}; samples: {samples.path}")


def _total(job: str, left: list[float], balanced: list[float], packed: int) -> tuple[str, ...]:
    """A program's row: the goal is known before, whatever the daemon did."""
    pack = job.partition(":")[0] in _NETWORK_BOUND
    found, goal = ratio(balanced, left), _PACKED if pack else SPREAD
    verdict = judged(found, goal)
    if packed != (len(balanced) if pack else 0):
        verdict = "missed"
    wanted = f"at most {goal:g}, {'all' if pack else 'none'} packed"
    where = f"{packed} of {len(balanced)}"
    return (job, median(left).text(), median(balanced).text(), found.text(), where, wanted, verdict)


def judged(found: Estimate, most: float) -> str:
    """Whether a ratio is within its goal."""
    return "met" if found.high <= most else "missed" if found.low > most else "not certain"


def _prediction(run: dict[str, Any], left: float) -> tuple[str, ...]:
    """Of the decision to move, or else of the last one: the predicted step (1: as it was) and what moving costs."""
    acted = [one for one in run["decisions"] if one["data"]["moves"]]
    said = (acted or run["decisions"] or [None])[-1]
    found: dict[str, Any] = said["data"]["numbers"] if said else {"kind": "none", "link": 0.0, "step": 1.0, "cost": 0.0}
    frozen = sum(seconds or 0.0 for seconds in run["downtimes"])
    after, times = "-", "-"
    if acted:
        after = f"{acted[0]['after']:.0f}"
        times = f"{(left - acted[0]['after']) * (1 - found['step']) / found['cost']:.1f}" if found["cost"] else "-"
    figures = (f"{found['link']:.0%}", f"{found['step']:.2f}", f"{found['cost']:.1f}", after, times)
    return (f"{run['total']:.1f}", str(found["kind"]), *figures, str(run["moves"]), f"{frozen:.1f}", str(run["load"]))


if __name__ == "__main__":
    main(sys.argv[1:])
