"""`colocated`: does placing two communicating nodes on one host pay? Ping-pong between two ranks by their location. The
paper on Xen measured 180 Mbit/s between two VMs on a host, and 1200 Mbit/s natively."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.study import analysis, exchanges
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, Value
from wherry.lab.study.papers import reference_values
from wherry.lab.study.program_output import pingpong
from wherry.lab.study.requirements import vms_are_emulated, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, NAMES, Setting
from wherry.lab.study.testbed import ClusterShape, Testbed, program

_SIX_MEGABYTES = 6 << 20
"""Message size of the paper's numbers."""
NATIVE_SHM = Level("native-shm", "native, shared memory")
NATIVE_TCP = Level("native-tcp", "native, TCP")
ONE_NODE = Level("one-node", "two ranks in one node")
ONE_HOST = Level("one-host", "two nodes on one host")
TWO_HOSTS = Level("two-hosts", "two nodes on two hosts")
VM_ONE_HOST = Level("vm-one-host", "two VM nodes on one host")
VM_COMPUTED = Level("vm-one-host-sums", "two VM nodes on one host, checksums computed (no offload)")
VM_E1000 = Level("vm-one-host-e1000", "two VM nodes on one host, e1000")
VM_E1000_COMPUTED = Level("vm-one-host-e1000-sums", "two VM nodes on one host, e1000, checksums computed")
_VMS = (VM_ONE_HOST, VM_COMPUTED, VM_E1000, VM_E1000_COMPUTED)
_VM = VM_ONE_HOST.name
_EMULATED_LARGEST = 1 << 20
"""Largest message in bytes without KVM (besides the paper's size): an emulated VM transfers about 10 MB/s."""
_MIN_VM_MEMORY = 256
"""Least memory of a VM in MiB."""


