"""`migration-cost`: what the move of one node costs the job that runs on it.

Workload x memory x how fast that is written x mode of the move x link that it crosses, on container nodes and on
virtual machines, which have modes of their own. Each move has its run without a move in the same turn, so the slowdown
is a ratio of runs made side by side. Not everything is combined with everything (`_combined`), and the report says what
is not.
"""

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
from wherry.lab.study.levels import RESULT, Combination, Factor, Level, Value
from wherry.lab.study.requirements import POST_COPY, no_machines
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import FABRIC, ClusterShape, Testbed
from wherry.lab.study.workloads import Moving

CONTAINER, VM = "container", "vm"
NONE, STOP, ROUNDS = "none", "stop", "rounds"
_VM_MODES = ("pre-copy", "auto-converge", "post-copy")
_MODES = {CONTAINER: (NONE, STOP, ROUNDS), VM: (NONE, *_VM_MODES)}
RING = "ring"
OWN = "own"
"""Memory and dirty rate of a program that has its own."""
_MEMORIES = ("16", "64", "256", "1024")
_LEAST, VARIED = "16", "64"
"""The memory that crosses a link with --quick, and that of which different amounts are written in a step."""
_RARE, USUAL, OFTEN = "1", "16", "256"
"""Pages in a step: some ten MB/s, some hundred, and as fast as a core can, while messages wait for no link."""
_BARE = "bare"
_LINKS: dict[str, dict[str, str]] = {_BARE: {}, "fast": {"bandwidth": "1Gbit/s"}, "slow": {"bandwidth": "100Mbit/s"}}
_MOST_OVER_A_LINK = 64
"""MiB of the ring's memory that are moved over links with a bandwidth: more would take minutes."""
_LATENCY = "10ms"
"""Of the links that have a bandwidth."""


