"""`migration-cost`: cost of moving one node for the job that runs on it. Factors: kind of node, workload, memory, dirty
rate, mode of the move, link between the hosts. Each run with a move has one without in the same turn (block), so
slowdowns are ratios within a block. The design is not full factorial (`_is_combined`); the report lists what is left
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wherry.lab import hpcc
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis, applications, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import RESULT_CHECKSUM, Combination, Factor, Level, Value
from wherry.lab.study.requirements import POST_COPY, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import FABRIC, ClusterShape, Testbed
from wherry.lab.study.workloads import MoveSchedule

CONTAINER, VM = "container", "vm"
NONE, STOP, ROUNDS = "none", "stop", "rounds"
_VM_MODES = ("pre-copy", "auto-converge", "post-copy")
_MODES = {CONTAINER: (NONE, STOP, ROUNDS), VM: (NONE, *_VM_MODES)}
RING = "ring"
OWN = "own"
"""Level of memory and dirty rate for programs that determine their own."""
_MEMORIES = ("16", "64", "256", "1024")
_SMALLEST, VARIED = "16", "64"
"""The memory level for links with --quick, and the one that is combined with all dirty rates."""
_FEW_PAGES, USUAL_PAGES, MANY_PAGES = "1", "16", "256"
"""Pages written in each step: without a link about 10 MB/s, about 100 MB/s, and as fast as a core can write."""
_BARE = "bare"
_LINKS: dict[str, dict[str, str]] = {_BARE: {}, "fast": {"bandwidth": "1Gbit/s"}, "slow": {"bandwidth": "100Mbit/s"}}
_MAX_OVER_A_LINK = 64
"""Largest memory level (MiB) for links with a limited bandwidth: more would take minutes."""
_LATENCY = "10ms"
"""One-way latency of the links with a limited bandwidth."""


class MigrationCost(Study):
    """Design, runs and report of the study."""

    name = "migration-cost"
    title = "What a move costs the job"
    question = (
        "How much longer does a job take when one of its nodes moves, and for how long does the node stand still?"
    )
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
        "that is written, link and mode, and that the result is the same: wherry-ring checks every byte; what HPL, SP, "
        "LAMMPS and GROMACS print of their results must be that of the runs without a move to the digit, else the run "
        "does not count.",
    )
    limitations = (
        "The hosts are emulated on this machine: bytes cross no wire, and source, destination and ranks share the same "
        "CPUs. What a wire adds is shown by the emulated links of 1 Gbit/s and 100 Mbit/s, which the job uses too.",
    )

    def factors(self) -> Sequence[Factor]:
        full_only = "not with --quick" if self.quick else ""
        no_vm = why_no_vms(self.unavailable, self.quick, moved=True)
        no_post_copy = no_vm or self.unavailable.get(POST_COPY, "")
        workload = (
            Level(RING, "wherry-ring, 2 ranks; 3 over a link"),
            Level("hpl", "HPL, 3 ranks", self.unavailable.get("hpcc", "")),
            Level("sp", "NPB SP", self.unavailable.get("npb-sp-openmpi", "")),
            *applications.levels(self.unavailable),
        )
        memory = tuple(Level(m, f"{m} MiB", full_only if m not in (_SMALLEST, VARIED) else "") for m in _MEMORIES)
        dirty = (
            Level(_FEW_PAGES, "1 page of 4 KiB", full_only),
            Level(USUAL_PAGES, f"{USUAL_PAGES} pages"),
            Level(MANY_PAGES, f"{MANY_PAGES} pages"),
            Level(
                "others", f"1 and {MANY_PAGES} pages with other memory than {VARIED} MiB", "it would take hours more"
            ),
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
            Level("fast", f"1 Gbit/s, {_LATENCY}", full_only),
            Level("slow", f"100 Mbit/s, {_LATENCY}"),
            Level(
                "far-programs",
                "HPL, SP, LAMMPS and GROMACS over a link",
                "their time would be the link's: the ring shows what one adds to a move, multi-site to a program",
            ),
            Level(
                "far-memory",
                self._too_far_text(),
                "it would take minutes more" if self.quick else "it would take hours more",
            ),
        )
        kind = (
            Level(CONTAINER, "container nodes"),
            Level(VM, f"VM nodes, the ring with {VARIED} MiB", no_vm),
            Level(
                "vm-others",
                "VM nodes with other memory, 1 page a step, or 1 Gbit/s; HPL, SP, LAMMPS and GROMACS on them",
                no_vm or "it would take hours more; HPL and SP on VM nodes are in xen-migration",
            ),
        )
        own = Level(OWN, "the program's own")
        return [
            Factor("kind", "the nodes", kind),
            Factor("workload", "what runs", workload),
            Factor("memory", "what each rank of the ring rewrites", (*memory, own)),
            Factor("dirty", "how much of it the ring rewrites in each step", (*dirty, own)),
            Factor("mode", "how the node moves", mode),
            Factor("link", "what is between the hosts", link),
        ]

    def combinations(self) -> Sequence[Combination]:
        kinds, programs, memories, dirty, modes, links = (factor.measured() for factor in self.factors())
        unmoved = [
            Combination.of(kind=kind, workload=RING, memory=memory, dirty=pages, mode=NONE, link=link)
            for kind in kinds
            for memory in memories
            for pages in dirty
            for link in links
            if OWN not in (memory, pages) and self._is_combined(kind, memory, pages, link)
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

    def _too_far_text(self) -> str:
        """Text for the memory levels that are not combined with links."""
        return (
            f"more than {_SMALLEST} MiB over a link" if self.quick else f"more than {_MAX_OVER_A_LINK} MiB over a link"
        )

    def _short_of_time(self) -> bool:
        """True if a second mode for programs would exceed the five minutes of --quick."""
        return self.quick and not self.unavailable.get("dirty pages", "")

    def _is_combined(self, kind: str, memory: str, pages: str, link: str) -> bool:
        """Whether the ring is run with these levels: every memory at one dirty rate, every dirty rate with one
        memory."""
        if kind == VM:  # 256 pages a step exceed 100 Mbit/s, which the modes of VMs are for
            return memory == VARIED and pages != _FEW_PAGES and link != "fast"
        if pages != USUAL_PAGES and memory != VARIED:
            return False
        if link == _BARE:
            return True
        return memory == _SMALLEST if self.quick else int(memory) <= _MAX_OVER_A_LINK

    def without_move(self, combination: Combination) -> Combination | None:
        return (
            None
            if combination["workload"] == RING or combination["mode"] == NONE
            else _with_levels(combination, mode=NONE)
        )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        testbed.use_fabric(_fabric(combination["link"]))
        if combination["workload"] == RING:
            return self._ring(testbed, combination, directory)
        if combination["workload"] == "sp":
            cluster = ClusterShape("four", 4, ("a1", "a2", "b1"), memory="256MiB")
            move_schedule = _move_schedule(combination, "four-2", 1.0 if self.quick else 5.0)
            return workloads.npb(testbed, cluster, "sp", "W" if self.quick else "A", 4, directory, move_schedule)
        cluster = ClusterShape("three", 3, ("a1", "a2", "b1"))
        if combination["workload"] in applications.APPLICATIONS:
            move_schedule = _move_schedule(combination, "three-2", 0.5 if self.quick else 3.0)
            return applications.run(
                testbed, combination["workload"], cluster, directory, move_schedule, quick=self.quick
            )
        move_schedule = _move_schedule(combination, "three-2", 0.3 if self.quick else 2.0)
        return workloads.hpl(testbed, cluster, problem(self.quick), directory, move_schedule)

    def _ring(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        memory = int(combination["memory"])
        testbed.require_memory(5 * memory << 20)
        cluster = _cluster(combination)
        move_schedule = _move_schedule(combination, f"{cluster.name}-{cluster.nodes - 1}", 1.5 if self.quick else 5.0)
        seconds = 5.0 if self.quick else 20.0
        if combination["kind"] == VM:  # without KVM a move takes about 10 s, by auto-converge over the link about 100 s
            seconds = 40.0 if combination["link"] == _BARE else 150.0
        if combination["link"] == "slow":  # sending a megabyte takes 0.1 s
            seconds += 0.2 * memory
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
            "large share: the cost in seconds is what carries over to longer ones. The ring's is the part of its fixed "
            "time in which, at the rate without a move, it would have done what it did less.",
            "`written` is what a rank of the ring wrote to its memory in a second, in the runs without a move; its "
            "messages are not counted. Each step sends one, so over a link the same pages a step are fewer a second.",
        ]
        return page

    def _combinations_with_move(self) -> list[Combination]:
        return [combination for combination in self.combinations() if combination["mode"] != NONE]

    def _slowdowns(self, results: Results) -> Table:
        rows = []
        for combination in self._combinations_with_move():
            longer, costs, tested = _slowdown(results, combination)
            texts = [captioned.text() if captioned else "not measured" for captioned in (longer, costs)]
            rows.append((label_of(combination), combination["mode"], *texts, tested))
        head = ("workload", "mode", "with : without", "a move costs, s", "test")
        return Table("Slowdown of the job (1: none), and what a move costs it", head, rows, main=True)

    def _moves(self, results: Results) -> Table:
        scales = {"downtime": 1, "total": 1, "largest_gap": 1, "bytes": 1e-6, "rounds": 1}
        rows = []
        for combination in self._combinations_with_move():
            data = {name: [by * y for y in results.values(combination, name)] for name, by in scales.items()}
            if data["downtime"]:
                written = [1e-6 * y for y in results.values(_with_levels(combination, mode=NONE), "written")]
                texts = [median(captioned).text() if captioned else "-" for captioned in (written, *data.values())]
                rows.append((label_of(combination), combination["mode"], *texts))
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
            parts.setdefault(_figure_name(combination), {})[f"{label_of(combination)}\n{combination['mode']}"] = data
        captioned = [
            (f"Downtime and total time of a move: {what}.", figures.bars(groups, "seconds"))
            for what, groups in parts.items()
        ]
        points: dict[str, list[tuple[float, float]]] = {}
        for combination in self._combinations_with_move():
            written = results.values(_with_levels(combination, mode=NONE), "written")
            if written and combination["memory"] == VARIED and combination["link"] == _BARE:
                x = 1e-6 * median(written).value
                points.setdefault(f"{combination['kind']}, {combination['mode']}", []).extend(
                    (x, y) for y in results.values(combination, "downtime")
                )
        points = {label: pairs for label, pairs in points.items() if pairs}
        if points:
            caption = f"Downtime over what a rank writes to its {VARIED} MiB; by nodes and mode, without a link."
            captioned.append((caption, figures.scatter(points, "written without a move, MB/s", "downtime, s")))
        return captioned


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


def problem(quick: bool, factor: int = 1) -> hpcc.Problem:
    """HPL for three ranks, 1 x 3 as in the paper; `factor` times as many factorisations.

    Small with --quick, because hpcc's random-access test before HPL is slow when the number of ranks is no power of
    two."""
    if quick:
        return hpcc.Problem(n=500, p=1, q=3, pfacts=3, rfacts=3, bcasts=3 * factor, depths=2)
    return hpcc.Problem(n=3000, p=1, q=3, pfacts=1, rfacts=1, bcasts=3 * factor, depths=1)


def _cluster(combination: Combination) -> ClusterShape:
    """The ring's cluster. Over a link it has three nodes, so that the ring crosses the link twice wherever the third
    is."""
    memory, on_vms = int(combination["memory"]), combination["kind"] == VM
    cluster = ClusterShape(f"ring-{memory}", 2, ("a1", "b1"), memory=f"{max(256, memory + 192)}MiB")
    if combination["link"] != _BARE:
        cluster = replace(cluster, name=f"far-{memory}", nodes=3, hosts=("a1", "b1", "b2"))
    return replace(cluster, name=f"vm-{cluster.name}", nic="virtio") if on_vms else cluster


def _move_schedule(combination: Combination, node: str, after: float) -> MoveSchedule | None:
    if combination["mode"] == NONE:
        return None
    hosts = ("b1", "b2") if combination["link"] == _BARE else ("b2", "a2")
    if combination["mode"] in _VM_MODES:
        return MoveSchedule(node, hosts, after, mode=combination["mode"])
    return MoveSchedule(node, hosts, after, 0 if combination["mode"] == STOP else None)


def _fabric(link: str) -> Mapping[str, Any]:
    """The studies' fabric with the given link between its sites."""
    figures = {"latency": _LATENCY, **_LINKS[link]} if _LINKS[link] else {}
    return {**FABRIC, "links": [{"between": ["a", "b"], **figures}]}


def _with_levels(combination: Combination, **levels: str) -> Combination:
    return Combination(tuple((factor, levels.get(factor, level)) for factor, level in combination.levels))


def _figure_name(combination: Combination) -> str:
    """Name of the figure that shows a combination; a single figure would have too many bars."""
    if combination["workload"] != RING:
        return "programs on containers"
    if combination["kind"] == VM:
        return "the ring on VMs"
    return f"the ring on containers{'' if combination['link'] == _BARE else ', over links'}"


def label_of(combination: Combination) -> str:
    """Label of a combination without its mode, which has a column of its own."""
    if combination["workload"] != RING:
        return combination["workload"]
    over = {_BARE: "", "fast": ", 1 Gbit/s", "slow": ", 100 Mbit/s"}[combination["link"]]
    pages = f", {combination['dirty']} page{'' if combination['dirty'] == _FEW_PAGES else 's'} a step"
    return f"ring, {combination['memory']} MiB{pages}{over}{', VMs' if combination['kind'] == VM else ''}"
