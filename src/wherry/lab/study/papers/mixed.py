"""`mixed`: several jobs of different character that arrive at a machine of several sites, one after the other. Factors:
the policy, which is which hosts a job gets (the next free ones in order, or those of Wherry's placement) and
whether the daemon moves nodes of running jobs; and the kind of the nodes. Without KVM virtual machines have fewer and
smaller jobs, on hosts of their own.

Invariants: jobs begin in the order in which they arrived, each as soon as it fits, so policies differ by places alone;
a host carries one node; a job's turnaround counts from its arrival and includes its wait."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from wherry.base.paths import native_program
from wherry.client import Client
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.lab.study import analysis, npb_counts, sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.requirements import LEAST_VM_MEMORY, vms_are_emulated, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, LONGEST_WAIT, NPB_CLASSES, SECONDS, Setting
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed
from wherry.model.records import Phase

_FIRST, _PLACED = "first-come", "placed"
POLICIES = {
    _FIRST: "the next free hosts, and no move",
    "first-come-moved": "the next free hosts, and the daemon moves nodes",
    _PLACED: "Wherry's placement (pack), and no move",
    "placed-moved": "Wherry's placement (pack), and the daemon moves nodes",
}
_CLASSES = {
    name: Setting(f"{name}.class", f"problem class of {name.upper()}", full, quick, choices=NPB_CLASSES)
    for name, full, quick in (("ep", "B", "A"), ("lu", "A", "W"), ("cg", "B", "A"), ("is", "B", "W"))
}
_NODES = {
    name: Setting(
        f"{name}.nodes",
        f"nodes of {name.upper()}, one rank on each",
        count,
        count,
        most=8,
        allowed=tuple(number for number in range(1, 9) if npb_counts.takes(name, number)),
    )
    for name, count in (("ep", 4), ("lu", 4), ("cg", 2), ("is", 4))
}
"""With five hosts at each of two sites EP, LU and CG leave no room for IS, which arrives last, and there is a host at
each site for CG's two once EP and LU have one of their own."""
_CONTAINERS, _VMS = "container", "vm"
SITES = Setting("sites", "sites", 2, 2, least=2, most=len(sites.SITES))
HOSTS = Setting("hosts", "hosts at each site, one node on each", 5, 5, least=5, most=64)
MEMORY = Setting(
    "node.memory", "memory of a node", 320 << 20, 320 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 30
)
CPUS = Setting("host.cpus", "share of a processor that a host has", 0.2, 0.2, least=0.2, most=1)
GAP = Setting("arrival.gap", "from one arrival to the next", 5.0, 2.0, unit=SECONDS, least=0, most=LONGEST_WAIT)
ROUNDS = Setting("rounds", "how often the list of jobs arrives", 2, 1, most=100)
VM_CLASS = Setting("vm.class", "problem class on VM nodes without KVM", "S", "S", choices=NPB_CLASSES)
VM_HOSTS = Setting("vm.hosts", "hosts at each site for VM nodes without KVM", 2, 2, least=2, most=64)
VM_CPUS = Setting("vm.cpus", "share of a processor that such a host has", 0.4, 0.4, least=0.2, most=1)
VM_MEMORY = Setting(
    "vm.memory",
    "memory of a VM node without KVM",
    256 << 20,
    256 << 20,
    unit=BYTES,
    least=LEAST_VM_MEMORY,
    most=1 << 30,
)
VM_ROUNDS = Setting("vm.rounds", "how often the list of jobs for VM nodes without KVM arrives", 1, 1, most=100)
_TIME_LIMIT = 3600.0


class Kind(NamedTuple):
    """A job of the list: program and nodes, one rank on each."""

    program: str
    nodes: int


EMULATED_JOBS = (Kind("ep", 1), Kind("cg", 2), Kind("is", 1))
"""In the order of their arrival, on VM nodes without KVM: with two hosts at each of two sites first come splits CG."""


@dataclass
class _Job:
    """A job of one run. Times are seconds of the epoch."""

    name: str
    kind: Kind
    arrival: float
    shape: ClusterShape | None = None
    running: RunningJob | None = None
    ended: float = 0.0
    began: float = 0.0
    split: bool = False
    problem: str = ""


