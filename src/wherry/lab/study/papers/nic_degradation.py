"""`nic-degradation`: overhead of virtual network adapters by message size, and in the round trip of a flood ping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.units import parse_size
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis, exchanges, message_counts
from wherry.lab.study.ec2_clusters import Ec2Testbed
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, Value
from wherry.lab.study.own_hosts import OwnHosts
from wherry.lab.study.papers import nic_counts, nic_levels, reference_values
from wherry.lab.study.papers.nic_levels import CONTAINER, NATIVE
from wherry.lab.study.program_output import flood_ping, pingpong
from wherry.lab.study.requirements import vms_are_emulated, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, NAMES, NUMBERS, Setting, several
from wherry.lab.study.testbed import ClusterShape, Testbed, installed, program

_NICS, _TOOLS = ",".join(nic_levels.names()), ("pingpong", "flood", "counts")
NICS = Setting("nics", "connections that are measured", _NICS, _NICS, unit=NAMES, choices=nic_levels.names())
TOOLS = Setting("tools", "measurements", ",".join(_TOOLS), ",".join(_TOOLS), unit=NAMES, choices=_TOOLS)
PINGS = Setting("pings", "flood pings", 10_000, 10_000, most=1_000_000)
LARGEST = Setting("largest", "largest message", 1 << 30, 1 << 20, unit=BYTES, least=1, most=1 << 30)
VM_LARGEST = Setting(
    "vm.largest",
    "largest message between VM nodes; 1 MiB without KVM",
    8 << 20,
    1 << 20,
    paper=1 << 30,
    unit=BYTES,
    least=1,
    most=1 << 30,
)
VM_BUDGET = Setting(
    "vm.budget",
    "data that VM nodes exchange of a size of more than 64 KiB, at most, but one message",
    160 << 20,
    160 << 20,
    unit=BYTES,
    least=1,
    most=1 << 40,
)
ADAPTERS = Setting(
    "adapters", "which network adapters VM nodes have", nic_levels.USUAL, nic_levels.USUAL, choices=("USUAL", "ALL")
)
CLUSTERS = Setting(
    "clusters",
    "interface by which clusters are made and removed: Wherry's own, or the EC2 Query API, as in the paper",
    nic_levels.OWN,
    nic_levels.OWN,
    choices=(nic_levels.OWN, nic_levels.EC2),
)
QUEUES = Setting("vm.queues", "queues, and CPUs, of virtio with several", 2, 2, least=2, most=16)
VM_FEW = Setting(
    "vm.few", "exchanges of more than 64 KiB between VM nodes, and with --quick, at most", 20, 20, most=100_000
)
PING_BYTES = Setting(
    "ping.bytes", "bytes of a ping; the paper's 12 leave no room for a time stamp", 16, 16, least=16, most=65_000
)
COUNTED_SIZES = Setting(
    "counted.sizes",
    "their sizes in bytes",
    several("1,1024,65536"),
    several("1,1024,65536"),
    unit=NUMBERS,
    most=1 << 20,
    many=16,
)
COUNTED = Setting("counted", "messages of each size whose events are counted", 200, 100, least=2, most=100_000)
_SMALL = 65536
_SECONDS = 1200.0
"""Time limit of one ping-pong; between VM nodes the time is added in which the slowest adapter sends its messages."""
_PAPERS = ("virtio", "e1000")
"""The paper's network adapters."""
_EMULATED_LARGEST = 1 << 20
"""Largest message in bytes without KVM (then about 10 MB/s), unless another is asked for. Even with KVM the slower
adapters would take hours for 1 GiB, and the paper's figures stop at 64 KiB."""
_DIRECTION, _DRIVERS = (
    "The direction.",
    "The direction; drivers and emulation have changed since, so the reverse would be no surprise.",
)
"""Texts for the column `comparable`."""


