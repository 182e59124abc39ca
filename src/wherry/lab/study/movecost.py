"""`migration-cost`: what the move of one node costs the job that runs on it.

Workload x memory x mode of the move x link that it crosses. Each move has its run without a move in the same turn, so
the slowdown is a ratio of runs made side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wherry.base.units import format_size
from wherry.lab import hpcc
from wherry.lab.report import Table
from wherry.lab.stats import median
from wherry.lab.study import analysis, applications, figures, workloads
from wherry.lab.study.bench import FABRIC, Bench, Place
from wherry.lab.study.recipe import Cell, Factor, Level, Page, Study, Value
from wherry.lab.study.results import Results
from wherry.lab.study.workloads import Moving

NONE, STOP, ROUNDS = "none", "stop", "rounds"
_RING = "ring"
_BARE = "bare"
_LINKS: dict[str, dict[str, str]] = {_BARE: {}, "fast": {"bandwidth": "1Gbit/s"}, "slow": {"bandwidth": "100Mbit/s"}}
_MOST_OVER_A_LINK = 64
"""MiB of the ring's memory that are moved over links with a bandwidth: more would take minutes."""
_LATENCY = "10ms"
"""Of the links that have a bandwidth."""


class MigrationCost(Study):
    """The recipe."""

    name = "migration-cost"
    title = "What a move costs the job"
    question = (
        "How much longer does a job take when one of its nodes moves, and for how long does the node stand still?"
    )
    repetitions = 10
    quick_repetitions = 2
    shows = (
        "Slowdown of the job, total time and downtime of a move, bytes sent and rounds, by workload, memory and mode, "
        "and that the result is the same: wherry-ring checks every byte, HPL its residuals, whose digits are compared.",
    )
    cannot = (
        "The hosts are emulated on this machine: bytes cross no wire, and source, destination and ranks share the same "
        "CPUs. What a wire adds is shown by the emulated links of 1 Gbit/s and 100 Mbit/s, which the job uses too.",
    )

    def factors(self) -> Sequence[Factor]:
        no_rounds = self.lacks.get("soft-dirty", "")
        no_sp = self.lacks.get("npb-sp", "")
        return [
            Factor(
                "workload",
                "what runs",
                (
                    Level(_RING, "wherry-ring, 2 ranks; 3 over a link"),
                    Level("hpl", "HPL, 3 ranks"),
                    Level("sp", "NPB SP", no_sp),
                    *applications.levels(self.lacks),
                ),
            ),
            Factor("memory", "MiB that each rank of the ring rewrites", tuple(Level(m, m) for m in self._memories())),
            Factor(
                "mode",
                "how the node moves",
                (
                    Level(NONE, "no move"),
                    Level(STOP, "all memory while frozen"),
                    Level(ROUNDS, "rounds of pre-copy, then frozen", no_rounds),
                ),
            ),
            Factor(
                "link",
                "what is between the hosts",
                (
                    Level(_BARE, "the emulated network as it is"),
                    Level("fast", f"1 Gbit/s, {_LATENCY}", "not with --quick" if self.quick else ""),
                    Level("slow", f"100 Mbit/s, {_LATENCY}"),
                ),
            ),
        ]

    def _memories(self) -> tuple[str, ...]:
        return ("16", "128") if self.quick else ("16", "64", "256", "1024")

    def cells(self) -> Sequence[Cell]:
        workload, _, mode, links = self.factors()
        cells = []
        for name in workload.measured():
            for memory in self._memories() if name == _RING else self._memories()[:1]:
                linked = name == _RING and int(memory) <= _MOST_OVER_A_LINK
                for link in links.measured() if linked else (_BARE,):
                    cells += [Cell.of(workload=name, memory=memory, mode=m, link=link) for m in mode.measured()]
        return cells

    def measure(self, bench: Bench, cell: Cell, directory: Path) -> list[Value]:
        bench.stand_on(_fabric(cell["link"]))
        if cell["workload"] == _RING:
            return self._ring(bench, cell, directory)
        if cell["workload"] == "sp":
            place = Place("four", 4, ("a1", "a2", "b1"), memory="256MiB")
            moving = self._moving(cell, "four-2", 1.0 if self.quick else 5.0)
            return workloads.npb(bench, place, "sp", "W" if self.quick else "A", 4, directory, moving)
        place = Place("three", 3, ("a1", "a2", "b1"))
        if cell["workload"] in applications.APPLICATIONS:
            moving = self._moving(cell, "three-2", 0.5 if self.quick else 3.0)
            return applications.run(bench, cell["workload"], place, directory, moving, quick=self.quick)
        moving = self._moving(cell, "three-2", 0.3 if self.quick else 2.0)
        return workloads.hpl(bench, place, problem(self.quick), directory, moving)

    def _ring(self, bench: Bench, cell: Cell, directory: Path) -> list[Value]:
        memory, link = int(cell["memory"]), cell["link"]
        size = "256MiB" if memory <= 64 else f"{memory + 192}MiB"
        bench.needs_memory(5 * memory << 20)
        place = Place(f"ring-{memory}", 2, ("a1", "b1"), memory=size)
        if link != _BARE:  # with its third node at either site the ring crosses the link twice
            place = Place(f"far-{memory}", 3, ("a1", "b1", "b2"), memory=size)
        moving = self._moving(cell, f"{place.name}-{place.nodes - 1}", 1.5 if self.quick else 5.0)
        seconds = 5.0 if self.quick else 20.0
        if link == "slow":  # a megabyte takes 0.1 s
            seconds += 0.2 * memory
        return workloads.ring(bench, place, memory, seconds, place.nodes, directory, moving)

    @staticmethod
    def _moving(cell: Cell, node: str, after: float) -> Moving | None:
        if cell["mode"] == NONE:
            return None
        hosts = ("b1", "b2") if cell["link"] == _BARE else ("b2", "a2")
        return Moving(node, hosts, after, 0 if cell["mode"] == STOP else None)

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables += [self._slowdowns(results), self._moves(results), self._identical(results)]
        groups = {}
        for cell in self.cells():
            if cell["mode"] != NONE:
                data = {name: results.values(cell, name) for name in ("downtime", "total")}
                groups[f"{_short(cell)}\n{cell['mode']}"] = data
        page.figures.append(("Downtime and total time of a move.", figures.bars(groups, "seconds")))
        page.remarks.append(
            "The job's slowdown is that of its rate (ring: iterations a second in a fixed time) or of its "
            "seconds (HPL, NPB), against runs without a move in the same turns. A short run shows a large share: the "
            "cost in seconds is what carries over to longer ones."
        )
        return page

    def _slowdowns(self, results: Results) -> Table:
        rows = []
        for cell in self.cells():
            if cell["mode"] == NONE:
                continue
            base = Cell(tuple((f, NONE if f == "mode" else v) for f, v in cell.levels))
            if cell["workload"] == _RING:
                data = [results.values(one, "rate") for one in (base, cell)]
            else:
                data = [results.values(one, "seconds") for one in (cell, base)]
            found = analysis.compare_samples(data[0], data[1])
            text = found.text() if found else "not measured"
            test = analysis.verdict(data[0], data[1]) if found else ""
            rows.append((_short(cell), cell["mode"], text, test))
        return Table("Slowdown of the job (1: none)", ("workload", "mode", "with : without", "test"), rows)

    def _moves(self, results: Results) -> Table:
        rows = []
        for cell in self.cells():
            data = {
                name: results.values(cell, name) for name in ("downtime", "total", "bytes", "rounds", "largest_gap")
            }
            if data["downtime"]:
                gap = data["largest_gap"]
                sent = format_size(median(data["bytes"]).value)
                rounds = f"{median(data['rounds']).value:g}"
                times = [median(data[name]).text() for name in ("downtime", "total")]
                rows.append((_short(cell), cell["mode"], *times, median(gap).text() if gap else "-", sent, rounds))
        head = ("workload", "mode", "downtime, s", "total, s", "largest gap seen by the program, s", "sent", "rounds")
        return Table("The moves", head, rows)

    def _identical(self, results: Results) -> Table:
        rows = []
        for workload in self.factors()[0].measured():
            cells = [cell for cell in self.cells() if cell["workload"] == workload]
            moved = sum(len(results.counted(cell)) for cell in cells if cell["mode"] != NONE)
            if workload == _RING:
                said = f"every byte right in {moved} of {moved} runs with a move that count"
            else:
                right = {crc for cell in cells if cell["mode"] == NONE for crc in results.values(cell, "result_crc")}
                got = [crc for cell in cells if cell["mode"] != NONE for crc in results.values(cell, "result_crc")]
                same = sum({crc} == right for crc in got)
                said = f"every digit as without a move in {same} of {len(got)} runs with a move"
                if len(right) > 1:
                    said += "; but runs without a move differ among themselves"
            rows.append((workload, said))
        return Table("Results", ("workload", "identical"), rows)


def problem(quick: bool, factor: int = 1) -> hpcc.Problem:
    """HPL for three ranks, 1 x 3 as in the paper; `factor` times as many factorisations.

    Small with --quick: hpcc's test of random access before it takes long on a number of ranks that is no power of two.
    """
    if quick:
        return hpcc.Problem(n=500, p=1, q=3, pfacts=3, rfacts=3, bcasts=3 * factor, depths=2)
    return hpcc.Problem(n=3000, p=1, q=3, pfacts=1, rfacts=1, bcasts=3 * factor, depths=1)


def _fabric(link: str) -> Mapping[str, Any]:
    """The studies' fabric with this link between its sites."""
    figures = {"latency": _LATENCY, **_LINKS[link]} if _LINKS[link] else {}
    return {**FABRIC, "links": [{"between": ["a", "b"], **figures}]}


def _short(cell: Cell) -> str:
    if cell["workload"] != _RING:
        return cell["workload"]
    over = {_BARE: "", "fast": " over 1 Gbit/s", "slow": " over 100 Mbit/s"}
    return f"ring, {cell['memory']} MiB{over[cell['link']]}"
