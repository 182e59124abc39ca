"""`cloud-overhead`: N-Queens and the NAS programs on a virtual cluster beside the same ranks without one: the work
behind the paper on private clouds. Factors: program, MPI, where the ranks run. Ranks that wait do so by the same
library natively as on nodes, so a ratio is that of the cluster alone; the MPI's own way is a level beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from wherry.base.paths import native_program
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.lab.study import analysis, npb_counts, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, Value
from wherry.lab.study.own_hosts import OwnHosts
from wherry.lab.study.papers import reference_values
from wherry.lab.study.requirements import LEAST_VM_MEMORY, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, NAMES, NPB_CLASSES, Setting
from wherry.lab.study.testbed import FABRIC, ClusterShape, Testbed, program

_NATIVE, _OWN_WAIT, _NODES, _VMS = "native", "native-by-hand", "nodes", "vm"
_QUEENS = {"queens": (), "queens-dynamic": ("--dynamic",)}
_CLASSES = {
    name: Setting(f"{name}.class", f"problem class of {name.upper()}", full, quick, choices=NPB_CLASSES)
    for name, full, quick in (
        ("ep", "A", "W"),
        ("mg", "A", "W"),
        ("cg", "A", "W"),
        ("ft", "A", "W"),
        ("is", "A", "W"),
        ("lu", "W", "S"),
        ("sp", "W", "S"),
        ("bt", "W", "S"),
    )
}
_PROGRAMS = (*_QUEENS, *_CLASSES)
PROGRAMS = Setting(
    "programs", "programs that run", ",".join(_PROGRAMS), ",".join(_PROGRAMS), unit=NAMES, choices=_PROGRAMS
)
QUEENS_N = Setting("queens.n", "queens, on a board of as many rows", 16, 14, least=4, most=18)
RANKS = Setting(
    "ranks",
    "ranks; BT and SP have the next smaller square number, a small class as many as it has work for",
    4,
    4,
    most=128,
    allowed=npb_counts.POWERS[:8],
)
MEMORY = Setting(
    "node.memory", "memory of a node", 512 << 20, 512 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 40
)
HOSTS = Setting("hosts", "hosts of the nodes", 2, 2, most=64)
_TIME_LIMIT = 1800.0
_PUBLISHED = {
    "little": "nothing is written about programs that mostly compute",
    "much": "excessive where a program communicates much, without a number",
}
_COMMUNICATE = ("cg", "ft", "is", "mg", "lu", "sp", "bt")
"""Programs that exchange messages all the time."""


class CloudOverhead(Study):
    """Design, runs and report of the study."""

    settings = (PROGRAMS, QUEENS_N, *_CLASSES.values(), RANKS, HOSTS, MEMORY)
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"ranks": (RANKS,), "hosts": (HOSTS,)}

    name = "cloud-overhead"
    why_not_on_own_hosts = ""
    title = "Cost of a virtual cluster for whole programs"
    question = "How much longer do N-Queens and the NAS programs take on a virtual cluster than the same ranks do?"
    validity_checks = ("The count of solutions is the known one; NPB's verification succeeds.",)
    duration = ("an hour", "three minutes")
    repetitions = 10
    quick_repetitions = 2
    shows = (
        "The time of whole programs on container nodes, and on virtual machines where there is KVM, over that of the "
        "same number of ranks on the machine itself, both over TCP, by program and MPI: from N-Queens, which sends "
        "one message, to IS and FT, which send all they have.",
        "The cost of giving pieces of work out, beside that of dividing them beforehand (N-Queens).",
    )
    limitations = (
        "Nodes and native ranks share the same CPUs, and natively messages cross the loopback interface and no wire; "
        "so the ratio of a program that communicates is an upper bound.",
        "On a machine that others use too, nodes and native ranks need not get equal shares of it, as nodes are "
        "control groups of their own: a ratio clearly below 1 shows that the machine was not quiet, not that a cluster "
        "is fast.",
        "Ranks on virtual machines do not get libwherry-wait.so, as those of one machine talk through its memory: they "
        "wait as their MPI does, Open MPI's yielding where they outnumber the processors.",
        "The paper gives no numbers of this earlier work, only which programs lose much.",
    )

    def limits(self) -> Sequence[str]:
        if not self.own_hosts:
            return self.limitations
        wire = (
            "Nodes and native ranks are on the same hosts, rank by rank, and both send over the wire between these; "
            "ranks of one host send over its loopback interface natively, and from node to node on a cluster."
        )
        return (wire, *self.limitations[1:])

    def factors(self) -> Sequence[Factor]:
        programs = (
            Level("queens", f"N-Queens, N = {self.value(QUEENS_N)}, divided beforehand"),
            Level("queens-dynamic", f"N-Queens, N = {self.value(QUEENS_N)}, given out by one rank"),
            *(Level(name, f"NPB {name.upper()}, class {self.value(which)}") for name, which in _CLASSES.items()),
        )
        where = "on the hosts themselves" if self.own_hosts else "on the machine itself"
        how = (
            Level(_NATIVE, f"{where}, waiting as on nodes"),
            Level(
                _OWN_WAIT,
                f"{where}, as the MPI waits of its own (Open MPI)",
                "not with --quick" if self.quick else "",
            ),
            Level(_NODES, "container nodes"),
            Level(_VMS, "VM nodes", why_no_vms(self.unavailable, self.quick, heavy=True)),
        )
        return [
            Factor("program", "what runs", self.chosen(PROGRAMS, programs)),
            analysis.mpi_factor(self.quick, self.unavailable),
            Factor("how", "on what", how),
        ]

    def combinations(self) -> Sequence[Combination]:
        """By hand MPICH polls without yielding, so it takes a scheduler's period for a message where ranks share
        a processor: hours for some programs, and nothing that a cluster could be compared with."""
        programs, mpis, hows = (factor.measured() for factor in self.factors())
        return [
            Combination.of(program=name, mpi=mpi, how=how)
            for name in programs
            for mpi in mpis
            for how in hows
            if (mpi, how) != ("mpich", _OWN_WAIT)
        ]

    def _ranks(self, name: str) -> int:
        """Those of a program: the setting's, or the next smaller number that its class runs on."""
        ranks = self.value(RANKS)
        return ranks if name in _QUEENS else npb_counts.at_most(name, ranks, self.value(_CLASSES[name]))

    def _fabric(self) -> Mapping[str, Any]:
        """Hosts with room for the containers and virtual machines of all ranks, twice; or the user's."""
        if self.own_hosts:
            return self.own_hosts.fabric(self.value(HOSTS))
        ranks = self.value(RANKS)
        room = {"cores": max(16, 2 * ranks), "memory": MEMORY.shown(max(16 << 30, 2 * ranks * self.value(MEMORY)))}
        return {
            **{key: value for key, value in FABRIC.items() if key != "links"},
            "name": "cloud-overhead",
            "sites": [{"name": "a"}],
            "hosts": [{"name": name, "site": "a", **room} for name in self._hosts()],
        }

    def require_own_hosts(self, hosts: OwnHosts) -> None:
        nodes = -(-self.value(RANKS) // self.value(HOSTS))
        hosts.require(self.name, self.value(HOSTS), nodes * 1.0, nodes * self.value(MEMORY))

    def used_hosts(self) -> int:
        return self.value(HOSTS)

    def _hosts(self) -> tuple[str, ...]:
        if self.own_hosts:
            return tuple(host.name for host in self.own_hosts.first(self.value(HOSTS)))
        return tuple(f"a{number}" for number in range(1, self.value(HOSTS) + 1))

    def _argv(self, combination: Combination) -> list[str]:
        name, mpi = combination["program"], combination["mpi"]
        if name in _QUEENS:
            return [program("queens", mpi), "--n", str(self.value(QUEENS_N)), *_QUEENS[name]]
        return [str(native_program(f"npb-{name}-{mpi}")), self.value(_CLASSES[name])]

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        mpi, how, ranks = combination["mpi"], combination["how"], self._ranks(combination["program"])
        argv = self._argv(combination)
        if how in (_NATIVE, _OWN_WAIT):
            waits, env = how == _NATIVE, workloads.ONE_THREAD
            done = testbed.run_native(argv, ranks, directory, _TIME_LIMIT, "tcp", mpi, env, waits)
            return [workloads.verified_seconds(done)]
        testbed.use_fabric(self._fabric())
        memory = MEMORY.shown(self.value(MEMORY))
        cluster = ClusterShape(f"cloud-{ranks}", ranks, self._hosts(), memory=memory)
        if how == _VMS:
            cluster = ClusterShape(f"vm-cloud-{ranks}", ranks, self._hosts(), memory=memory, nic="virtio")
            testbed.require_memory(ranks * self.value(MEMORY))
        testbed.leave_machines_of(cluster if cluster.nic else None)
        env = workloads.npb_environment(cluster)
        return [
            workloads.verified_seconds(testbed.run_on_cluster(cluster, argv, ranks, directory, _TIME_LIMIT, mpi, env))
        ]

    def page(self, results: Results) -> Page:
        page = Page(tables=[self._published(results), self._ratios(results)])
        virtual = [how for how in self.factors()[2].measured() if how in (_NODES, _VMS)]
        groups: dict[str, dict[str, list[float]]] = {}
        for combination in self.combinations():
            native = self._native(results, combination)
            seconds = results.values(combination, "seconds")
            if combination["how"] in virtual and native and seconds and all(native):
                label = f"{combination['mpi']}, {combination['how']}"
                baseline = median(native).value
                groups.setdefault(combination["program"].upper(), {})[label] = [each / baseline for each in seconds]
        if groups:
            caption = "Time on the virtual cluster over the median of native runs; 1: nothing lost."
            page.figures.append((caption, figures.bars(groups, "times as long")))
        page.remarks.append(
            "Ranks that wait sleep as on container nodes natively too (libwherry-wait.so), since the ranks of both may "
            "be more than the processors; ranks on VM nodes do not have it. `native-by-hand` is the command that a "
            "user types: Open MPI's own waiting, which yields its processor where ranks outnumber them, and else polls."
        )
        return page

    @staticmethod
    def _native(results: Results, combination: Combination, how: str = _NATIVE) -> list[float]:
        baseline = Combination.of(program=combination["program"], mpi=combination["mpi"], how=how)
        return results.values(baseline, "seconds")

    def _ratios(self, results: Results) -> Table:
        rows = []
        programs, mpis, hows = self.factors()
        for combination in self.combinations():
            seconds, native = results.values(combination, "seconds"), self._native(results, combination)
            if not seconds:
                continue
            over = None if combination["how"] == _NATIVE else analysis.ratio_or_none(seconds, native)
            tested = analysis.significance_text(seconds, native) if over else ""
            names = (
                programs.label(combination["program"]),
                mpis.label(combination["mpi"]),
                hows.label(combination["how"]),
            )
            ranks = str(self._ranks(combination["program"]))
            rows.append((*names, ranks, median(seconds).text(), over.text() if over else "", tested))
        head = ("program", "MPI", "where", "ranks", "seconds", ": native", "test")
        return Table("Times of whole programs", head, rows)

    def _published(self, results: Results) -> Table:
        rows = []
        for name in _PROGRAMS:
            for how in (_NODES, _VMS):
                combination = Combination.of(program=name, mpi="openmpi", how=how)
                if how not in self.factors()[2].measured():
                    continue
                rows.append(
                    reference_values.ratio(
                        f"{name.upper()}, {how} over native",
                        _PUBLISHED["much" if name in _COMMUNICATE else "little"],
                        "section 4",
                        results.values(combination, "seconds"),
                        self._native(results, combination),
                        "The order of the programs by their loss: the paper has no number.",
                    )
                )
        return reference_values.table(rows, reference_values.KVM)
