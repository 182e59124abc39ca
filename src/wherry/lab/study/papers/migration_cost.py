"""`migration-cost`: cost of moving one node for the job that runs on it. Factors: kind of node, workload, memory, dirty
rate, mode of the move, link between the hosts. Each run with a move has one without in the same turn (block), so
slowdowns are ratios within a block. The design is not full factorial (`_is_combined`); the report lists what is left
out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from wherry.base.units import parse_size
from wherry.lab import hpcc
from wherry.lab.applications import APPLICATIONS
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis, applications, npb_counts, sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import RESULT_CHECKSUM, Combination, Factor, Level, Value
from wherry.lab.study.requirements import POST_COPY, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import LONGEST_WAIT, NAMES, NPB_CLASSES, NUMBERS, SECONDS, Setting
from wherry.lab.study.testbed import FABRIC, ClusterShape, Testbed
from wherry.lab.study.workloads import MoveSchedule

CONTAINER, VM = "container", "vm"
NONE, STOP, ROUNDS = "none", "stop", "rounds"
_VM_MODES = ("pre-copy", "auto-converge", "post-copy")
_MODES = {CONTAINER: (NONE, STOP, ROUNDS), VM: (NONE, *_VM_MODES)}
RING = "ring"
OWN = "own"
"""Level of memory and dirty rate for programs that determine their own."""
_VARIED, _USUAL_PAGES = "64", "16"
"""The memory that is combined with all dirty rates, and the dirty rate that is combined with every memory; where these
are not among the requested ones, those in the middle."""
_FEW_PAGES = "1"
_BARE = "bare"
_PROGRAMS_ON = ("a1", "a2", "b1")
"""Hosts of the programs' nodes; the moving node goes to the fourth."""

_WORKLOADS = (RING, "hpl", "sp", *APPLICATIONS)
WORKLOADS = Setting(
    "workloads", "programs that run", ",".join(_WORKLOADS), ",".join(_WORKLOADS), unit=NAMES, choices=_WORKLOADS
)
RING_MEMORY = Setting(
    "ring.memory", "MiB that each rank of the ring rewrites", "16,64,256,1024", "16,64", unit=NUMBERS, most=65_536
)
RING_PAGES = Setting(
    "ring.pages",
    "pages that it writes in each step: 1 is about 10 MB/s, 16 are 100 MB/s, 256 the most that a core can write",
    "1,16,256",
    "16,256",
    unit=NUMBERS,
    most=65_536,
)
RING_RANKS = Setting("ring.ranks", "ranks of the ring", 2, 2, least=2, most=16)
FAR_RANKS = Setting("ring.far.ranks", "ranks of the ring over a link", 3, 3, least=2, most=16)
VM_SECONDS = Setting(
    "vm.ring.seconds", "how long the ring runs on VM nodes, at least", 40.0, 40.0, unit=SECONDS, most=LONGEST_WAIT
)
VM_FAR_SECONDS = Setting("vm.ring.far.seconds", "the same over a link", 150.0, 150.0, unit=SECONDS, most=LONGEST_WAIT)
FAST = Setting("link.fast", "bandwidth of the faster link in Mbit/s", 1000, 1000, most=100_000)
SLOW = Setting("link.slow", "bandwidth of the slower link in Mbit/s", 100, 100, most=100_000)
LATENCY = Setting("link.latency", "latency of both, one way", 0.01, 0.01, unit=SECONDS, least=0, most=10)
FAR_MEMORY = Setting("link.memory", "most MiB of the ring over a link: more would take minutes", 64, 16, most=65_536)
RING_SECONDS = Setting("ring.seconds", "how long the ring runs", 20.0, 5.0, unit=SECONDS, most=LONGEST_WAIT)
RING_AFTER = Setting(
    "ring.after", "from the ring's begin to the move", 5.0, 1.5, unit=SECONDS, least=0, most=LONGEST_WAIT
)
HPL_N = Setting("hpl.n", "order of HPL's matrix", 3000, 500, most=500_000)
HPL_NB = Setting("hpl.nb", "size of its blocks", 80, 80, most=1000)
HPL_RANKS = Setting("hpl.ranks", "ranks of HPL", 3, 3, most=32)
HPL_RUNS = Setting("hpl.runs", "factorisations of HPL in a run", 3, 54, most=hpcc.MOST_RUNS)
HPL_AFTER = Setting("hpl.after", "from HPL's begin to the move", 2.0, 0.3, unit=SECONDS, least=0, most=LONGEST_WAIT)
SP_CLASS = Setting("sp.class", "problem class of SP", "A", "W", choices=NPB_CLASSES)
SP_RANKS = Setting("sp.ranks", "ranks of SP; the next smaller square number, 16 at most in class S", 4, 4, most=32)
SP_AFTER = Setting("sp.after", "from SP's first step to the move", 5.0, 1.0, unit=SECONDS, least=0, most=LONGEST_WAIT)
APP_RANKS = Setting("app.ranks", "ranks of LAMMPS and GROMACS", 3, 3, most=32)
APP_STEPS = {
    name: Setting(f"{name}.steps", f"steps of {application.text}", *application.steps, least=100, most=10**9)
    for name, application in APPLICATIONS.items()
}
APP_AFTER = Setting(
    "app.after", "from an application's begin to the move", 3.0, 0.5, unit=SECONDS, least=0, most=LONGEST_WAIT
)