class Mixed(Study):
    """Design, runs and report of the study."""

    settings = (
        *_CLASSES.values(),
        *_NODES.values(),
        *(SITES, HOSTS, CPUS, MEMORY, GAP, sites.LATENCY, sites.MBITS, ROUNDS),
        *(VM_CLASS, VM_HOSTS, VM_CPUS, VM_MEMORY, VM_ROUNDS),
    )
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"sites": (SITES,), "hosts": (HOSTS,)}

    name = "mixed"
    why_not_on_own_hosts = "its hosts have a share of a processor each, which only emulated ones have"
    title = "Several jobs at once on several sites"
    question = (
        "What do placement and moves win for several jobs of different character, beside first come, first served?"
    )
    validity_checks = ("NPB's verification succeeds for every job.",)
    duration = ("two hours; three more with emulated virtual machines", "four minutes")
    repetitions = 5
    quick_repetitions = 1
    warmups = 0
    shows = (
        "Mean and worst turnaround of EP, LU, CG and IS that arrive one after the other, by who chooses their hosts "
        "and whether the daemon moves them; how long they waited, how many were split over the sites, how many moves.",
    )
    limitations = (
        "Hosts are limited to a share of a processor in periods of 5 ms, so that jobs do not take each other's time: "
        "messages below some milliseconds meet that limit. A machine with a processor for each host can have "
        "--set host.cpus=1.",
        "Links lead from the first site to each other one, so between two others are two of them.",
        "Four jobs in one order are an example and not a trace; another list finds other numbers.",
        "On VM nodes a turnaround has the boot of the job's machines in it, which is most of a short one's; without "
        "KVM three jobs of class S on four emulated machines show that places differ as they do for containers, and no "
        "times of machines.",
    )

    def factors(self) -> Sequence[Factor]:
        levels = (
            *(Level(name, text) for name, text in POLICIES.items()),
            Level(
                "backfill",
                "small jobs pass larger jobs that wait",
                "policies would differ by order, not only by places",
            ),
        )
        emulated = f", emulated: three jobs, class {self.value(VM_CLASS)}" if self._emulated else ""
        no_vms = why_no_vms(self.unavailable, self.quick, moved=True)
        nodes = (
            Level(_CONTAINERS, "container nodes", self._too_many(_CONTAINERS)),
            Level(_VMS, f"VM nodes{emulated}", no_vms or self._too_many(_VMS)),
        )
        return [Factor("policy", "chooser of the hosts", levels), Factor("nodes", "kind of the nodes", nodes)]

    def _share(self, nodes: str) -> float:
        """Of a processor, that a host has."""
        return self.value(VM_CPUS if nodes == _VMS and self._emulated else CPUS)

    def _too_many(self, nodes: str) -> str:
        """Why the machine does not carry the hosts that can be busy at the same time; empty if it does."""
        busy = min(len(self._hosts(nodes)), sum(job.nodes for job in self.jobs(nodes)))
        return sites.why_not_carried(busy, self._share(nodes), self.unavailable)

    @property
    def _emulated(self) -> bool:
        return vms_are_emulated(self.unavailable)

    def combinations(self) -> Sequence[Combination]:
        policies, nodes = (factor.measured() for factor in self.factors())
        return [Combination.of(policy=policy, nodes=kind) for kind in nodes for policy in policies]

    def jobs(self, nodes: str) -> tuple[Kind, ...]:
        """The list of jobs, in the order of their arrival, as often as it arrives."""
        if nodes == _VMS and self._emulated:
            return EMULATED_JOBS * self.value(VM_ROUNDS)
        return tuple(Kind(name, self.value(count)) for name, count in _NODES.items()) * self.value(ROUNDS)

    def _fabric(self, nodes: str) -> Mapping[str, Any]:
        names = sites.SITES[: self.value(SITES)]
        link = sites.figures(self.value(sites.MBITS), self.value(sites.LATENCY))
        return {
            "kind": "fabric",
            "version": 1,
            "name": "mixed",
            "sites": [{"name": name} for name in names],
            "hosts": [
                {"name": name, "site": name[0], "cores": 1, "memory": "1GiB", "speed": self._share(nodes)}
                for name in self._hosts(nodes)
            ],
            "links": sites.links(len(names), **link),
        }

    def _hosts(self, nodes: str) -> list[str]:
        """Those of emulated machines have names of their own, as their share of a processor is another one."""
        of_machines = nodes == _VMS and self._emulated
        kind, count = ("v", self.value(VM_HOSTS)) if of_machines else ("", self.value(HOSTS))
        names = sites.SITES[: self.value(SITES)]
        return [f"{site}{kind}{number}" for site in names for number in range(1, count + 1)]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        policy, nodes = combination["policy"], combination["nodes"]
        testbed.use_fabric(self._fabric(nodes))
        client = testbed.client
        moved_before, began = len(client.moves()), time.time()
        jobs = [
            _Job(f"j{number}", kind, began + number * self.value(GAP)) for number, kind in enumerate(self.jobs(nodes))
        ]
        client.auto_balance(policy.endswith("-moved"))
        try:
            self._serve(testbed, policy, jobs, directory, nodes)
        finally:
            try:
                client.auto_balance(False)
            finally:
                testbed.remove_clusters([job.name for job in jobs])
        if wrong := [f"{job.kind.program}: {job.problem}" for job in jobs if job.problem]:
            raise RunFailed("; ".join(wrong))
        moves = [move for move in client.moves()[moved_before:] if move.phase == Phase.DONE]
        return _values(jobs, len(moves))

    def _serve(self, testbed: Testbed, policy: str, jobs: Sequence[_Job], directory: Path, nodes: str) -> None:
        """Begins each job in turn when it has arrived and fits, and frees its hosts when it ends."""
        ended: queue.Queue[_Job] = queue.Queue()
        waiting, free, running = list(jobs), len(self._hosts(nodes)), 0
        while waiting or running:
            due = waiting[0].arrival if waiting and waiting[0].kind.nodes <= free else None
            if due is not None and due <= time.time():
                job = waiting.pop(0)
                free, running = free - job.kind.nodes, running + 1
                self._begin(testbed, policy, job, directory, ended, nodes)
                continue
            try:
                done = ended.get(timeout=_TIME_LIMIT if due is None else max(0.0, due - time.time()))
            except queue.Empty:
                if due is None:
                    raise RunFailed(f"no job ended in {_TIME_LIMIT:g} s") from None
                continue
            testbed.remove_cluster(done.name)
            free, running = free + done.kind.nodes, running - 1

    def _begin(
        self, testbed: Testbed, policy: str, job: _Job, directory: Path, ended: queue.Queue[_Job], nodes: str
    ) -> None:
        """Makes the job's cluster at the policy's hosts, and starts the job. A thread of its own waits for its end."""
        hosts, emulated = self._hosts(nodes), nodes == _VMS and self._emulated
        testbed.await_operations("balance")  # the nodes that it moves are on other hosts afterwards
        if policy.startswith(_FIRST):
            taken = {node.host for node in testbed.client.nodes()}
            hosts = [host for host in hosts if host not in taken][: job.kind.nodes]
        memory = MEMORY.shown(self.value(VM_MEMORY if emulated else MEMORY))
        nic = "virtio" if nodes == _VMS else ""
        job.shape = ClusterShape(job.name, job.kind.nodes, tuple(hosts), memory=memory, spread="pack", nic=nic)
        testbed.ensure_cluster(job.shape)
        job.split = len({node.host[0] for node in testbed.client.nodes(job.name)}) > 1
        own = directory / f"{job.name}-{job.kind.program}"
        own.mkdir()
        size = self.value(VM_CLASS if emulated else _CLASSES[job.kind.program])
        argv = [str(native_program(f"npb-{job.kind.program}-openmpi")), size]
        env = workloads.npb_environment(job.shape)
        job.running = testbed.start_job(job.shape, argv, job.kind.nodes, own, "openmpi", env)
        threading.Thread(target=_await_end, args=(job, own, ended), name=job.name, daemon=True).start()

    def page(self, results: Results) -> Page:
        page = Page(tables=[self._turnarounds(results), self._by_program(results)])
        policies, kinds = self.factors()
        groups: dict[str, dict[str, list[float]]] = {}
        for combination in self.combinations():
            data = {
                what: results.values(combination, metric)
                for what, metric in (("mean", "turnaround_mean"), ("worst", "turnaround_worst"))
            }
            if all(data.values()):
                vms = ", VMs" if combination["nodes"] == _VMS else ""
                groups[f"{combination['policy']}{vms}"] = data
        if groups:
            caption = "Turnaround of the jobs, mean and worst of a run, by policy."
            page.figures.append((caption, figures.bars(groups, "s")))
        for kind in kinds.measured():
            texts = ", ".join(f"{job.program.upper()} on {job.nodes}" for job in self.jobs(kind))
            page.remarks.append(
                f"The jobs on {kinds.label(kind)}: {texts} nodes, {self.value(GAP):g} s after each other. `{_FIRST}`: "
                f"{policies.label(_FIRST)}. A turnaround counts from a job's arrival to its end."
            )
        return page

    def _turnarounds(self, results: Results) -> Table:
        rows = []
        policies, kinds = self.factors()
        for combination in self.combinations():
            first = Combination.of(policy=_FIRST, nodes=combination["nodes"])
            cells = [policies.label(combination["policy"]), kinds.label(combination["nodes"])]
            for metric in ("turnaround_mean", "turnaround_worst"):
                data, base = results.values(combination, metric), results.values(first, metric)
                over = analysis.ratio_of_runs(data, base) if combination != first else None
                cells.append(median(data).text() if data else "not measured")
                cells += [over.text(), analysis.significance_text(data, base)] if over else ["", ""]
            for metric in ("waited", "split", "moves"):
                data = results.values(combination, metric)
                cells.append(f"{median(data).value:.3g}" if data else "-")
            rows.append(tuple(cells))
        times = ("mean, s", ": first come", "test", "worst, s", ": first come", "test")
        head = ("policy", "nodes", *times, "mean wait, s", "split jobs", "moves")
        return Table("Turnaround", head, rows, main=True)

    def _by_program(self, results: Results) -> Table:
        rows = []
        for combination in self.combinations():
            data = [results.values(combination, f"ran_{program}") for program in _CLASSES]
            if any(data):
                names = (combination["policy"], self.factors()[1].label(combination["nodes"]))
                rows.append((*names, *(median(seconds).text() if seconds else "-" for seconds in data)))
        head = ("policy", "nodes", *map(str.upper, _CLASSES))
        return Table("Seconds that jobs ran, without their wait", head, rows)


