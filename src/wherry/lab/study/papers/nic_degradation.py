"""`nic-degradation`: overhead of virtual network adapters by message size, and in the round trip of a flood ping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, Value
from wherry.lab.study.papers import reference_values
from wherry.lab.study.program_output import flood_ping, pingpong
from wherry.lab.study.requirements import vms_are_emulated, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, Testbed, installed, program

_PINGS = 10_000
_PING_BYTES = 16
_SMALL = 65536
_SECONDS = 1200.0
"""Time limit of one ping-pong."""
_NATIVE = Level("native", "native (loopback TCP)")
_CONTAINER = Level("container", "container nodes on two hosts")
_MODELS = ("virtio", "e1000", "e1000e", "rtl8139")
"""VM network adapters; the paper has the first two."""
_VM_LARGEST = {True: 1 << 20, False: 8 << 20}
"""Largest message in bytes, by whether VMs are emulated (then about 10 MB/s). Even with KVM the slower adapters would
take hours for 1 GiB, and the paper stops at 64 KiB."""
_DIRECTION, _DRIVERS = (
    "The direction.",
    "The direction; drivers and emulation have changed since, so the reverse would be no surprise.",
)
"""Texts for the column `what may be compared`."""


class NicDegradation(Study):
    """Design, runs and report of the study."""

    name = "nic-degradation"
    title = "Degradation of messages by virtual networks"
    question = "By how much does each kind of virtual network lengthen messages against the machine's own?"
    validity_checks = ("every message of every size comes back with its content; every ping comes back.",)
    duration = ("forty minutes; seventy with virtual machines", "half a minute")
    repetitions = 10
    shows = ("How much longer a message or a ping takes between two container nodes than on the machine itself.",)
    limitations = (
        "The paper's native level is two machines with Gigabit Ethernet between them; here it is loopback on one "
        "machine, which has no card and no cable. The container's degradation is therefore an upper bound: the same "
        "cost beside a slower wire is a smaller share.",
        "The paper's order of e1000 before virtio is of its time (KVM of 2012) and would not be expected today.",
    )

    def factors(self) -> Sequence[Factor]:
        no_vm = why_no_vms(self.unavailable, self.quick)
        models = [Level(model, f"VM nodes on two hosts, {model}", no_vm) for model in _MODELS]
        why = no_vm or "the slower cards would take hours, and the paper looks at 64 KiB and less"
        long = Level("vm-long", f"VM nodes, messages of more than {self._vm_largest()}", why)
        nic = Factor("nic", "what the two ends are joined by", (_NATIVE, _CONTAINER, *models, long))
        flood = Level("flood", "flood ping", self.unavailable.get("ping", ""))
        tool = Factor("tool", "what is measured", (Level("pingpong", "MPI ping-pong"), flood))
        return [nic, tool, analysis.mpi_factor(self.quick, self.unavailable)]

    def _virtual(self) -> list[Level]:
        """The measured levels other than native."""
        nic = self.factors()[0]
        return [level for level in nic.levels if level is not _NATIVE and not level.left_out]

    def combinations(self) -> Sequence[Combination]:
        nics, tools, mpis = (factor.measured() for factor in self.factors())
        pings = [_flood_combination(nic) for nic in nics if "flood" in tools]
        return [*(_pingpong_combination(nic, mpi) for nic in nics for mpi in mpis), *pings]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        if combination["tool"] == "flood":
            return self._flood(testbed, combination["nic"], directory)
        limited = self.quick or combination["nic"] in _MODELS
        largest = self._largest(combination["nic"])
        limits = ["--above", str(_SMALL), "--few", "20"] if limited else ["--above", str(64 << 20), "--few", "10"]
        argv = [program("pingpong", combination["mpi"]), "--max", str(largest), *limits]
        testbed.require_memory(4 * largest)
        if combination["nic"] == _NATIVE.name:
            done = testbed.run_native(argv, 2, directory, _SECONDS, mpi=combination["mpi"])
        else:
            done = testbed.run_on_cluster(
                self._cluster(combination["nic"]), argv, 2, directory, _SECONDS, combination["mpi"]
            )
        return pingpong(done.require_success(), largest.bit_length())

    def _largest(self, nic: str) -> int:
        """Largest message in bytes."""
        if self.quick:
            return 1 << 20
        return _VM_LARGEST[vms_are_emulated(self.unavailable)] if nic in _MODELS else 1 << 30

    def _vm_largest(self) -> str:
        return figures.size_text(self._largest(_MODELS[0]))

    def _cluster(self, nic: str) -> ClusterShape:
        if nic in _MODELS:
            return ClusterShape(f"nic-{nic}", 2, ("a1", "a2"), memory="256MiB", nic=nic)
        return ClusterShape("nic", 2, ("a1", "a2"), memory="256MiB" if self.quick else "1536MiB")

    def _flood(self, testbed: Testbed, nic: str, directory: Path) -> list[Value]:
        argv = [installed("ping", "iputils-ping"), "-q", "-f", "-c", str(_PINGS), "-s", str(_PING_BYTES)]
        if nic == _NATIVE.name:
            done = testbed.run_command([*argv, "127.0.0.1"], directory, 120.0, {"LC_ALL": "C"})
        else:
            cluster = self._cluster(nic)
            to = testbed.addresses(cluster)[1]  # the only rank runs on the first node
            done = testbed.run_on_cluster(cluster, [*argv, to], 1, directory, 120.0, "openmpi", {"LC_ALL": "C"})
        return flood_ping(done.require_success(), _PINGS)

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables.append(self._paper_comparison(results))
        for mpi in self.factors()[2].measured():
            self._add_results(page, results, mpi, self.factors()[2].label(mpi))
        floods = {
            level.text: {"mean": [1e6 * y for y in results.values(_flood_combination(level.name), "rtt_mean")]}
            for level in (_NATIVE, *self._virtual())
        }
        pings = figures.bars(floods, "round trip, us")
        caption = f"Flood ping, {_PINGS} x {_PING_BYTES} bytes, in the form of the paper's Figure 4."
        page.figures.append((caption, pings))
        page.remarks += [
            f"The pings carry {_PING_BYTES} bytes: the paper's 12 leave no room for the time stamp on 64-bit Linux, "
            "and ping then prints no round-trip time.",
            "A run's number for a size is the median of its repetitions (the mean, as the paper uses it, is in "
            "samples.csv too): 30 exchanges that do not count, 100 that do; above "
            + ("64 KiB 20 and 20, up to 1 MiB (--quick)." if self.quick else "64 MiB 10 and 10, up to 1 GiB; ")
            + ("" if self.quick else f"between VM nodes above 64 KiB 20 and 20, up to {self._vm_largest()}."),
        ]
        return page

    def _add_results(self, page: Page, results: Results, mpi: str, label: str) -> None:
        native = _pingpong_combination(_NATIVE.name, mpi)
        virtual = {level.text: _pingpong_combination(level.name, mpi) for level in self._virtual()}
        curves = analysis.curves_by_size(results, {_NATIVE.text: native, **virtual})
        for text, combination in virtual.items():
            page.tables.append(_degradation_table(f"Degradation with {label}: {text}", results, native, combination))
        page.tables.append(analysis.latency_table(f"Communication time with {label}: half of the round trip", curves))
        shares = {text: _degradation(results, native, combination) for text, combination in virtual.items()}
        figure = figures.estimates(shares, "degradation, %", 100)
        what = "1 - native time / virtual time"
        page.figures.append((f"Degradation with {label}, in the form of the paper's Figure 2: {what}.", figure))
        small = {name: {x: y for x, y in points.items() if x <= _SMALL} for name, points in curves.items()}
        times = figures.curves(small, "half round trip, us", scale=lambda _, y: 1e6 * y)
        page.figures.append((f"Times from 1 B to 64 KiB with {label}, in the form of the paper's Figure 3.", times))

    def _paper_comparison(self, results: Results) -> Table:
        pings = {nic: results.values(_flood_combination(nic), "rtt_mean") for nic in self.factors()[0].measured()}
        native = pings[_NATIVE.name]
        cards = [pings.get(model, []) for model in _MODELS[:2]]
        times = [(level.name, pings[level.name]) for level in self._virtual()]
        rows = [
            reference_values.PaperComparison(
                "degradation over message size",
                "a figure from 0 to 100 %, without numbers",
                "Figure 2",
                "see the figure below",
                "The shape: the cost is one of latency, so its share falls as messages grow.",
            ),
            reference_values.PaperComparison(
                "flood ping: virtual, round trip (us)",
                "a figure from 0 to 1200 us, without numbers",
                "Figure 4",
                _each(times, lambda data: median([1e6 * y for y in data])),
                "Nothing absolute: there a card and a cable are between, here neither.",
            ),
            *(
                reference_values.ratio(
                    f"flood ping: {name} over native", "above 1 for both cards", "Figure 4", data, native, _DIRECTION
                )
                for name, data in times
            ),
            reference_values.ratio(
                "flood ping: virtio over e1000",
                "above 1: e1000 degrades less",
                "conclusions",
                cards[0],
                cards[1],
                _DRIVERS,
            ),
            *(self._adapter_comparison(results, size) for size in (1.0, float(_SMALL))),
            reference_values.PaperComparison(
                "half of the round trip from 1 B to 64 KiB",
                "a figure from 0 to 6000 us, without numbers",
                "Figure 3",
                "see the figure below",
                "The shape: flat while latency rules, then a straight line. Nothing absolute: there is a cable there.",
            ),
        ]
        return reference_values.table(rows, reference_values.KVM)

    @staticmethod
    def _adapter_comparison(results: Results, size: float) -> reference_values.PaperComparison:
        """Comparison of the paper's two adapters at a message size."""
        virtio, e1000 = (
            results.values(_pingpong_combination(model, "openmpi"), analysis.LATENCY, size) for model in _MODELS[:2]
        )
        what, where = f"ping-pong of {figures.size_text(size)}: virtio over e1000", "Figures 2 and 3, conclusions"
        return reference_values.ratio(what, "above 1: e1000 degrades less", where, virtio, e1000, _DRIVERS)