class MigrationCost(Study):
    """Design, runs and report of the study."""

    settings = (
        WORKLOADS,
        *(RING_MEMORY, RING_PAGES, RING_RANKS, RING_SECONDS, RING_AFTER, FAR_RANKS, FAR_MEMORY, FAST, SLOW, LATENCY),
        *(VM_SECONDS, VM_FAR_SECONDS, HPL_N, HPL_NB, HPL_RANKS, HPL_RUNS, HPL_AFTER, SP_CLASS, SP_RANKS, SP_AFTER),
        *APP_STEPS.values(),
        *(APP_RANKS, APP_AFTER),
    )
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"ranks": (HPL_RANKS, SP_RANKS, APP_RANKS)}

    name = "migration-cost"
    why_not_on_own_hosts = "it moves nodes, and between machines with two kernels a move is refused (docs/hosts.md)"
    title = "Cost of a move for the job"
    question = "How much longer does a job take when one of its nodes moves, and for how long is the node frozen?"
    validity_checks = (
        "every byte of the ring is right, HPL's residual checks pass, NPB's verification succeeds, LAMMPS and GROMACS "
        "took all their steps;",
        "and a move that was asked for began after the measured part did, ended before it, and changed no digit of the "
        "result.",
    )
    duration = ("some hours; five more with virtual machines", "some minutes")
    repetitions = 10
    quick_repetitions = 2
    shows = (
        "Slowdown of the job, total time and downtime of a move, bytes sent and rounds, by workload, memory, how fast "
        "that is written, link and mode, and that the result is the same: wherry-ring checks every byte; the results "
        "that HPL, SP, LAMMPS and GROMACS print must be those of the runs without a move to the digit, else the run "
        "does not count.",
    )
    limitations = (
        "The hosts are emulated on this machine: bytes cross no wire, and source, destination and ranks share the same "
        "CPUs. The cost of a wire is shown by the emulated links of 1 Gbit/s and 100 Mbit/s, which the job uses too.",
    )

    def factors(self) -> Sequence[Factor]:
        full_only = "not with --quick" if self.quick else ""
        no_vm = why_no_vms(self.unavailable, self.quick, moved=True)
        no_post_copy = no_vm or self.unavailable.get(POST_COPY, "")
        workload = (
            Level(RING, f"wherry-ring, {self.value(RING_RANKS)} ranks; {self.value(FAR_RANKS)} over a link"),
            Level("hpl", f"HPL, {self.value(HPL_RANKS)} ranks", self.unavailable.get("hpcc", "")),
            Level("sp", "NPB SP", self.unavailable.get("npb-sp-openmpi", "")),
            *applications.levels(self.unavailable, self.value(APP_RANKS)),
        )
        memory = tuple(Level(m, f"{m} MiB", full_only if lacks else "") for m, lacks in self._all(RING_MEMORY))
        dirty = (
            *(
                Level(pages, "1 page of 4 KiB" if pages == _FEW_PAGES else f"{pages} pages", full_only if lacks else "")
                for pages, lacks in self._all(RING_PAGES)
            ),
            *self._uncombined(),
        )
        mode = (
            Level(NONE, "no move"),
            Level(STOP, "containers: all memory while frozen"),
            Level(ROUNDS, "containers: rounds of pre-copy, then frozen", self.unavailable.get("dirty pages", "")),
            *(
                [Level("stop-programs", "HPL, SP, LAMMPS and GROMACS: all memory while frozen", full_only)]
                if self._short_of_time()
                else []
            ),
            Level("pre-copy", "VMs: rounds of pre-copy, then frozen", no_vm),
            Level("auto-converge", "VMs: the same, slowed down until the rounds gain", no_vm),
            Level("post-copy", "VMs: run at the destination before all memory is there", no_post_copy),
            Level(
                "variants",
                "VMs: hybrid, several connections, compressed, a bound for the downtime",
                no_vm or "each is one of these modes with an option: they would take hours more",
            ),
        )
        link = (
            Level(_BARE, "the emulated network as it is"),
            Level("fast", f"{_rate(self.value(FAST))}, {1e3 * self.value(LATENCY):g}ms", full_only),
            Level("slow", f"{_rate(self.value(SLOW))}, {1e3 * self.value(LATENCY):g}ms"),
            Level(
                "far-programs",
                "HPL, SP, LAMMPS and GROMACS over a link",
                "their time would be the link's: the ring shows what one adds to a move, multi-site to a program",
            ),
            Level(
                "far-memory",
                f"more than {self.value(FAR_MEMORY)} MiB over a link",
                "it would take minutes more" if self.quick else "it would take hours more",
            ),
        )
        kind = (
            Level(CONTAINER, "container nodes"),
            Level(VM, f"VM nodes, the ring with {self._varied} MiB", no_vm),
            Level(
                "vm-others",
                "VM nodes with other memory, 1 page a step, or the faster link; HPL, SP, LAMMPS and GROMACS on them",
                no_vm or "it would take hours more; HPL and SP on VM nodes are in xen-migration",
            ),
        )
        own = Level(OWN, "the program's own")
        return [
            Factor("kind", "the nodes", kind),
            Factor("workload", "what runs", self.chosen(WORKLOADS, workload)),
            Factor("memory", "memory that each rank of the ring rewrites", (*memory, own)),
            Factor("dirty", "how much of it the ring rewrites in each step", (*dirty, own)),
            Factor("mode", "how the node moves", mode),
            Factor("link", "link between the hosts", link),
        ]

    def combinations(self) -> Sequence[Combination]:
        kinds, programs, memories, dirty, modes, links = (factor.measured() for factor in self.factors())
        unmoved = [
            Combination.of(kind=kind, workload=RING, memory=memory, dirty=pages, mode=NONE, link=link)
            for kind in kinds
            for memory in memories
            for pages in dirty
            for link in links
            if RING in programs and OWN not in (memory, pages) and self._is_combined(kind, memory, pages, link)
        ]
        unmoved += [
            Combination.of(kind=CONTAINER, workload=name, memory=OWN, dirty=OWN, mode=NONE, link=_BARE)
            for name in programs
            if name != RING
        ]
        return [
            _with_levels(base, mode=mode)
            for base in unmoved
            for mode in _MODES[base["kind"]]
            if mode in modes and not (mode == STOP and base["workload"] != RING and self._short_of_time())
        ]

    def _uncombined(self) -> list[Level]:
        """The level of dirty rates with other memory than one; none where only one of either is asked for."""
        others = [pages for pages in self.numbers(RING_PAGES) if pages != self._usual]
        if not others or len(self.numbers(RING_MEMORY)) == 1:
            return []
        text = f"{', '.join(others)} pages with other memory than {self._varied} MiB"
        return [Level("others", text, "it would take hours more")]

    def _all(self, setting: Setting[str]) -> list[tuple[str, bool]]:
        """The numbers that are asked for; with --quick also those of a full study, which are lacking."""
        asked = self.numbers(setting)
        more = setting.full.split(",") if self.quick and setting.name not in self.given else []
        return [(number, number not in asked) for number in sorted({*asked, *more}, key=int)]

    @property
    def _varied(self) -> str:
        return _one_of(self.numbers(RING_MEMORY), _VARIED)

    @property
    def _usual(self) -> str:
        return _one_of(self.numbers(RING_PAGES), _USUAL_PAGES)

    def _short_of_time(self) -> bool:
        """True if a second mode for programs would exceed the five minutes of --quick."""
        return self.quick and not self.unavailable.get("dirty pages", "")

    def _is_combined(self, kind: str, memory: str, pages: str, link: str) -> bool:
        """Whether the ring is run with these levels: every memory at one dirty rate, every dirty rate with one
        memory."""
        if kind == VM:  # 256 pages a step exceed 100 Mbit/s, which the modes of VMs are for
            return memory == self._varied and pages != _FEW_PAGES and link != "fast"
        if pages != self._usual and memory != self._varied:
            return False
        return link == _BARE or int(memory) <= self.value(FAR_MEMORY)

    def without_move(self, combination: Combination) -> Combination | None:
        return (
            None
            if combination["workload"] == RING or combination["mode"] == NONE
            else _with_levels(combination, mode=NONE)
        )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        testbed.use_fabric(self._fabric(combination["link"]))
        if combination["workload"] == RING:
            return self._ring(testbed, combination, directory)
        name = combination["workload"]
        cluster = self._program_cluster(name)
        after = self.value({"sp": SP_AFTER, "hpl": HPL_AFTER}.get(name, APP_AFTER))
        move_schedule = _move_schedule(combination, _third(cluster), after)
        if name == "sp":
            return workloads.npb(testbed, cluster, "sp", self.value(SP_CLASS), cluster.nodes, directory, move_schedule)
        if name in APPLICATIONS:
            steps = self.value(APP_STEPS[name])
            return applications.run(testbed, name, cluster, directory, steps, cluster.nodes, move_schedule)
        problem = hpcc.Problem.of(self.value(HPL_N), self.value(HPL_NB), cluster.nodes, self.value(HPL_RUNS))
        return workloads.hpl(testbed, cluster, problem, directory, move_schedule)

    def _fabric(self, link: str) -> Mapping[str, Any]:
        """The studies' fabric with the given link between its sites, and room on each host for its part of every
        cluster and for a node of each that moves there."""
        shares = [(math.ceil(shape.nodes / len(shape.hosts)) + 1, shape) for shape in self._shapes()]
        cores = max(16, math.ceil(sum(nodes * shape.cpus for nodes, shape in shares)))
        memory = max(16 << 30, sum(nodes * parse_size(shape.memory) for nodes, shape in shares))
        hosts = [{**host, "cores": cores, "memory": f"{memory}B"} for host in FABRIC["hosts"]]
        fabric = {**FABRIC, "hosts": hosts}
        if link == _BARE:
            return {**fabric, "links": sites.links(2)}
        figures = sites.figures(self.value(FAST if link == "fast" else SLOW), self.value(LATENCY))
        return {**fabric, "links": sites.links(2, **figures)}

    def _shapes(self) -> list[ClusterShape]:
        """All clusters, each once."""
        rings = {self._cluster(one) for one in self.combinations() if one["workload"] == RING}
        return [*sorted(rings, key=lambda shape: shape.name), *map(self._program_cluster, ("hpl", "sp", "apps"))]

    def _program_cluster(self, workload: str) -> ClusterShape:
        """That of HPL, SP, or the applications."""
        if workload == "sp":
            ranks = npb_counts.at_most("sp", self.value(SP_RANKS), self.value(SP_CLASS))
            return ClusterShape("four", ranks, _PROGRAMS_ON, memory="256MiB")
        name, asked = ("three", HPL_RANKS) if workload == "hpl" else ("apps", APP_RANKS)
        return ClusterShape(name, self.value(asked), _PROGRAMS_ON)

    def _cluster(self, combination: Combination) -> ClusterShape:
        """The ring's cluster. Over a link it has three nodes, so that the ring crosses the link twice wherever the
        third is."""
        memory, on_vms = int(combination["memory"]), combination["kind"] == VM
        size = f"{max(256, memory + 192)}MiB"
        cluster = ClusterShape(f"ring-{memory}", self.value(RING_RANKS), ("a1", "b1"), memory=size)
        if combination["link"] != _BARE:
            nodes = self.value(FAR_RANKS)
            cluster = replace(cluster, name=f"far-{memory}", nodes=nodes, hosts=("a1", "b1", "b2"))
        return replace(cluster, name=f"vm-{cluster.name}", nic="virtio") if on_vms else cluster

    def _ring(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        memory = int(combination["memory"])
        cluster = self._cluster(combination)
        testbed.require_memory((cluster.nodes + 3) * memory << 20)
        move_schedule = _move_schedule(combination, f"{cluster.name}-{cluster.nodes - 1}", self.value(RING_AFTER))
        seconds = self.value(RING_SECONDS)
        if combination["kind"] == VM:  # without KVM a move takes about 10 s, by auto-converge over the link about 100 s
            seconds = max(seconds, self.value(VM_SECONDS if combination["link"] == _BARE else VM_FAR_SECONDS))
        if combination["link"] == "slow":  # sending a megabyte takes 0.1 s at 100 Mbit/s
            seconds += 20.0 * memory / self.value(SLOW)
        return workloads.ring(
            testbed, cluster, memory, seconds, cluster.nodes, directory, move_schedule, int(combination["dirty"])
        )

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables += [self._slowdowns(results), self._moves(results), self._identical(results)]
        page.figures += self._figures(results)
        page.remarks += [
            "The job's slowdown is that of its rate (ring: iterations a second in a fixed time) or of its "
            "seconds (HPL, NPB, LAMMPS, GROMACS), against runs without a move in the same turns. A short run shows a "
            "large share: the cost in seconds carries over to longer ones. The ring's cost is the part of its fixed "
            "time in which, at the rate without a move, it would have made the missing iterations.",
            "`written` is the data that a rank of the ring wrote to its memory in a second, in the runs without a "
            "move; its messages are not counted. Each step sends one, so over a link the same pages a step are fewer "
            "a second.",
        ]
        return page

    def _combinations_with_move(self) -> list[Combination]:
        return [combination for combination in self.combinations() if combination["mode"] != NONE]

    def _slowdowns(self, results: Results) -> Table:
        rows = []
        for combination in self._combinations_with_move():
            longer, costs, tested = _slowdown(results, combination)
            texts = [captioned.text() if captioned else "not measured" for captioned in (longer, costs)]
            rows.append((self._label(combination), combination["mode"], *texts, tested))
        head = ("workload", "mode", "with : without", "a move costs, s", "test")
        return Table("Slowdown of the job (1: none), and its cost of a move", head, rows, main=True)

    def _moves(self, results: Results) -> Table:
        scales = {"downtime": 1, "total": 1, "largest_gap": 1, "bytes": 1e-6, "rounds": 1}
        rows = []
        for combination in self._combinations_with_move():
            data = {name: [by * y for y in results.values(combination, name)] for name, by in scales.items()}
            if data["downtime"]:
                written = [1e-6 * y for y in results.values(_with_levels(combination, mode=NONE), "written")]
                texts = [median(captioned).text() if captioned else "-" for captioned in (written, *data.values())]
                rows.append((self._label(combination), combination["mode"], *texts))
        head = ("workload", "mode", "written, MB/s", "downtime, s", "total, s", "largest gap seen by the program, s")
        return Table("The moves", (*head, "sent, MB", "rounds"), rows, main=True)

    def _identical(self, results: Results) -> Table:
        rows = []
        for workload in self.factors()[1].measured():
            combinations = [combination for combination in self.combinations() if combination["workload"] == workload]
            moved = [combination for combination in combinations if combination["mode"] != NONE]
            correct = sum(len(results.counted(combination)) for combination in moved)
            runs = correct + sum(run.combination in moved and not run.warmup for run in results.failed())
            unmoved_results = {
                crc
                for combination in combinations
                if combination["mode"] == NONE
                for crc in results.values(combination, RESULT_CHECKSUM)
            }
            if workload == RING:
                text = f"every byte right in {correct} of {runs} runs with a move"
            elif unmoved_results:
                text = f"every digit as without a move in {correct} of {runs} runs with a move"
            else:
                text = f"nothing to compare {correct} runs with a move with: no run without one counts"
            if correct < runs:
                text += "; the others do not count"
            if len(unmoved_results) > 1:
                text += "; but runs without a move differ among themselves"
            rows.append((workload, text))
        return Table("Results", ("workload", "identical"), rows)

    def _figures(self, results: Results) -> list[tuple[str, figures.Drawing]]:
        parts: dict[str, dict[str, figures.Samples]] = {}
        for combination in self._combinations_with_move():
            data = {name: results.values(combination, name) for name in ("downtime", "total")}
            parts.setdefault(_figure_name(combination), {})[f"{self._label(combination)}\n{combination['mode']}"] = data
        captioned = [
            (f"Downtime and total time of a move: {what}.", figures.bars(groups, "seconds"))
            for what, groups in parts.items()
        ]
        points: dict[str, list[tuple[float, float]]] = {}
        for combination in self._combinations_with_move():
            written = results.values(_with_levels(combination, mode=NONE), "written")
            if written and combination["memory"] == self._varied and combination["link"] == _BARE:
                x = 1e-6 * median(written).value
                points.setdefault(f"{combination['kind']}, {combination['mode']}", []).extend(
                    (x, y) for y in results.values(combination, "downtime")
                )
        points = {label: pairs for label, pairs in points.items() if pairs}
        if points:
            caption = (
                f"Downtime over the data that a rank writes to its {self._varied} MiB; by nodes and mode, no link."
            )
            captioned.append((caption, figures.scatter(points, "written without a move, MB/s", "downtime, s")))
        return captioned

    def _label(self, combination: Combination) -> str:
        """Label of a combination without its mode, which has a column of its own."""
        if combination["workload"] != RING:
            return combination["workload"]
        rates = {_BARE: "", "fast": f", {_rate(self.value(FAST))}", "slow": f", {_rate(self.value(SLOW))}"}
        pages = f", {combination['dirty']} page{'' if combination['dirty'] == _FEW_PAGES else 's'} a step"
        machines = ", VMs" if combination["kind"] == VM else ""
        return f"ring, {combination['memory']} MiB{pages}{rates[combination['link']]}{machines}"


def _one_of(numbers: Sequence[str], usual: str) -> str:
    return usual if usual in numbers else numbers[len(numbers) // 2]


def _rate(mbits: int) -> str:
    return f"{mbits // 1000} Gbit/s" if mbits % 1000 == 0 else f"{mbits} Mbit/s"


def _third(cluster: ClusterShape) -> str:
    """Name of the node that moves."""
    return f"{cluster.name}-{min(2, cluster.nodes - 1)}"


def _slowdown(results: Results, combination: Combination) -> tuple[Estimate | None, Estimate | None, str]:
    """Slowdown as a ratio, cost in seconds, and the result of the significance test."""
    unmoved = _with_levels(combination, mode=NONE)
    if combination["workload"] != RING:
        data = [results.values(each, "seconds") for each in (combination, unmoved)]
        longer, costs = analysis.ratio_or_none(*data), analysis.difference_or_none(*data)
        return longer, costs, analysis.significance_text(*data) if longer else ""
    data = [results.values(each, "rate") for each in (unmoved, combination)]
    longer, throughput = analysis.ratio_or_none(*data), analysis.ratio_or_none(data[1], data[0])
    if longer is None or throughput is None:
        return None, None, ""
    seconds = median(results.values(combination, "seconds")).value
    lost_seconds = [seconds * (1 - share) for share in (throughput.value, throughput.high, throughput.low)]
    return (
        longer,
        replace(throughput, value=lost_seconds[0], low=lost_seconds[1], high=lost_seconds[2]),
        analysis.significance_text(*data),
    )


def _move_schedule(combination: Combination, node: str, after: float) -> MoveSchedule | None:
    if combination["mode"] == NONE:
        return None
    hosts = ("b1", "b2") if combination["link"] == _BARE else ("b2", "a2")
    if combination["mode"] in _VM_MODES:
        return MoveSchedule(node, hosts, after, mode=combination["mode"])
    return MoveSchedule(node, hosts, after, 0 if combination["mode"] == STOP else None)


def _with_levels(combination: Combination, **levels: str) -> Combination:
    return Combination(tuple((factor, levels.get(factor, level)) for factor, level in combination.levels))


def _figure_name(combination: Combination) -> str:
    """Name of the figure that shows a combination; a single figure would have too many bars."""
    if combination["workload"] != RING:
        return "programs on containers"
    if combination["kind"] == VM:
        return "the ring on VMs"
    return f"the ring on containers{'' if combination['link'] == _BARE else ', over links'}"
