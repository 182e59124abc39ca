"""`multi-site`: cost and gain of spreading a job over several sites; replicates the paper on wide-area MPI. Factors:
program (NetPIPE, NPB), nodes or native, number of sites and ranks, overlay, latency of the link. NPB runs on hosts with
a CPU quota, so that twice the hosts have twice the compute capacity on the same machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wherry.base.paths import native_program
from wherry.client.client import Chunk
from wherry.lab.study import analysis, gateways, sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers import multi_site_page
from wherry.lab.study.papers.multi_site_design import (
    HOST_CPUS,
    LARGEST,
    MPICH,
    NATIVE,
    NATIVE_SMALL,
    NETPIPE,
    NODE_MEMORY,
    NONE,
    NPB_VMS,
    ONE,
    TWO,
    VM_LARGEST,
    VM_MEMORY,
    VMS,
    MultiSiteDesign,
    kernel_of,
)
from wherry.lab.study.program_output import netpipe, netpipe_progress
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, ProgramResult, Testbed, installed

_TIME_LIMIT = 1200.0
_NATIVES = (NATIVE, NATIVE_SMALL)


class MultiSite(MultiSiteDesign, Study):
    """Runs and report of the study."""

    name = "multi-site"
    why_not_on_own_hosts = "it varies the latency and the VPN of links, which only emulated ones have"
    title = "One cluster over several sites"
    question = "What do nodes at several sites, a VPN between them and the link's latency cost a job or win for it?"
    validity_checks = ("NPB's verification succeeds, NetPIPE wrote its times.",)
    duration = ("some hours", "three to five minutes")
    repetitions = 5
    quick_repetitions = 2
    shows = (
        "Latency and bandwidth between two ranks by their places and by the network between the sites (NetPIPE), and "
        "whether as many nodes at each further site beat one site (EP, LU, CG, BT), natively and on container nodes; "
        "the cost of nodes there, and how one site scales beyond four ranks.",
        "How busy the gateways of a VPN are with messages of which size (NetPIPE on nodes of two sites).",
        "That CPU-bound programs gain from a second site as long as messages are few, and which latency takes the gain "
        "away: the order, and where it turns, not the times.",
    )
    limitations = (
        f"Hosts are emulated on one machine. For NPB each is limited, usually to {sites.CPU_SHARE:g} of a CPU by a "
        "quota in periods of 5 ms, so twice the hosts is twice the compute although the CPUs are the same. A rank that "
        "has used its millisecond waits for up to 4: below about 5 ms of latency a message meets that wait. "
        "The waits are in the column `throttled`; gains at 0 and 1 ms are therefore lower bounds for fast hosts.",
        "Links lead from the first site to each other one, so between two others are two of them.",
        "At 0 ms the sites are joined by bare wires; from 1 ms on by netem or, where the kernel has none, by "
        "wherry-link, a process on the same CPUs as the ranks and ahead of them: the step from 0 to 1 ms is both that "
        "and the latency.",
        "Natively the ranks use the hosts' own network (9000 bytes a packet), nodes their cluster's (1500 bytes in a "
        "VXLAN): the cost of nodes for NetPIPE counts both.",
        "The VPNs' gateways share the CPUs with the ranks, as the paper's did not: while ranks poll, they get a part "
        "of a CPU, and may be the bottleneck below 1. Its PacketiX and NIST Net are not here.",
        "One site grows to as many ranks as the machine has CPUs for, where the paper went to 128.",
        "Virtual machines without KVM run NPB with few ranks of a small class, with "
        f"{sites.EMULATED_SHARE:g} of a CPU each: that it works over several sites, not its cost.",
        "NetPIPE has two ranks, so also with more sites than two it is of the first two.",
    )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        testbed.use_fabric(self.fabric(combination["overlay"], combination["latency"]))
        each = 2 * self.value(VM_MEMORY) if combination["how"] == NPB_VMS else 0
        testbed.require_memory(max(1 << 30, self.ranks(combination) * each))
        return (
            self._netpipe(testbed, combination, directory)
            if combination["test"] in NETPIPE
            else self._npb(testbed, combination, directory)
        )

    def _netpipe(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        mpi, name, package = NETPIPE[combination["test"]]
        on_vms = combination["how"] == VMS
        largest = min(self.value(VM_LARGEST), self.value(LARGEST)) if on_vms else self.value(LARGEST)
        repeats = self.exchanges(combination["latency"], on_vms or combination["overlay"] != NONE)
        out = directory / "np.out"
        argv = [installed(name, package), "-u", str(largest), "-n", str(repeats)]
        argv += ["-p", "0", "-o", str(out)]
        near, far = sites.UNLIMITED_HOSTS["a"], sites.UNLIMITED_HOSTS["b"]
        hosts = near if combination["where"] == ONE else (near[0], far[0])
        cluster = ClusterShape(f"pipe-{combination['where']}", 2, hosts, memory=NODE_MEMORY.shown(self.pipe_memory()))
        if on_vms:
            memory = VM_MEMORY.shown(self.value(VM_MEMORY))
            cluster = ClusterShape(f"vm-pipe-{combination['where']}", 2, hosts, memory=memory, nic="virtio")
        testbed.leave_machines_of(cluster if cluster.nic else None)
        done, joining = self._run_watched(testbed, combination, cluster, argv, directory, mpi)
        text = done.require_success()
        if not on_vms and not out.exists():
            raise RunFailed("NetPIPE wrote no output file")
        values = netpipe_progress(text + done.stderr) if on_vms else netpipe(out.read_text())
        smallest = min(values, key=lambda value: value.x or 0)
        highest = max(analysis.bandwidth(value.x or 0, value.value) for value in values)
        return [*values, Value("latency", smallest.value, "s"), Value("bandwidth", highest, "Mbit/s"), *joining]

    def _run_watched(
        self,
        testbed: Testbed,
        combination: Combination,
        cluster: ClusterShape,
        argv: Sequence[str],
        directory: Path,
        mpi: str,
    ) -> tuple[ProgramResult, list[Value]]:
        """Runs NetPIPE; on nodes of two sites with the CPU time of the parts that join them."""
        if combination["how"] == NATIVE or combination["where"] == ONE:
            return self._run(testbed, combination, cluster, argv, directory, mpi), []
        testbed.ensure_cluster(cluster)
        chunks: list[Chunk] = []
        with gateways.GatewayWatch() as watch:
            done = testbed.run_on_cluster(
                cluster, argv, cluster.nodes, directory, _TIME_LIMIT, mpi, workloads.ONE_THREAD, chunks.append
            )
        return done, gateways.values(watch.samples, gateways.windows(chunks))

    def _npb(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        kernel, how, ranks = kernel_of(combination["test"]), combination["how"], self.ranks(combination)
        mpi = "mpich" if combination["test"].endswith(MPICH) else "openmpi"
        all_sites, share = combination["where"] == TWO, self.value(HOST_CPUS)
        used, emulated = self.hosts(how).for_ranks(ranks, all_sites), how == NPB_VMS and self.emulated
        name, memory = f"{TWO if all_sites else ONE}-{ranks}", NODE_MEMORY.shown(self.value(NODE_MEMORY))
        cluster = ClusterShape(name, ranks, used, cpus=1.0 if emulated else share, memory=memory)
        if how == NPB_VMS:
            memory = VM_MEMORY.shown(self.value(VM_MEMORY))
            cluster = replace(cluster, name=f"vm-{name}", memory=memory, nic="virtio")
        argv = [str(native_program(f"npb-{kernel}-{mpi}")), self.npb_class(kernel, how)]
        testbed.leave_machines_of(cluster if cluster.nic else None)
        if how not in _NATIVES:
            testbed.make_room(cluster, sites.clusters_on_host(share))
            testbed.ensure_cluster(cluster)
        before, began = sites.read_throttled(used), time.monotonic()
        done = self._run(testbed, combination, cluster, argv, directory, mpi)
        wall, waited = time.monotonic() - began, sites.throttled_between(before, sites.read_throttled(used))
        values = workloads.npb_values(done)
        return [*values, Value("throttled", waited / ranks, "s"), Value("wall", wall, "s")]

    @staticmethod
    def _run(
        testbed: Testbed,
        combination: Combination,
        cluster: ClusterShape,
        argv: Sequence[str],
        directory: Path,
        mpi: str,
    ) -> ProgramResult:
        """Runs a program with one rank on each host of the cluster shape: on its nodes, or natively on the hosts."""
        if combination["how"] not in _NATIVES:
            env = workloads.ONE_THREAD if combination["test"] in NETPIPE else workloads.npb_environment(cluster)
            return testbed.run_on_cluster(cluster, argv, cluster.nodes, directory, _TIME_LIMIT, mpi, env)
        return sites.run_on_hosts(testbed, cluster.hosts, argv, directory, _TIME_LIMIT, mpi)

    def page(self, results: Results) -> Page:
        return multi_site_page.page(self, results)