def _await_end(job: _Job, directory: Path, ended: queue.Queue[_Job]) -> None:
    """Waits for a job by a connection of its own, notes how it ended, and reports that."""
    assert job.running is not None
    try:
        with Client() as client:
            running = RunningJob(client, job.running.job, directory)
            workloads.verified_seconds(running.wait(_TIME_LIMIT))
            record = client.job(job.running.job.id)
            job.began, job.ended = record.started or job.arrival, record.ended or time.time()
    except Exception as error:  # noqa: BLE001 - it belongs to the run, whose thread is another
        job.problem = str(error) or type(error).__name__
    ended.put(job)


def _values(jobs: Sequence[_Job], moves: int) -> list[Value]:
    turnarounds = [job.ended - job.arrival for job in jobs]
    ran: dict[str, list[float]] = {}
    for job in jobs:
        ran.setdefault(job.kind.program, []).append(job.ended - job.began)
    return [
        Value("turnaround_mean", sum(turnarounds) / len(jobs), "s"),
        Value("turnaround_worst", max(turnarounds), "s"),
        Value("waited", sum(max(0.0, job.began - job.arrival) for job in jobs) / len(jobs), "s"),
        Value("split", sum(job.split for job in jobs), ""),
        Value("moves", moves, ""),
        *(Value(f"ran_{name}", sum(seconds) / len(seconds), "s") for name, seconds in ran.items()),
    ]
