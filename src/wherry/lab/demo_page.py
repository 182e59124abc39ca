"""The demo's page on its samples: the verdict in a sentence, tables, figures, all computed from the samples.

Invariant: all numbers and comparisons were measured; each has its number of runs and its interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wherry.base.units import format_duration, format_size
from wherry.lab import hpcc
from wherry.lab.bench.samples import Samples
from wherry.lab.hpcc_watch import POLL
from wherry.lab.report.page import Report, Table, svg
from wherry.lab.report.statistics import RANGE, Estimate, difference, median, ratio
from wherry.lab.report.timeline import Timeline
from wherry.model.records import Move


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    name: str
    text: str
    transport: str = "tcp"


NATIVE = Variant("native", "native, TCP")
SHARED = Variant("native-shm", "native, shared memory", "shm")
CLUSTER = Variant("cluster", "virtual cluster")
MOVED = Variant("moved", "virtual cluster, one move")
VARIANTS = (NATIVE, SHARED, CLUSTER, MOVED)
_INTERVALS = {
    True: "too few runs for 95 % intervals: the brackets are their range",
    False: "95 % intervals in brackets",
}
_FROZEN = ("prepare", "turn", "rounds")
"""Phases before the freeze."""


class DemoPage:
    """The page of the samples of one demonstration, in which each variant has at least one counting sample."""

    def __init__(self, samples: Samples, problem: hpcc.Problem, environment: Mapping[str, str]) -> None:
        self._samples, self._problem, self._environment = samples, problem, environment

    def report(self) -> Report:
        """The page."""
        problem = self._problem
        return Report(
            title="HPL while a node moves",
            summary=self.verdict(),
            tables=[self.runs_table(), self.moves_table(), *self._failed_table()],
            first=self._timeline(),
            figures=[("Seconds of each run; bars are medians, lines intervals.", svg(self._runs()))],
            remarks=[
                f"HPL ran in Debian's unmodified hpcc: N = {problem.n}, {problem.runs} factorisations on "
                f"{problem.p * problem.q} ranks, the variants in turn, in a random order within each turn.",
                "A run counts when HPL's residual checks pass.",
                "Native ranks wait as Open MPI has them wait of its own: where they outnumber the processors a rank "
                "that waits yields. On the cluster they sleep (libwherry-wait.so).",
                "Ratios compare runs of one session on one machine; absolute times are this machine's.",
                "The hosts are emulated on this machine: nothing here shows the latency of a real network.",
                f"{problem.p * problem.q} ranks share {self._environment['cpus']} CPUs, so other programs show in "
                "every row.",
                "Seconds are from the first to the last line of HPL's section as it appears in the output file "
                f"(looked at every {POLL * 1e3:.0f} ms), by the clock of the machine and not of a node.",
                f"Runs that failed and do not count: {self._samples.failed()}.",
            ],
            environment=self._environment,
        )

    def verdict(self) -> str:
        """The time of HPL on the cluster relative to native TCP, and with a move, with runs and intervals."""
        cluster, moved = ratio(self._seconds(CLUSTER), self._seconds(NATIVE)), self._moved_ratio()
        downtime = median(self._samples.values("downtime", variant=MOVED.name))
        few = RANGE in (cluster.method, moved.method, downtime.method)
        text = (
            f"HPL on the virtual cluster took {_times(cluster)} as long as natively over TCP, and with one live move "
            f"{_times(moved)} as long as without; the node was frozen for {_stood(downtime)} ({_INTERVALS[few]})."
        )
        open_ = [name for name, one in (("the cluster", cluster), ("the move", moved)) if one.low <= 1 <= one.high]
        if open_:
            text += f" The interval of {' and of '.join(open_)} has 1 in it: these runs show no difference."
        if late := self._late():
            text += f" In {late} of {moved.count} runs HPL had ended before the move had: a larger --n shows it."
        return text

    def runs_table(self) -> Table:
        """Seconds of each variant, and its cost."""
        native, rows = self._seconds(NATIVE), []
        for variant in VARIANTS:
            seconds = self._seconds(variant)
            estimate = self._moved_ratio() if variant is MOVED else ratio(seconds, native)
            cost = "" if variant is NATIVE else f"{estimate.text()} of {'cluster' if variant is MOVED else 'native'}"
            middle = median(seconds).value  # HPL prints hundredths of a second, so a small problem may take none
            gflops = f"{self._problem.operations / middle / 1e9:.3g}" if middle else ""
            rows.append((variant.text, median(seconds).text(), gflops, cost))
        return Table("HPL", ("variant", "seconds", "GFLOPS", "cost"), rows)

    def medians(self) -> list[Estimate]:
        """Seconds of each variant, as the rows of the table."""
        return [median(self._seconds(variant)) for variant in VARIANTS]

    def moves_table(self) -> Table:
        """Medians of the moves."""
        seconds = self._seconds(MOVED)
        moves = {name: self._samples.values(name, variant=MOVED.name) for name in ("downtime", "total", "bytes")}
        rows = [
            ("downtime, seconds", median(moves["downtime"]).text()),
            ("total move time, seconds", median(moves["total"]).text()),
            ("sent", format_size(median(moves["bytes"]).value)),
            ("HPL longer by (difference of medians), seconds", difference(seconds, self._seconds(CLUSTER)).text()),
        ]
        return Table("The move", ("", "median"), rows)

    def timeline(self) -> tuple[Timeline, dict[str, Any]] | None:
        """The move in the run whose seconds are nearest to the median, and that sample; None without a known freeze."""
        middle = median(self._seconds(MOVED)).value
        moved = sorted(self._samples.good(variant=MOVED.name), key=lambda sample: abs(sample["seconds"] - middle))
        for sample in moved:
            move = Move.model_validate(sample["move"])
            if move.downtime is not None and "freeze" in move.phases:
                frozen = sample["move_began"] + sum(move.phases.get(name, 0.0) for name in _FROZEN)
                shown = Timeline(
                    began=sample["move_began"],
                    phases=move.phases,
                    stood=(frozen, frozen + move.downtime),
                    steps=sample["finished"],
                    step_text="factorisations",
                    time_text="seconds since HPL began",
                    cpu=_cpu(sample),
                )
                return shown, sample
        return None

    def _timeline(self) -> list[tuple[str, str]]:
        found = self.timeline()
        if found is None:
            return []
        shown, sample = found
        move = Move.model_validate(sample["move"])
        caption = (
            f"The move of {move.node} from {move.source} to {move.destination} in run {sample['turn'] + 1} of that "
            "variant: its phases, HPL's factorisations as their lines came to its output file, and the CPU seconds of "
            f"the ranks. {_gap(shown, sample['finished'])}"
        )
        return [(caption, svg(shown.as_figure()))]

    def _failed_table(self) -> list[Table]:
        texts = {variant.name: variant.text for variant in VARIANTS}
        rows = [(f"{one['turn'] + 1}", texts[one["variant"]], one["problem"]) for one in self._samples.bad()]
        return [Table("Runs that failed and do not count", ("run", "variant", "problem"), rows)] if rows else []

    def _runs(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 2.6), layout="constrained")
        axes = figure.subplots()
        for row, variant in enumerate(reversed(VARIANTS)):
            seconds, middle = self._seconds(variant), median(self._seconds(variant))
            axes.barh(row, middle.value, color="#9db8d6", height=0.6)
            axes.plot([middle.low, middle.high], [row, row], color="#1f3a5f", linewidth=1)
            axes.plot(seconds, [row] * len(seconds), "o", color="#1f3a5f", markersize=4)
        axes.set_yticks(range(len(VARIANTS)), [variant.text for variant in reversed(VARIANTS)])
        axes.set_xlabel("seconds of HPL")
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    def _seconds(self, variant: Variant) -> list[float]:
        return self._samples.values("seconds", variant=variant.name)

    def _moved_ratio(self) -> Estimate:
        return ratio(self._seconds(MOVED), self._seconds(CLUSTER))

    def _late(self) -> int:
        """How many runs ended before the move had thawed the node."""
        late = 0
        for sample in self._samples.good(variant=MOVED.name):
            phases = sample["move"]["phases"]
            thawed = sample["move_began"] + sum(seconds for name, seconds in phases.items() if name != "done")
            late += thawed > sample["seconds"]
        return late


def _times(estimate: Estimate) -> str:
    value, low, high = (f"{number:.2f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} times [{low}, {high}] (n = {estimate.count})"


def _stood(estimate: Estimate) -> str:
    value, low, high = (f"{number:.2f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} s [{low}, {high}] (n = {estimate.count})"


def _gap(shown: Timeline, finished: list[float]) -> str:
    """How long the factorisation took during which the node was frozen, beside the others."""
    spans = list(zip([0.0, *finished], finished, strict=False))
    across = [end - begin for begin, end in spans if begin < shown.stood[1] and end > shown.stood[0]]
    others = [end - begin for begin, end in spans if end <= shown.stood[0] or begin >= shown.stood[1]]
    if not across or not others:
        return ""
    return (
        f"The factorisation during which the node was frozen took {format_duration(max(across))}; the median of the "
        f"other {len(others)} is {format_duration(median(others).value)}."
    )


def _cpu(sample: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """CPU seconds of the ranks on the node that moved and of the others, each as the mean of its ranks."""
    rows, moved = sample["cpu"], set(sample["moved_ranks"])
    if not rows or not moved:
        return {}
    ranks = range(len(rows[0]) - 1)
    groups = {
        "rank of the node that moved": [rank for rank in ranks if rank in moved],
        "other ranks (mean)": [rank for rank in ranks if rank not in moved],
    }
    return {
        label: [(row[0], sum(row[1 + rank] for rank in group) / len(group)) for row in rows]
        for label, group in groups.items()
        if group
    }
