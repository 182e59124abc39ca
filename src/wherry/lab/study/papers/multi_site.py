"""`multi-site`: cost and gain of spreading a job over two sites; replicates the paper on wide-area MPI. Factors:
program (NetPIPE, NPB), nodes or native, number of sites, overlay, latency of the link. NPB runs on hosts with a CPU
quota, so that twice the hosts have twice the compute capacity on the same machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wherry.base.paths import native_program
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median, ratio
from wherry.lab.study import analysis, sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.papers import reference_values
from wherry.lab.study.program_output import netpipe, netpipe_progress
from wherry.lab.study.requirements import why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, ProgramResult, Testbed, installed

_NATIVE, _NODES, _VMS, _NPB_VMS = "native", "nodes", "vm", "vm-npb"
_ONE, _TWO = "one", "two"
_NONE, _VPNS = "none", ("openvpn", "wireguard")
_LATENCIES = ("0", "1", "5", "10", "50")
_NETPIPE = {
    "netpipe": ("openmpi", "NPopenmpi", "netpipe-openmpi"),
    "netpipe-mpich": ("mpich", "NPmpich2", "netpipe-mpich2"),
}
_KERNELS = {"ep": ("W", "A"), "lu": ("S", "W"), "cg": ("S", "A"), "bt": ("S", "W")}
"""NPB program -> problem class with --quick, and without."""
_RANKS = {_ONE: 4, _TWO: 8}
_SQUARES = {_ONE: 4, _TWO: 9}
"""Ranks for BT, which needs a square number."""
_PAPER_GAIN = {"ep": "gains", "lu": "gains", "cg": "less likely to gain", "bt": "a figure without numbers"}
"""The paper's statement about doubling the nodes with a second site."""
_MEMORY = "160MiB"
_TIME_LIMIT = 1200.0
_LATENCY = "latency_mean"