def _each(data: Sequence[tuple[str, list[float]]], find: Callable[[list[float]], Estimate | None]) -> str | None:
    """One text with the estimate of each entry that has samples; None if none has."""
    estimates = [(name, find(samples)) for name, samples in data if samples]
    return "; ".join(f"{name} {estimate.text()}" for name, estimate in estimates if estimate) or None


def _flood_combination(nic: str) -> Combination:
    return Combination.of(nic=nic, tool="flood", mpi="openmpi")  # the launcher only starts the ping, which uses no MPI


def _pingpong_combination(nic: str, mpi: str) -> Combination:
    return Combination.of(nic=nic, tool="pingpong", mpi=mpi)


def _degradation(results: Results, native: Combination, virtual: Combination) -> dict[float, Estimate]:
    """Message size -> degradation in percent: 100 (1 - native / virtual), with its interval from that of the ratio."""
    estimates = {}
    for x in results.xs(virtual, analysis.LATENCY):
        data = [results.values(combination, analysis.LATENCY, x) for combination in (native, virtual)]
        ratio = analysis.ratio_or_none(data[0], data[1])
        if ratio:
            low, high = 100 * (1 - ratio.high), 100 * (1 - ratio.low)
            estimates[x] = Estimate(100 * (1 - ratio.value), low, high, ratio.count, ratio.method)
    return estimates


def _degradation_table(title: str, results: Results, native: Combination, virtual: Combination) -> Table:
    rows = []
    for x, share in _degradation(results, native, virtual).items():
        data = [results.values(combination, analysis.LATENCY, x) for combination in (virtual, native)]
        times = analysis.ratio_or_none(data[0], data[1])
        if times:
            rows.append(
                (figures.size_text(x), share.text(), times.text(), analysis.significance_text(data[0], data[1]))
            )
    head = ("size", "degradation, %", "virtual : native", "test")
    return Table(title, head, rows)