class NicDegradation(Study):
    """Design, runs and report of the study."""

    settings = (
        *(
            NICS,
            TOOLS,
            PINGS,
            PING_BYTES,
            LARGEST,
            *exchanges.SETTINGS,
            VM_LARGEST,
            VM_BUDGET,
            VM_FEW,
            ADAPTERS,
            QUEUES,
        ),
        *(COUNTED, COUNTED_SIZES, CLUSTERS),
    )

    name = "nic-degradation"
    why_not_on_own_hosts = ""
    title = "Degradation of messages by virtual networks"
    question = "By how much does each kind of virtual network lengthen messages against the machine's own, and why?"
    validity_checks = ("every message of every size comes back with its content; every ping comes back.",)
    duration = ("forty minutes; a day with emulated virtual machines", "a minute")
    repetitions = 10
    shows = (
        "How much longer a message or a ping takes between two container nodes than on the machine itself.",
        "The work for a message: interrupts, switches, accesses to the card, system calls and bytes that QEMU "
        "copies, for each network adapter.",
    )
    limitations = (
        "The paper's native level is two machines with Gigabit Ethernet between them; here it is loopback on one "
        "machine, which has no card and no cable. The container's degradation is therefore an upper bound: the same "
        "cost beside a slower wire is a smaller share.",
        "The paper's order of e1000 before virtio is of its time (KVM of 2012) and would not be expected today.",
    )

    def factors(self) -> Sequence[Factor]:
        no_vm = why_no_vms(self.unavailable, self.quick)
        levels = [
            Level(name, f"VM nodes on two hosts, {card.text}", no_vm or self._why_not(card))
            for name, card in self._cards.items()
        ]
        why = (
            no_vm or "the slower cards would take hours, and the paper looks at 64 KiB and less; --set vm.largest=1GiB"
        )
        long = [Level("vm-long", f"VM nodes, messages of more than {self._vm_largest()}", why)]
        everything = not no_vm and self._largest(_PAPERS[0]) >= self.value(LARGEST)
        chosen = self.chosen(NICS, (self._native, CONTAINER, *levels))
        nic = Factor("nic", "connection of the two ends", (*chosen, *([] if everything else long)))
        no_root = "a user of a private cloud is not root" if self._by_ec2 else ""
        flood = Level("flood", "flood ping", self.unavailable.get("ping", "") or no_root)
        no_counts = "events are counted of two ranks on this machine" if self.own_hosts else no_root
        counts = Level("counts", "events for each message", self.unavailable.get("mpirun.openmpi", "") or no_counts)
        tools = self.chosen(TOOLS, (Level("pingpong", "MPI ping-pong"), flood, counts))
        tool = Factor("tool", "what is measured", tools)
        return [nic, tool, analysis.mpi_factor(self.quick, self.unavailable)]

    @property
    def _cards(self) -> dict[str, nic_levels.Card]:
        return {card.name: card for card in nic_levels.cards(self.value(QUEUES))}

    def _why_not(self, card: nic_levels.Card) -> str:
        return card.why_not(self.unavailable, self.value(ADAPTERS), self.value(CLUSTERS))

    @property
    def _native(self) -> Level:
        return nic_levels.native(bool(self.own_hosts))

    def limits(self) -> Sequence[str]:
        if not self.own_hosts:
            return self.limitations
        wire = (
            "Native ranks and nodes are on the same two hosts and send over the same wire, as in the paper; on nodes a "
            "packet is 50 bytes smaller, for VXLAN's headers."
        )
        return (wire, *self.limitations[1:])

    def require_own_hosts(self, hosts: OwnHosts) -> None:
        if self._by_ec2:
            what, why = f"the study {self.name} cannot be run on own hosts by EC2", "accounts have emulated hosts"
            raise Refused(Code.UNSUPPORTED, what, why, f"wherry study run {self.name} --fabric {hosts.file}")
        cluster = self._container()
        hosts.require(self.name, cluster.nodes, cluster.cpus, parse_size(cluster.memory))

    def used_hosts(self) -> int:
        return self._container().nodes

    @property
    def _by_ec2(self) -> bool:
        return self.value(CLUSTERS) == nic_levels.EC2

    def testbed(self, out: Path) -> Testbed:
        return Ec2Testbed(out) if self._by_ec2 else super().testbed(out)

    def _virtual(self) -> list[Level]:
        """The measured levels other than native."""
        nic = self.factors()[0]
        return [level for level in nic.levels if level.name != NATIVE and not level.left_out]

    def combinations(self) -> Sequence[Combination]:
        nics, tools, mpis = (factor.measured() for factor in self.factors())
        pings = [_flood_combination(nic) for nic in nics if "flood" in tools]
        counts = [nic_counts.combination(nic) for nic in nics if "counts" in tools]
        sent = [_pingpong_combination(nic, mpi) for nic in nics for mpi in mpis if "pingpong" in tools]
        return [*sent, *pings, *counts]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        nic = combination["nic"]
        testbed.leave_machines_of(self._cluster(nic) if nic in self._cards else None)
        if combination["tool"] == "flood":
            return self._flood(testbed, nic, directory)
        if combination["tool"] == "counts":
            return self._counts(testbed, nic, directory)
        mpi = combination["mpi"]
        largest, (above, few) = self._largest(nic), self._few(nic)
        limits = exchanges.words(self, above, few)
        if nic in self._cards:
            limits += ["--budget", str(self.value(VM_BUDGET))]
        argv = [program("pingpong", mpi), "--max", str(largest), *limits]
        if not self.own_hosts:
            testbed.require_memory(4 * largest)
        if nic == NATIVE:
            done = testbed.run_native(argv, 2, directory, _SECONDS, mpi=mpi)
        else:
            done = testbed.run_on_cluster(self._cluster(nic), argv, 2, directory, self._limit(nic), mpi)
        return pingpong(done.require_success(), largest.bit_length())

    def _few(self, nic: str) -> tuple[int, int]:
        """Bytes above which a message is exchanged a few times only, and how many times."""
        if self.quick or nic in self._cards:
            return _SMALL, self.value(VM_FEW)
        return 64 << 20, self.value(exchanges.FEW)

    def _limit(self, nic: str) -> float:
        """Time limit in seconds of a ping-pong on nodes: by the bytes that VM nodes exchange."""
        if nic not in self._cards:
            return _SECONDS
        sent = exchanges.exchanged(self, self._largest(nic), *self._few(nic), self.value(VM_BUDGET))
        return _SECONDS + sent / self._cards[nic].least_rate

    def _counts(self, testbed: Testbed, nic: str, directory: Path) -> list[Value]:
        cluster = None if nic == NATIVE else self._cluster(nic)
        sizes = [int(size) for size in self.numbers(COUNTED_SIZES)]
        return message_counts.count(testbed, cluster, self.value(COUNTED), sizes, directory)

    def _largest(self, nic: str) -> int:
        """Largest message in bytes."""
        if nic not in self._cards:
            return self.value(LARGEST)
        if vms_are_emulated(self.unavailable) and VM_LARGEST.name not in self.given and not self.paper:
            return _EMULATED_LARGEST
        return self.value(VM_LARGEST)

    def _vm_largest(self) -> str:
        return figures.size_text(self._largest(_PAPERS[0]))

    def _cluster(self, nic: str) -> ClusterShape:
        if nic in self._cards:
            return self._cards[nic].shape(self._largest(nic))
        return self._container()

    def _container(self) -> ClusterShape:
        hosts = tuple(host.name for host in self.own_hosts.first(2)) if self.own_hosts else ("a1", "a2")
        return ClusterShape("nic", 2, hosts, memory="256MiB" if self.quick else "1536MiB")

    def _flood(self, testbed: Testbed, nic: str, directory: Path) -> list[Value]:
        argv = [installed("ping", "iputils-ping"), "-q", "-f", "-c", str(self.value(PINGS))]
        argv += ["-s", str(self.value(PING_BYTES))]
        if nic == NATIVE and self.own_hosts:  # from the first host, as on nodes
            words = [*argv, self.own_hosts.first(2)[1].wire]
            done = testbed.run_native(words, 1, directory, 120.0, "tcp", "openmpi", {"LC_ALL": "C"})
        elif nic == NATIVE:
            done = testbed.run_command([*argv, "127.0.0.1"], directory, 120.0, {"LC_ALL": "C"})
        else:
            cluster = self._cluster(nic)
            to = testbed.addresses(cluster)[1]  # the only rank runs on the first node
            done = testbed.run_on_cluster(cluster, [*argv, to], 1, directory, 120.0, "openmpi", {"LC_ALL": "C"})
        return flood_ping(done.require_success(), self.value(PINGS))

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables.append(self._paper_comparison(results))
        measured = [self._native, *self._virtual()]
        sizes = [int(size) for size in self.numbers(COUNTED_SIZES)]
        tools = self.factors()[1].measured()
        if "counts" in tools:
            page.tables += nic_counts.tables(results, measured, list(self._cards), sizes)
        for mpi in self.factors()[2].measured() if "pingpong" in tools else ():
            self._add_results(page, results, mpi, self.factors()[2].label(mpi))
        floods = {
            level.text: {"mean": [1e6 * y for y in results.values(_flood_combination(level.name), "rtt_mean")]}
            for level in (self._native, *self._virtual())
        }
        pings = figures.bars(floods, "round trip, us")
        carried = self.value(PING_BYTES)
        caption = f"Flood ping, {self.value(PINGS)} x {carried} bytes, in the form of the paper's Figure 4."
        if "flood" in tools:
            page.figures.append((caption, pings))
        if self._by_ec2:
            page.remarks.append(
                "Clusters were made and removed through the EC2 Query API by botocore, each as a reservation with an "
                "instance type and the placement group strategy `spread`, and programs ran as the account that made "
                "them. Loopback's runs are root's."
            )
        page.remarks += [
            *nic_counts.remarks(self.value(COUNTED)),
            f"The pings carry {carried} bytes: the paper's 12 leave no room for the time stamp on 64-bit Linux, "
            "and ping then prints no round-trip time.",
            "A run's number for a size is the median of its repetitions (the mean, as the paper uses it, is in "
            f"samples.csv too): {exchanges.told(self)}; above "
            + (
                f"64 KiB {self.value(VM_FEW)} and as many (--quick)."
                if self.quick
                else f"64 MiB {self.value(exchanges.FEW)} and as many; "
            )
            + ("" if self.quick else self._vm_repetitions()),
        ]
        return page

    def _vm_repetitions(self) -> str:
        budget = figures.size_text(self.value(VM_BUDGET))
        return (
            f"between VM nodes above 64 KiB {self.value(VM_FEW)} and as many, up to {self._vm_largest()}, and of each "
            "size at most as many of either as "
            f"have {budget} together, but at least one counts."
        )

    def _add_results(self, page: Page, results: Results, mpi: str, label: str) -> None:
        native = _pingpong_combination(NATIVE, mpi)
        virtual = {level.text: _pingpong_combination(level.name, mpi) for level in self._virtual()}
        curves = analysis.curves_by_size(results, {self._native.text: native, **virtual})
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
        native = pings.get(NATIVE, [])
        cards = [pings.get(model, []) for model in _PAPERS]
        times = [(level.name, pings[level.name]) for level in self._virtual()]
        tools = self.factors()[1].measured()
        figure = "see the figure below" if "pingpong" in tools else None
        rows = [
            reference_values.PaperComparison(
                "degradation over message size",
                "a figure from 0 to 100 %, without numbers",
                "Figure 2",
                figure,
                "The shape: the cost is one of latency, so its share falls as messages grow.",
            ),
            reference_values.PaperComparison(
                "flood ping: virtual, round trip (us)",
                "a figure from 0 to 1200 us, without numbers",
                "Figure 4",
                _each(times, lambda data: median([1e6 * y for y in data])),
                "Nothing absolute: other cards and cables."
                if self.own_hosts
                else "Nothing absolute: there a card and a cable are between, here neither.",
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
                "the origin of the degradation",
                "not examined; named as the next step",
                "conclusions",
                "see the table of events" if "counts" in tools else None,
                "Nothing: it is the paper's question. Numbers of events do not depend on the machine's speed.",
            ),
            reference_values.PaperComparison(
                "half of the round trip from 1 B to 64 KiB",
                "a figure from 0 to 6000 us, without numbers",
                "Figure 3",
                figure,
                "The shape: flat while latency rules, then a straight line. Nothing absolute: cards and cables differ.",
            ),
        ]
        return reference_values.table(rows, reference_values.KVM)

    @staticmethod
    def _adapter_comparison(results: Results, size: float) -> reference_values.PaperComparison:
        """Comparison of the paper's two adapters at a message size."""
        virtio, e1000 = (
            results.values(_pingpong_combination(model, "openmpi"), analysis.LATENCY, size) for model in _PAPERS
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