class MultiSite(Study):
    """Design, runs and report of the study."""

    name = "multi-site"
    title = "One cluster over two sites"
    question = "What do nodes at two sites, a VPN between them and the latency of the link cost a job or win for it?"
    validity_checks = ("NPB's verification succeeds, NetPIPE wrote its times.",)
    duration = ("some hours", "three to five minutes")
    repetitions = 5
    quick_repetitions = 2
    shows = (
        "Latency and bandwidth between two ranks by where they are and by what is between the sites (NetPIPE), and "
        "whether twice as many nodes at two sites beat one site (EP, LU, CG, BT), natively and on container nodes.",
        "That CPU-bound programs gain from a second site as long as messages are few, and which latency takes the gain "
        "away: the order, and where it turns, not the times.",
    )
    limitations = (
        f"Hosts are emulated on one machine. For NPB each is limited to {sites.CPU_SHARE:g} of a CPU by a quota in "
        "periods of 5 ms, so twice the hosts is twice the compute although the CPUs are the same. A rank that has used "
        "its millisecond waits for up to 4: below about 5 ms of latency a message meets that wait and not the link. "
        "The waits are in the column `throttled`; gains at 0 and 1 ms are therefore lower bounds for fast hosts.",
        "At 0 ms the sites are joined by bare wires; from 1 ms on by netem or, where the kernel has none, by "
        "wherry-link, a process on the same CPUs as the ranks and ahead of them: the step from 0 to 1 ms is both that "
        "and the latency.",
        "Natively the ranks use the hosts' own network (9000 bytes a packet), nodes their cluster's (1500 bytes in a "
        "VXLAN): what nodes cost NetPIPE counts both.",
        "The VPNs' gateways share the CPUs with the ranks, as the paper's did not; its PacketiX and NIST Net are not "
        "here.",
    )

    def factors(self) -> Sequence[Factor]:
        only_full = "not with --quick" if self.quick else ""
        tests = (
            Level("netpipe", "NetPIPE, Open MPI"),
            Level("netpipe-mpich", "NetPIPE, MPICH", only_full),
            *(
                Level(name, f"NPB {name.upper()}, class {self._class(name)}", only_full if name in ("lu", "bt") else "")
                for name in _KERNELS
            ),
        )
        how = (
            Level(_NATIVE, "processes on the hosts"),
            Level(_NODES, "container nodes"),
            Level(_VMS, "VM nodes (NetPIPE)", why_no_vms(self.unavailable, self.quick)),
            Level(_NPB_VMS, "VM nodes (NPB)", why_no_vms(self.unavailable, self.quick, heavy=True)),
        )
        where = (Level(_ONE, "one site"), Level(_TWO, "two sites"))
        overlay = (
            Level(_NONE, "no VPN"),
            *(
                Level(name, text, self.unavailable.get(name, ""))
                for name, text in (("openvpn", "OpenVPN"), ("wireguard", "WireGuard"))
            ),
        )
        latency = tuple(Level(ms, f"{ms} ms", only_full if ms not in ("0", "10") else "") for ms in _LATENCIES)
        return [
            Factor("test", "what runs", tests),
            Factor("how", "on what", how),
            Factor("where", "where the ranks are", where),
            Factor("overlay", "the VPN between the sites", overlay),
            Factor("latency", "of the link, one way", latency),
        ]

    def _class(self, kernel: str) -> str:
        return _KERNELS[kernel][not self.quick]

    def combinations(self) -> Sequence[Combination]:
        tests, hows, _, overlays, latencies = (factor.measured() for factor in self.factors())
        return [
            Combination.of(test=test, how=how, where=where, overlay=overlay, latency=latency)
            for test in tests
            for how, where, overlay, latency in self._variants(test, overlays, latencies)
            if how in hows
        ]

    def _variants(
        self, test: str, overlays: Sequence[str], latencies: Sequence[str]
    ) -> Iterator[tuple[str, str, str, str]]:
        """The levels that a test is combined with: all for NetPIPE, VPNs at two latencies only for NPB, fewer with
        --quick."""
        hows = (_NODES,) if test == "netpipe-mpich" or self.quick and test != "netpipe" else (_NATIVE, _NODES)
        for how in (*hows, _VMS if test in _NETPIPE else _NPB_VMS):
            yield how, _ONE, _NONE, "0"
            for overlay in overlays:
                for latency in latencies:
                    if self._is_measured(test, how, overlay, latency):
                        yield how, _TWO, overlay, latency

    def _is_measured(self, test: str, how: str, overlay: str, latency: str) -> bool:
        if self.quick:
            return how == _NODES and (overlay == _NONE or test == "netpipe" and latency == "0")
        if test == "netpipe-mpich" or how == _VMS:
            return latency == "0" or test == "netpipe" and latency == "10"
        if how == _NPB_VMS:
            return overlay == _NONE and latency in ("0", "10")
        return test == "netpipe" or overlay == _NONE or how == _NODES and latency in ("0", "10")

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        testbed.use_fabric(sites.fabric(combination["overlay"], combination["latency"]))
        testbed.require_memory(_ranks(combination) << 29 if combination["how"] == _NPB_VMS else 1 << 30)
        return (
            self._netpipe(testbed, combination, directory)
            if combination["test"] in _NETPIPE
            else self._npb(testbed, combination, directory)
        )

    def _netpipe(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        mpi, name, package = _NETPIPE[combination["test"]]
        on_vms = combination["how"] == _VMS
        largest = 1 << 20 if self.quick or on_vms else 8 << 20
        repeats = {"0": 100, "1": 50, "5": 20, "10": 10, "50": 4}[combination["latency"]] // (5 if self.quick else 1)
        repeats = min(repeats, 10) if on_vms or combination["overlay"] != _NONE else repeats
        out = directory / "np.out"
        argv = [installed(name, package), "-u", str(largest), "-n", str(repeats)]
        argv += ["-p", "0", "-o", str(out)]
        near, far = sites.UNLIMITED_HOSTS["a"], sites.UNLIMITED_HOSTS["b"]
        hosts = near if combination["where"] == _ONE else (near[0], far[0])
        cluster = ClusterShape(f"pipe-{combination['where']}", 2, hosts, memory="256MiB")
        if on_vms:
            cluster = ClusterShape(f"vm-pipe-{combination['where']}", 2, hosts, memory="256MiB", nic="virtio")
        done = self._run(testbed, combination, cluster, argv, directory, mpi)
        text = done.require_success()
        if not on_vms and not out.exists():
            raise RunFailed("NetPIPE wrote no output file")
        values = netpipe_progress(text + done.stderr) if on_vms else netpipe(out.read_text())
        smallest = min(values, key=lambda value: value.x or 0)
        highest = max(analysis.bandwidth(value.x or 0, value.value) for value in values)
        return [*values, Value("latency", smallest.value, "s"), Value("bandwidth", highest, "Mbit/s")]

    def _npb(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        kernel, where, ranks = combination["test"], combination["where"], _ranks(combination)
        hosts = (
            sites.NEAR_HOSTS[:ranks]
            if where == _ONE
            else (*sites.NEAR_HOSTS[: ranks - len(sites.FAR_HOSTS)], *sites.FAR_HOSTS)
        )
        cluster = ClusterShape(f"{where}-{ranks}", ranks, hosts, cpus=sites.CPU_SHARE, memory=_MEMORY)
        if combination["how"] == _NPB_VMS:
            cluster = replace(cluster, name=f"vm-{cluster.name}", memory="256MiB", nic="virtio")
        argv = [str(native_program(f"npb-{kernel}-openmpi")), self._class(kernel)]
        if combination["how"] != _NATIVE:
            testbed.ensure_cluster(cluster)
        before, began = sites.read_throttled(), time.monotonic()
        done = self._run(testbed, combination, cluster, argv, directory, "openmpi")
        wall, waited = time.monotonic() - began, sites.throttled_between(before, sites.read_throttled())
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
        if combination["how"] != _NATIVE:
            return testbed.run_on_cluster(
                cluster, argv, cluster.nodes, directory, _TIME_LIMIT, mpi, workloads.ONE_THREAD
            )
        return sites.run_on_hosts(testbed, cluster.hosts, argv, directory, _TIME_LIMIT)

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables += [self._paper_comparison(results), self._netpipe_table(results), self._gain_table(results)]
        curves = analysis.curves_by_size(
            results,
            {
                self._label(combination): combination
                for combination in self.combinations()
                if combination["test"] == "netpipe" and combination["how"] == _NODES and combination["latency"] == "0"
            },
            _LATENCY,
        )
        drawn = figures.curves(curves, "Mbit/s (10^6)", log_y=True, scale=analysis.bandwidth)
        page.figures.append(("NetPIPE between container nodes: bandwidth by what is between the sites.", drawn))
        if groups := self._gain_groups(results):
            caption = "Gain of two sites over one, by kernel and latency of the link, on container nodes without a VPN."
            page.figures.append((caption, figures.bars(groups, "times as fast")))
        page.remarks.append(
            "Gain is the time at one site over that at two with about twice the ranks, both of the same kind; 1 is no "
            "gain, the bound is the ratio of the ranks. `throttled` is what a rank waited for its host's CPU quota, on "
            "average, as a share of the whole run, its launch included; ranks that wait for messages poll, and use up "
            "their quota by that."
        )
        return page

    def _combination(
        self, test: str, how: str, where: str = _ONE, overlay: str = _NONE, latency: str = "0"
    ) -> Combination:
        return Combination.of(test=test, how=how, where=where, overlay=overlay, latency=latency)

    def _label(self, combination: Combination) -> str:
        """Text for the ranks' locations and the link between them."""
        _, how, where, overlay, latency = self.factors()
        if combination["where"] == _ONE:
            return f"{how.label(combination['how'])}, {where.label(_ONE)}"
        between = "" if combination["overlay"] == _NONE else f", {overlay.label(combination['overlay'])}"
        return f"{how.label(combination['how'])}, {where.label(_TWO)}{between}, {latency.label(combination['latency'])}"

    def _netpipe_table(self, results: Results) -> Table:
        rows = []
        for combination in self.combinations():
            data = [results.values(combination, name) for name in ("latency", "bandwidth")]
            if combination["test"] in _NETPIPE and all(data):
                times = median([1e3 * y for y in data[0]]).text()
                test = self.factors()[0].label(combination["test"])
                rows.append((test, self._label(combination), times, median(data[1]).text()))
        return Table("NetPIPE", ("test", "ranks", "least latency, ms", "most bandwidth, Mbit/s (10^6)"), rows)

    def _gain_table(self, results: Results) -> Table:
        rows = []
        for combination in self.combinations():
            seconds = results.values(combination, "seconds")
            if combination["test"] in _NETPIPE or not seconds:
                continue
            walls = results.values(combination, "wall")  # includes the launch, in which ranks are throttled too
            waits = [wait / wall for wait, wall in zip(results.values(combination, "throttled"), walls, strict=False)]
            gain, tested = self._gain(results, combination)
            share = f"{100 * min(1.0, median(waits).value):.0f} %" if waits else "-"
            ranks = f"{_ranks(combination)}"
            test = self.factors()[0].label(combination["test"])
            rows.append(
                (
                    test,
                    self._label(combination),
                    ranks,
                    median(seconds).text(),
                    gain.text() if gain else "",
                    tested,
                    share,
                )
            )
        head = ("test", "ranks are", "ranks", "seconds", "gain", "gain's test", "throttled")
        return Table("NPB on limited hosts", head, rows)

    def _gain(self, results: Results, combination: Combination) -> tuple[Estimate | None, str]:
        """Speedup over one site, and the result of its significance test."""
        if combination["where"] == _ONE:
            return None, ""
        one = results.values(self._combination(combination["test"], combination["how"]), "seconds")
        two = results.values(combination, "seconds")
        return (ratio(one, two), analysis.significance_text(one, two)) if one and two else (None, "")

    def _gain_groups(self, results: Results) -> dict[str, dict[str, list[float]]]:
        groups: dict[str, dict[str, list[float]]] = {}
        for kernel in _KERNELS:
            one = results.values(self._combination(kernel, _NODES), "seconds")
            for level in self.factors()[4].measured():
                two = results.values(self._combination(kernel, _NODES, _TWO, _NONE, level), "seconds")
                if one and two:
                    baseline = median(one).value
                    groups.setdefault(kernel.upper(), {})[f"{level} ms"] = [baseline / seconds for seconds in two]
        return groups

    def _paper_comparison(self, results: Results) -> Table:
        rows = [*self._netpipe_comparison(results)]
        for kernel in _KERNELS:
            rows += self._kernel_comparison(results, kernel)
        return reference_values.table(rows, reference_values.WIDE)

    def _netpipe_comparison(self, results: Results) -> Iterator[reference_values.PaperComparison]:
        native, nodes, two_sites = (self._combination("netpipe", *at) for at in ((_NATIVE,), (_NODES,), (_NODES, _TWO)))
        vm = "The direction; containers share the host's kernel, the paper's domains went through another one."
        vpn = "The direction; gateways were machines of their own there and share the CPUs here."
        kvm = "The direction; the ratio only with KVM, as without it a VM's processor is emulated."
        guests = self._combination("netpipe", _VMS)
        other = "Nothing directly: another VPN. It is the second one here, as PacketiX was there."
        comparisons = (
            ("latency", "one site: nodes over native", nodes, native, "0.08 / 0.04 = 2.0", vm),
            ("bandwidth", "one site: nodes : native", nodes, native, "430 / 896 = 0.48", vm),
            ("latency", "one site: VM nodes over native", guests, native, "0.08 / 0.04 = 2.0", kvm),
            ("bandwidth", "one site: VM nodes : native", guests, native, "430 / 896 = 0.48", kvm),
            ("latency", "two sites: openvpn over none", None, two_sites, "0.15 / 0.04 = 3.8", vpn),
            ("bandwidth", "two sites: openvpn : none", None, two_sites, "290 / 896 = 0.32", vpn),
            ("latency", "two sites: wireguard over none", None, two_sites, "PacketiX: 0.36 / 0.04 = 9", other),
            ("bandwidth", "two sites: wireguard : none", None, two_sites, "PacketiX: 170 / 896 = 0.19", other),
        )
        for metric, what, combination, baseline, published, comparable in comparisons:
            if combination is None:
                combination = self._combination("netpipe", _NODES, _TWO, what.split()[2])
            ours, theirs = (results.values(one, metric) for one in (combination, baseline))
            yield reference_values.ratio(
                f"{metric}, {what}", published, what.partition(":")[0], ours, theirs, comparable
            )

    def _kernel_comparison(self, results: Results, kernel: str) -> Iterator[reference_values.PaperComparison]:
        nodes, native = (results.values(self._combination(kernel, how), "seconds") for how in (_NODES, _NATIVE))
        cost = "about 1.0" if kernel in ("ep", "lu") else "below 1.2"
        comparable = "The order: little for EP and LU, more for CG and BT."
        what = f"{kernel.upper()} on one site: nodes over native, times"
        yield reference_values.ratio(what, cost, "summary", nodes, native, comparable)
        gains = {ms: self._gain(results, self._combination(kernel, _NODES, _TWO, _NONE, ms)) for ms in ("0", "10")}
        text = "; ".join(f"{ms} ms: {gain.text()} ({tested})" for ms, (gain, tested) in gains.items() if gain)
        comparable = "Whether it gains at all; 64 nodes against 32 there, 8 or 9 against 4 here."
        yield reference_values.PaperComparison(
            f"{kernel.upper()}: gain of a second site", _PAPER_GAIN[kernel], "two sites", text or None, comparable
        )


def _ranks(combination: Combination) -> int:
    return (_SQUARES if combination["test"] == "bt" else _RANKS)[combination["where"]]