def cluster_shapes(largest: int) -> dict[str, ClusterShape]:
    """Level -> cluster, with memory for messages of `largest` bytes in each rank's buffer and in transit."""
    rank = (largest + largest // 2 >> 20) + 192
    memory, both = f"{rank}MiB", f"{2 * rank}MiB"
    vms = {
        level.name: ClusterShape(
            level.name.replace("-host", ""),
            2,
            ("a1",),
            memory=f"{max(rank, _MIN_VM_MEMORY)}MiB",
            spread="pack",
            nic="e1000" if level in (VM_E1000, VM_E1000_COMPUTED) else "virtio",
            checksum_offload=level in (VM_ONE_HOST, VM_E1000),
        )
        for level in _VMS
    }
    return {
        TWO_HOSTS.name: ClusterShape("two-hosts", 2, ("a1", "a2"), memory=memory),
        ONE_HOST.name: ClusterShape("one-host", 2, ("b1",), memory=memory, spread="pack"),
        ONE_NODE.name: ClusterShape("one-node", 1, ("b2",), cpus=2.0, memory=both),
        **vms,
    }


_PLACES = (NATIVE_SHM, NATIVE_TCP, ONE_NODE, ONE_HOST, TWO_HOSTS, *_VMS)
_NAMES = tuple(level.name for level in _PLACES)
WHERE = Setting("where", "places of the two ranks that are measured", ",".join(_NAMES), ",".join(_NAMES), unit=NAMES,
                choices=_NAMES)  # fmt: skip
LARGEST = Setting(
    "largest",
    "largest message",
    1 << 30,
    8 << 20,
    unit=BYTES,
    least=6_000_000,
    most=1 << 30,
)


VM_LARGEST = Setting(
    "vm.largest",
    "largest message between VM nodes, `largest` at most; 1 MiB without KVM",
    1 << 30,
    8 << 20,
    unit=BYTES,
    least=1,
    most=1 << 30,
)


class Colocated(Study):
    """Design, runs and report of the study."""

    settings = (WHERE, LARGEST, VM_LARGEST, *exchanges.SETTINGS)

    name = "colocated"
    why_not_on_own_hosts = (
        "its native ranks are two of one machine, over its memory and loopback: run it on that machine"
    )
    title = "Two ranks that talk: in one node, on one host, on two hosts"
    question = "What do two nodes on one host lose against two ranks in one node, and against native runs?"
    validity_checks = ("every message of every size comes back with its content.",)
    duration = ("about an hour; three with emulated virtual machines", "a minute")
    repetitions = 10
    shows = (
        "The cost of the network between container nodes, by message size, beside the same program run natively over "
        "TCP and over shared memory on the same CPUs.",
    )
    limitations = (
        "The hosts are emulated on this machine: two nodes on two hosts share its CPUs and memory, and no network card "
        "or cable is between them. The difference between one and two hosts is that of the emulated network alone.",
        "Ranks in one node talk over TCP too (only then can the node move), so the paper's case of shared memory "
        "inside a virtual machine has no counterpart; native shared memory is the bound.",
    )

    def factors(self) -> Sequence[Factor]:
        no_vm = why_no_vms(self.unavailable, self.quick)
        levels = self.chosen(WHERE, (replace(one, left_out=no_vm) if one in _VMS else one for one in _PLACES))
        return [Factor("where", "where the two ranks are", levels), analysis.mpi_factor(self.quick, self.unavailable)]

    def combinations(self) -> Sequence[Combination]:
        where, mpi = self.factors()
        return [Combination.of(where=level, mpi=name) for level in where.measured() for name in mpi.measured()]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        vm = combination["where"].startswith(_VM)
        largest = self._largest(combination["where"])
        limits = exchanges.words(self, 65536 if self.quick or vm else 64 << 20, self.value(exchanges.FEW))
        words = ["--max", str(largest), *limits, "--also", str(_SIX_MEGABYTES)]
        testbed.require_memory(4 * largest)
        where, mpi, seconds = combination["where"], combination["mpi"], 120.0 if self.quick else 1200.0
        argv = [program("pingpong", mpi), *words]
        cluster = cluster_shapes(largest).get(where)
        testbed.leave_machines_of(cluster if cluster and cluster.nic else None)
        if cluster is None:
            done = testbed.run_native(argv, 2, directory, seconds, where.removeprefix("native-"), mpi)
        else:
            done = testbed.run_on_cluster(cluster, argv, 2, directory, seconds, mpi)
        return pingpong(done.require_success(), largest.bit_length() + 1)

    def _largest(self, where: str) -> int:
        """Largest message in bytes."""
        if not where.startswith(_VM):
            return self.value(LARGEST)
        if vms_are_emulated(self.unavailable) and VM_LARGEST.name not in self.given:
            return _EMULATED_LARGEST
        return min(self.value(VM_LARGEST), self.value(LARGEST))

    def page(self, results: Results) -> Page:
        page = Page()
        where, mpi = self.factors()
        page.tables += [self._paper_comparison(results), *(self._ratios(results, name) for name in mpi.measured())]
        for name in mpi.measured():
            combinations = {where.label(level): Combination.of(where=level, mpi=name) for level in where.measured()}
            self._add_results(page, results, mpi.label(name), combinations)
        few = f"{self.value(exchanges.FEW)} and as many"
        page.remarks.append(
            "A run's number for a size is the median of its repetitions (the mean, as the papers use it, is in "
            f"samples.csv too): {exchanges.told(self)}; above "
            + (
                f"64 KiB {few} (--quick)."
                if self.quick
                else f"64 MiB {few}; VM nodes: above 64 KiB, up to {figures.size_text(self._largest(_VM))}."
            )
        )
        return page

    @staticmethod
    def _add_results(page: Page, results: Results, mpi: str, combinations: dict[str, Combination]) -> None:
        curves = analysis.curves_by_size(results, combinations)
        page.tables.append(analysis.latency_table(f"Latency with {mpi}: half of the round trip", curves))
        bandwidths = figures.curves(
            curves, "Mbit/s (10^6)", log_y=True, scale=analysis.bandwidth, published=reference_values.ON_ONE_HOST
        )
        caption = f"Bandwidth over message size with {mpi}, in the form of the paper's Figures 3 and 4."
        page.figures.append((f"{caption} {reference_values.STARS}", bandwidths))
        small = analysis.curves_by_size(results, combinations, max_size=65536)
        latencies = figures.curves(small, "half round trip, us", log_y=True, scale=lambda _, y: 1e6 * y)
        page.figures.append((f"Latency of small messages with {mpi}.", latencies))

    def _paper_comparison(self, results: Results) -> Table:
        where, mpi = self.factors()
        rows = (
            row
            for name in mpi.measured()
            for row in _paper_comparison(results, name, mpi.label(name), where.measured())
        )
        return reference_values.table(list(rows), reference_values.XEN)

    def _ratios(self, results: Results, mpi: str) -> Table:
        rows = []
        for x in (1, 1024, 65536, 1 << 20, _SIX_MEGABYTES):
            for level, baseline in (
                (ONE_HOST, ONE_NODE),
                (ONE_HOST, NATIVE_TCP),
                (ONE_HOST, TWO_HOSTS),
                (VM_COMPUTED, VM_ONE_HOST),
                (VM_E1000_COMPUTED, VM_E1000),
            ):
                combinations = [Combination.of(where=one.name, mpi=mpi) for one in (level, baseline)]
                data = [results.values(combination, analysis.LATENCY, x) for combination in combinations]
                estimate = analysis.ratio_or_none(data[0], data[1])
                if estimate:
                    text = f"{level.text} : {baseline.text}"
                    rows.append(
                        (figures.size_text(x), text, estimate.text(), analysis.significance_text(data[0], data[1]))
                    )
        title = f"Times with {self.factors()[1].label(mpi)} as ratios (above 1: slower)"
        return Table(title, ("size", "what", "ratio", "test"), rows)


def _paper_comparison(
    results: Results, mpi: str, label: str, measured: Sequence[str]
) -> Iterator[reference_values.PaperComparison]:
    """Comparison with the paper's bandwidths at 6 MB for one MPI; bandwidth is inversely proportional to time."""
    compared = (
        (
            ONE_HOST,
            NATIVE_SHM,
            "180 / 1200 = 0.15",
            "The direction and the ratio; the absolute rates are those of 2007's hardware. The paper's native case "
            "used MPI's own choice on one machine, which is shared memory.",
        ),
        (
            ONE_HOST,
            NATIVE_TCP,
            "180 / 1200 = 0.15",
            "The same against loopback TCP, which leaves out what shared memory gains.",
        ),
        (
            VM_ONE_HOST,
            NATIVE_SHM,
            "180 / 1200 = 0.15",
            "The direction; the ratio only with KVM, as without it a VM's processor is emulated.",
        ),
        (
            VM_ONE_HOST,
            VM_COMPUTED,
            "considerably faster, without a number",
            "The direction: with offload no checksum is computed between nodes of a host, and frames leave the guest "
            "whole; the paper switched the computing off. The ratio only with KVM.",
        ),
        (
            ONE_NODE,
            NATIVE_TCP,
            "about 1",
            "The direction, and against native TCP only: ranks of one node talk over TCP here.",
        ),
    )
    for level, baseline, value, may in compared:
        if level.name in measured:
            combinations = [Combination.of(where=one.name, mpi=mpi) for one in (baseline, level)]
            times = [results.values(combination, analysis.LATENCY, _SIX_MEGABYTES) for combination in combinations]
            quantity = f"{label}: bandwidth at 6 MB, {level.text} : {baseline.text}"
            yield reference_values.ratio(quantity, value, "Figure 4", times[0], times[1], may)
