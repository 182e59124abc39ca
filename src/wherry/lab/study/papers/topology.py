"""`topology`: spread over two sites, or packed at one with slower processors? Whole runs of both are an oracle, with
which Wherry's decision after a brief run is compared. Factors: program, link, where the ranks are; and for programs
with large collectives, whether these go by sites.

Invariants: the daemon's own plan decides (`wherry balance`), and nothing is moved; a run whose nodes are at
other hosts than it asked for does not count."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from wherry.base.paths import native_program
from wherry.lab.applications import APPLICATIONS
from wherry.lab.study import applications, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers import topology_page
from wherry.lab.study.papers.topology_design import (
    AFTER,
    BRIEF,
    BY_SITES,
    CLASSES,
    LAMMPS,
    LAMMPS_STEPS,
    MEASURED,
    QUEENS,
    QUEENS_N,
    REMAINING,
    SHALLOW_N,
    SHALLOW_STEPS,
    TopologyDesign,
)
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed, program
from wherry.model.balance import BalancePlan, Kind
from wherry.model.records import Node

_TIME_LIMIT = 1800.0
_CLUSTERS = ("packed", "one", "apart")


class Topology(TopologyDesign, Study):
    """Runs and report of the study."""

    name = "topology"
    why_not_on_own_hosts = "it varies the latency of links and the speed of hosts, which only emulated ones have"
    title = "Spread over two sites, or packed at one"
    question = "Does Wherry know after a brief run whether a program is faster spread or packed, and how often?"
    validity_checks = (
        "NPB's verification succeeds, LAMMPS came to its last step; the nodes were where they were to be.",
        "A brief run was still running when it had been measured.",
    )
    duration = ("five hours", "three minutes")
    repetitions = 3
    quick_repetitions = 1
    warmups = 0
    shows = (
        "Of CG, EP, FT, IS, LU, MG, N-Queens, a shallow-water model and LAMMPS, over three links: the time spread over "
        "two sites, with a fast host for each rank, beside that at one site where half of them have slow hosts; the "
        "balancer's decision by a profile of some seconds; how often it is right, and the loss by a wrong one.",
        "Of CG, FT, IS and LAMMPS: the time over two sites with collectives by sites and without, beside one site "
        "with as many fast hosts.",
    )
    limitations = (
        "Hosts are emulated on one machine, limited to a share of a processor in periods of 5 ms: a rank that has used "
        "its share waits for some milliseconds, so messages over the shortest link meet that wait.",
        "At one site nothing crosses the link, so those runs are measured with the first link for all.",
        "Packed ranks have slow processors, not shared ones: nodes of a cluster share no processor of a host, so the "
        "rule has no case of it.",
        "The decision is of a job that is spread and would run for an hour: the cost of its moves, and the decision "
        "on a job that begins packed, are not asked. `packing` has the moves in its times.",
        "Programs, classes and shares of processors are an example: how often the rule is right depends on how many "
        "of its cells are close.",
    )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        where = combination["where"]
        shape = self.shape(where)
        testbed.remove_clusters([name for name in _CLUSTERS if name != shape.name])  # a host carries one node
        testbed.use_fabric(self.fabric(combination["link"]))
        testbed.client.auto_balance(False)
        testbed.ensure_cluster(shape)
        at = {node.host for node in testbed.client.nodes(shape.name)}
        if at != self.places(where):
            testbed.remove_cluster(shape.name)
            raise RunFailed(f"its nodes are on {', '.join(sorted(at))}")
        argv = self._argv(testbed, combination["program"], directory)
        env, by_sites = workloads.npb_environment(shape), where == BY_SITES
        job = testbed.start_job(shape, argv, shape.nodes, directory, "openmpi", env, by_sites)
        if where == BRIEF:
            return self._decision(testbed, job, shape, directory)
        return [self._seconds(combination["program"], job)]

    def _argv(self, testbed: Testbed, name: str, directory: Path) -> Sequence[str]:
        if name == LAMMPS:
            return applications.command(testbed, name, directory, self.value(LAMMPS_STEPS))
        if name in CLASSES:
            return [str(native_program(f"npb-{name}-openmpi")), self.value(CLASSES[name])]
        if name == QUEENS:
            return [program(QUEENS, "openmpi"), "--n", str(self.value(QUEENS_N))]
        cells, steps = self.value(SHALLOW_N), self.value(SHALLOW_STEPS)
        every = str(max(1, steps // 10))
        return [program(name, "openmpi"), "--n", str(cells), "--steps", str(steps), "--every", every]

    def _seconds(self, name: str, job: RunningJob) -> Value:
        """The program's own time."""
        done = job.wait(_TIME_LIMIT)
        if name != LAMMPS:
            return workloads.verified_seconds(done)
        done.require_success()
        application, steps = APPLICATIONS[name], self.value(LAMMPS_STEPS)
        log = (job.directory / application.log).read_text(errors="replace")
        if (seconds := application.seconds_of(log, steps)) is None:
            raise RunFailed(f"{name} came to step {application.result(log)[0]} of {steps}")
        return Value("seconds", seconds, "s")

    def _decision(self, testbed: Testbed, job: RunningJob, shape: ClusterShape, directory: Path) -> list[Value]:
        """Lets the job run for a moment, asks the balancer, and ends the job."""
        client, began = testbed.client, time.monotonic()
        try:
            time.sleep(self.value(AFTER))
            plan = client.balance(shape.name, self.value(MEASURED), self.value(REMAINING))
            took, ended = time.monotonic() - began, job.has_ended()
        finally:
            job.cancel()
        if ended:
            raise RunFailed("the program ended before it was measured; a larger class is needed")
        (directory / "decision").write_text("".join(f"{verdict.text}\n" for verdict in plan.verdicts))
        return [*decided(plan, client.nodes(shape.name)), Value("took", took, "s")]

    def page(self, results: Results) -> Page:
        return topology_page.page(self, results)


def decided(plan: BalancePlan, nodes: Sequence[Node]) -> list[Value]:
    """The decision of a plan for the nodes of one cluster: `packs` is 1 if they are at one site afterwards, else 0.
    Raises RunFailed where it decides nothing."""
    if len(plan.verdicts) != 1 or plan.verdicts[0].kind in (Kind.UNKNOWN, Kind.IDLE):
        raise RunFailed(f"nothing was decided: {'; '.join(verdict.text for verdict in plan.verdicts)}")
    verdict = plan.verdicts[0]
    where = {node.name: node.host for node in nodes} | {move.node: move.destination for move in plan.moves}
    return [
        Value("packs", float(len({host[0] for host in where.values()}) == 1), ""),
        Value("predicted", verdict.step, ""),
        Value("link", verdict.link, ""),
        Value("computing", verdict.busiest, ""),
    ]