class MigrationCost(Study):
    """The experiment."""

    name = "migration-cost"
    title = "What a move costs the job"
    question = (
        "How much longer does a job take when one of its nodes moves, and for how long does the node stand still?"
    )
    verified = (
        "every byte of the ring is right, HPL's residual checks pass, NPB's verification succeeds, LAMMPS and GROMACS "
        "took all their steps;",
        "and a move that was asked for began after the measured part did, ended before it, and changed no digit of the "
        "result.",
    )
    lasts = ("some hours; five more with virtual machines", "some minutes")
    repetitions = 10
    quick_repetitions = 2
    shows = (
        "Slowdown of the job, total time and downtime of a move, bytes sent and rounds, by workload, memory, how fast "
        "that is written, link and mode, and that the result is the same: wherry-ring checks every byte; what HPL, SP, "
        "LAMMPS and GROMACS print of their results must be that of the runs without a move to the digit, else the run "
        "does not count.",
    )
    cannot = (
        "The hosts are emulated on this machine: bytes cross no wire, and source, destination and ranks share the same "
        "CPUs. What a wire adds is shown by the emulated links of 1 Gbit/s and 100 Mbit/s, which the job uses too.",
    )

    def factors(self) -> Sequence[Factor]:
        long = "not with --quick" if self.quick else ""
        no_vm = no_machines(self.lacks, self.quick, moved=True)
        no_post_copy = no_vm or self.lacks.get(POST_COPY, "")
        workload = (
            Level(RING, "wherry-ring, 2 ranks; 3 over a link"),
            Level("hpl", "HPL, 3 ranks", self.lacks.get("hpcc", "")),
            Level("sp", "NPB SP", self.lacks.get("npb-sp-openmpi", "")),
            *applications.levels(self.lacks),
        )
        memory = tuple(Level(m, f"{m} MiB", long if m not in (_LEAST, VARIED) else "") for m in _MEMORIES)
        dirty = (
            Level(_RARE, "1 page of 4 KiB", long),
            Level(USUAL, f"{USUAL} pages"),
            Level(OFTEN, f"{OFTEN} pages"),
            Level("others", f"1 and {OFTEN} pages with other memory than {VARIED} MiB", "it would take hours more"),
        )
        mode = (
            Level(NONE, "no move"),
            Level(STOP, "containers: all memory while frozen"),
            Level(ROUNDS, "containers: rounds of pre-copy, then frozen", self.lacks.get("soft-dirty", "")),
            *(
                [Level("stop-programs", "HPL, SP, LAMMPS and GROMACS: all memory while frozen", long)]
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
            Level("fast", f"1 Gbit/s, {_LATENCY}", long),
            Level("slow", f"100 Mbit/s, {_LATENCY}"),
            Level(
                "far-programs",
                "HPL, SP, LAMMPS and GROMACS over a link",
                "their time would be the link's: the ring shows what one adds to a move, multi-site to a program",
            ),
            Level(
                "far-memory",
                self._too_far(),
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
        bases = [
            Combination.of(kind=kind, workload=RING, memory=memory, dirty=pages, mode=NONE, link=link)
            for kind in kinds
            for memory in memories
            for pages in dirty
            for link in links
            if OWN not in (memory, pages) and self._combined(kind, memory, pages, link)
        ]
        bases += [
            Combination.of(kind=CONTAINER, workload=name, memory=OWN, dirty=OWN, mode=NONE, link=_BARE)
            for name in programs
            if name != RING
        ]
        return [
            _with(base, mode=mode)
            for base in bases
            for mode in _MODES[base["kind"]]
            if mode in modes and not (mode == STOP and base["workload"] != RING and self._short_of_time())
        ]

    def _too_far(self) -> str:
        """What does not cross a link."""
        return f"more than {_LEAST} MiB over a link" if self.quick else f"more than {_MOST_OVER_A_LINK} MiB over a link"

    def _short_of_time(self) -> bool:
        """With rounds as well --quick would take more than its five minutes."""
        return self.quick and not self.lacks.get("soft-dirty", "")

    def _combined(self, kind: str, memory: str, pages: str, link: str) -> bool:
        """Whether the ring is run so. Every memory at one dirty rate, every dirty rate with one memory."""
        if kind == VM:  # over 100 Mbit/s 256 pages a step are more than can be sent, which is what its modes are for
            return memory == VARIED and pages != _RARE and link != "fast"
        if pages != USUAL and memory != VARIED:
            return False
        if link == _BARE:
            return True
        return memory == _LEAST if self.quick else int(memory) <= _MOST_OVER_A_LINK

    def unmoved(self, cell: Combination) -> Combination | None:
        return None if cell["workload"] == RING or cell["mode"] == NONE else _with(cell, mode=NONE)

    def measure(self, testbed: Testbed, cell: Combination, directory: Path) -> list[Value]:
        testbed.stand_on(_fabric(cell["link"]))
        if cell["workload"] == RING:
            return self._ring(testbed, cell, directory)
        if cell["workload"] == "sp":
            place = ClusterShape("four", 4, ("a1", "a2", "b1"), memory="256MiB")
            moving = _moving(cell, "four-2", 1.0 if self.quick else 5.0)
            return workloads.npb(testbed, place, "sp", "W" if self.quick else "A", 4, directory, moving)
        place = ClusterShape("three", 3, ("a1", "a2", "b1"))
        if cell["workload"] in applications.APPLICATIONS:
            moving = _moving(cell, "three-2", 0.5 if self.quick else 3.0)
            return applications.run(testbed, cell["workload"], place, directory, moving, quick=self.quick)
        moving = _moving(cell, "three-2", 0.3 if self.quick else 2.0)
        return workloads.hpl(testbed, place, problem(self.quick), directory, moving)

    def _ring(self, testbed: Testbed, cell: Combination, directory: Path) -> list[Value]:
        memory = int(cell["memory"])
        testbed.needs_memory(5 * memory << 20)
        place = _place(cell)
        moving = _moving(cell, f"{place.name}-{place.nodes - 1}", 1.5 if self.quick else 5.0)
        seconds = 5.0 if self.quick else 20.0
        if cell["kind"] == VM:  # without KVM a move takes ten seconds, by auto-converge over the link a hundred
            seconds = 40.0 if cell["link"] == _BARE else 150.0
        if cell["link"] == "slow":  # a megabyte takes 0.1 s
            seconds += 0.2 * memory
        return workloads.ring(testbed, place, memory, seconds, place.nodes, directory, moving, int(cell["dirty"]))

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

    def _moved(self) -> list[Combination]:
        return [cell for cell in self.combinations() if cell["mode"] != NONE]

    def _slowdowns(self, results: Results) -> Table:
        rows = []
        for cell in self._moved():
            longer, costs, tested = _slowdown(results, cell)
            texts = [found.text() if found else "not measured" for found in (longer, costs)]
            rows.append((short(cell), cell["mode"], *texts, tested))
        head = ("workload", "mode", "with : without", "a move costs, s", "test")
        return Table("Slowdown of the job (1: none), and what a move costs it", head, rows, main=True)

    def _moves(self, results: Results) -> Table:
        scales = {"downtime": 1, "total": 1, "largest_gap": 1, "bytes": 1e-6, "rounds": 1}
        rows = []
        for cell in self._moved():
            data = {name: [by * y for y in results.values(cell, name)] for name, by in scales.items()}
            if data["downtime"]:
                written = [1e-6 * y for y in results.values(_with(cell, mode=NONE), "written")]
                texts = [median(found).text() if found else "-" for found in (written, *data.values())]
                rows.append((short(cell), cell["mode"], *texts))
        head = ("workload", "mode", "written, MB/s", "downtime, s", "total, s", "largest gap seen by the program, s")
        return Table("The moves", (*head, "sent, MB", "rounds"), rows, main=True)

    def _identical(self, results: Results) -> Table:
        rows = []
        for workload in self.factors()[1].measured():
            cells = [cell for cell in self.combinations() if cell["workload"] == workload]
            moved = [cell for cell in cells if cell["mode"] != NONE]
            right = sum(len(results.counted(cell)) for cell in moved)
            runs = right + sum(run.cell in moved and not run.warmup for run in results.failed())
            unmoved = {crc for cell in cells if cell["mode"] == NONE for crc in results.values(cell, RESULT)}
            if workload == RING:
                said = f"every byte right in {right} of {runs} runs with a move"
            elif unmoved:
                said = f"every digit as without a move in {right} of {runs} runs with a move"
            else:
                said = f"nothing to compare {right} runs with a move with: no run without one counts"
            if right < runs:
                said += "; the others do not count"
            if len(unmoved) > 1:
                said += "; but runs without a move differ among themselves"
            rows.append((workload, said))
        return Table("Results", ("workload", "identical"), rows)

    def _figures(self, results: Results) -> list[tuple[str, figures.Drawing]]:
        parts: dict[str, dict[str, figures.Samples]] = {}
        for cell in self._moved():
            data = {name: results.values(cell, name) for name in ("downtime", "total")}
            parts.setdefault(_part(cell), {})[f"{short(cell)}\n{cell['mode']}"] = data
        found = [
            (f"Downtime and total time of a move: {what}.", figures.bars(groups, "seconds"))
            for what, groups in parts.items()
        ]
        points: dict[str, list[tuple[float, float]]] = {}
        for cell in self._moved():
            written = results.values(_with(cell, mode=NONE), "written")
            if written and cell["memory"] == VARIED and cell["link"] == _BARE:
                x = 1e-6 * median(written).value
                points.setdefault(f"{cell['kind']}, {cell['mode']}", []).extend(
                    (x, y) for y in results.values(cell, "downtime")
                )
        points = {label: pairs for label, pairs in points.items() if pairs}
        if points:
            caption = f"Downtime over what a rank writes to its {VARIED} MiB; by nodes and mode, without a link."
            found.append((caption, figures.scatter(points, "written without a move, MB/s", "downtime, s")))
        return found


def _slowdown(results: Results, cell: Combination) -> tuple[Estimate | None, Estimate | None, str]:
    """How many times as long, how many seconds more, and whether that is beyond chance."""
    base = _with(cell, mode=NONE)
    if cell["workload"] != RING:
        data = [results.values(one, "seconds") for one in (cell, base)]
        longer, costs = analysis.compare_samples(*data), analysis.cost(*data)
        return longer, costs, analysis.verdict(*data) if longer else ""
    data = [results.values(one, "rate") for one in (base, cell)]
    longer, done = analysis.compare_samples(*data), analysis.compare_samples(data[1], data[0])
    if longer is None or done is None:
        return None, None, ""
    seconds = median(results.values(cell, "seconds")).value
    lost = [seconds * (1 - share) for share in (done.value, done.high, done.low)]
    return longer, replace(done, value=lost[0], low=lost[1], high=lost[2]), analysis.verdict(*data)


def problem(quick: bool, factor: int = 1) -> hpcc.Problem:
    """HPL for three ranks, 1 x 3 as in the paper; `factor` times as many factorisations.

    Small with --quick: hpcc's test of random access before it takes long on a number of ranks that is no power of two.
    """
    if quick:
        return hpcc.Problem(n=500, p=1, q=3, pfacts=3, rfacts=3, bcasts=3 * factor, depths=2)
    return hpcc.Problem(n=3000, p=1, q=3, pfacts=1, rfacts=1, bcasts=3 * factor, depths=1)


def _place(cell: Combination) -> ClusterShape:
    """Where the ring runs: with its third node at either site it crosses a link twice."""
    memory, machines = int(cell["memory"]), cell["kind"] == VM
    place = ClusterShape(f"ring-{memory}", 2, ("a1", "b1"), memory=f"{max(256, memory + 192)}MiB")
    if cell["link"] != _BARE:
        place = replace(place, name=f"far-{memory}", nodes=3, hosts=("a1", "b1", "b2"))
    return replace(place, name=f"vm-{place.name}", nic="virtio") if machines else place


def _moving(cell: Combination, node: str, after: float) -> Moving | None:
    if cell["mode"] == NONE:
        return None
    hosts = ("b1", "b2") if cell["link"] == _BARE else ("b2", "a2")
    if cell["mode"] in _VM_MODES:
        return Moving(node, hosts, after, mode=cell["mode"])
    return Moving(node, hosts, after, 0 if cell["mode"] == STOP else None)


def _fabric(link: str) -> Mapping[str, Any]:
    """The studies' fabric with this link between its sites."""
    figures = {"latency": _LATENCY, **_LINKS[link]} if _LINKS[link] else {}
    return {**FABRIC, "links": [{"between": ["a", "b"], **figures}]}


def _with(cell: Combination, **levels: str) -> Combination:
    return Combination(tuple((factor, levels.get(factor, level)) for factor, level in cell.levels))


def _part(cell: Combination) -> str:
    """The figure that shows it: one for all would have too many bars."""
    if cell["workload"] != RING:
        return "programs on containers"
    if cell["kind"] == VM:
        return "the ring on VMs"
    return f"the ring on containers{'' if cell['link'] == _BARE else ', over links'}"


def short(cell: Combination) -> str:
    """What ran, for tables and figures; how its node moved stands beside."""
    if cell["workload"] != RING:
        return cell["workload"]
    over = {_BARE: "", "fast": ", 1 Gbit/s", "slow": ", 100 Mbit/s"}[cell["link"]]
    pages = f", {cell['dirty']} page{'' if cell['dirty'] == _RARE else 's'} a step"
    return f"ring, {cell['memory']} MiB{pages}{over}{', VMs' if cell['kind'] == VM else ''}"
