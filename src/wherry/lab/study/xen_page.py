"""What the study `xen-migration` shows: the paper's Figures 2 to 8 with ours, and the law of a move's cost.

The paper's nodes were virtual machines, so its ratios stand beside both kinds of ours.
"""

from __future__ import annotations

from wherry.lab.report import Table
from wherry.lab.stats import Estimate, median
from wherry.lab.study import analysis, figures, published
from wherry.lab.study.recipe import Cell, Page
from wherry.lab.study.results import Results
from wherry.lab.study.xen import (
    COMBINATIONS,
    MOVED,
    NATIVE,
    NODES,
    TALK,
    VM,
    VM_MOVED,
    VM_NODES,
    VM_NODES_MOVED,
    VM_TALK,
    XenMigration,
)

_SIX_MEGABYTES = 6 << 20
"""Bytes at which the paper states the bandwidth on one host; NetPIPE itself measures beside it."""
_LATENCY = "latency_mean"
_RATIO, _DIRECTION = "The ratio.", "The direction; the share depends on the run's length, see the last figure."
_KVM = "The direction; the ratio only with KVM, as without it a VM's processor is emulated."


class XenPage:
    """The page of one study's results."""

    def __init__(self, study: XenMigration, results: Results) -> None:
        self._results = results
        self._tests, self._hows = study.factors()
        self._cells = study.cells()

    def page(self) -> Page:
        """Tables and figures of what has been measured so far."""
        page = Page()
        page.tables += [self._beside(), self._times(), self._moves(), self._b_eff()]
        parts = {
            self._label(how): {part: self._of("linpack", how, part) for part in ("factor", "solve")}
            for how in self._measured("linpack")
        }
        turned = {part: {how: data[part] for how, data in parts.items()} for part in ("factor", "solve")}
        caption = f"{self._test('linpack')}: seconds, in the form of the paper's Figure 2."
        page.figures.append((caption, figures.bars(turned, "seconds")))
        for test in ("netpipe", "netpipe-mpich"):
            if test in self._tests.measured():
                self._show_netpipe(page, test)
        for test, which in (("hpl6", "Figure 5"), ("hpl3", "Figures 6 and 7"), ("sp", "Figure 8")):
            if test in self._tests.measured():
                bars = {self._label(how): {"": self._of(test, how, "seconds")} for how in self._measured(test)}
                caption = (
                    f"{self._test(test)}: seconds, in the form of the paper's {which}. Dashed: where the paper's ratio "
                    "would put them, from our native median."
                )
                page.figures.append((caption, figures.bars(bars, "seconds", self._scaled(test))))
        page.figures.append(self._cost_over_length())
        page.remarks += [
            "HPL's seconds are from the first to the last line of its section as they appear in hpcc's output file, so "
            "that hpcc's other tests do not count; the move begins a fixed time after that first line. SP's are its "
            "own, by the time of day; the move begins a fixed time after its first step. On virtual machines both are "
            "taken from what they print, as it arrives here (error: 0.2 s), since their clocks stand while they move.",
            "Linpack runs through the machine's LAPACK (named below), NetPIPE's Mbps were made from its seconds.",
        ]
        return page

    def _measured(self, test: str) -> list[str]:
        return [how for how in COMBINATIONS[test] if how in self._hows.measured()]

    def _show_netpipe(self, page: Page, test: str) -> None:
        talk = {self._hows.label(how): Cell.of(test=test, how=how) for how in self._measured(test)}
        curves, name = analysis.by_size(self._results, talk, _LATENCY), self._test(test)
        page.tables.append(analysis.latency_table(f"{name}: half of the round trip", curves))
        far = (TALK["two-hosts"], VM_TALK["vm-two-hosts"])
        two = {how: points for how, points in curves.items() if how in (TALK["native-tcp"], *far)}
        one = {how: points for how, points in curves.items() if how not in far}
        for number, chosen in ((3, two), (4, one)):
            stars = published.ON_ONE_HOST if number == 4 else ()
            figure = figures.curves(chosen, "Mbit/s (10^6)", scale=analysis.bandwidth, log_y=True, published=stars)
            page.figures.append((f"{name}: bandwidth, in the form of the paper's Figure {number}.", figure))

    def _scaled(self, test: str) -> list[figures.Published]:
        native = self._of(test, NATIVE, "seconds")
        ratios = published.RATIOS[test] if native else {}
        kinds = {NODES: (NODES, VM_NODES), MOVED: (MOVED, VM_NODES_MOVED)}
        return [
            figures.Published(self._label(how), median(native).value * ratio, f"paper: {ratio:.3g} x native")
            for kind, ratio in ratios.items()
            for how in kinds[kind]
            if how in self._measured(test)
        ]

    def _of(self, test: str, how: str, metric: str, x: float | None = None) -> list[float]:
        return self._results.values(Cell.of(test=test, how=how), metric, x)

    def _label(self, how: str) -> str:
        return self._hows.label(how).replace("native, shared memory", "native")

    def _test(self, name: str) -> str:
        return self._tests.label(name)

    def _ratio(self, test: str, how: str, base: str, metric: str = "seconds") -> Estimate | None:
        return analysis.compare_samples(self._of(test, how, metric), self._of(test, base, metric))

    def _near_six(self, test: str, how: str) -> list[float]:
        xs = self._results.xs(Cell.of(test=test, how=how), _LATENCY)
        near = min(xs, key=lambda x: abs(x - _SIX_MEGABYTES)) if xs else None
        return self._of(test, how, _LATENCY, near)

    def _beside(self) -> Table:
        rows = [
            published.Beside(
                f"Linpack, factor: {self._label(how)} over native",
                "Xen's kernel faster than Debian's, guests slower than Dom0 (order only)",
                "Figure 2",
                self._ratio("linpack", how, NATIVE, "factor"),
                may,
            )
            for how, may in (
                (NODES, "Whether nodes cost computing anything; containers have no kernel of their own."),
                (VM, _KVM),
            )
        ]
        for test in ("netpipe", "netpipe-mpich"):
            if test in self._tests.measured():
                rows += self._beside_messages(test)
        rows += self._beside_programs()
        return published.table(rows, published.XEN)

    def _beside_messages(self, test: str) -> list[published.Beside]:
        compared = (
            (
                "two-hosts",
                "native-tcp",
                "1 to 2 % (which way, its text and figure disagree)",
                "Figure 3",
                "That it is near 1 needs a wire that is the bottleneck, as there; here it is loopback and CPUs.",
            ),
            ("vm-two-hosts", "native-tcp", "1 to 2 % (as above)", "Figure 3", _KVM),
            ("one-host", NATIVE, "180 / 1200 = 0.15", "Figure 4", "The ratio and its direction, not the rates."),
            ("vm-one-host", NATIVE, "180 / 1200 = 0.15", "Figure 4", _KVM),
            ("one-node", "native-tcp", "about 1", "Figure 4", "Ranks of one container node talk over TCP."),
            ("vm-one-node", NATIVE, "about 1", "Figure 4", f"Shared memory, as there. {_KVM}"),
        )
        return [
            published.Beside(
                f"{self._test(test)}, bandwidth near 6 MB, {self._hows.label(how)} : {self._hows.label(base)}",
                value,
                figure,
                analysis.compare_samples(self._near_six(test, base), self._near_six(test, how)),
                may,
            )
            for how, base, value, figure, may in compared
            if how in self._measured(test)
        ]

    def _beside_programs(self) -> list[published.Beside]:
        compared = (
            ("hpl6", NODES, NATIVE, "1.09", "Figure 5", _RATIO),
            ("hpl6", VM_NODES, NATIVE, "1.09", "Figure 5", _RATIO),
            ("hpl3", NODES, NATIVE, "1.011", "Figure 6", _RATIO),
            ("hpl3", VM_NODES, NATIVE, "1.011", "Figure 6", _RATIO),
            ("hpl3", MOVED, NODES, "1.284", "Figure 7", _DIRECTION),
            ("hpl3", VM_NODES_MOVED, VM_NODES, "1.284", "Figure 7", _DIRECTION),
            ("sp", NODES, NATIVE, "about 1.04", "Figure 8", _RATIO),
            ("sp", VM_NODES, NATIVE, "about 1.04", "Figure 8", _RATIO),
            ("sp", MOVED, NATIVE, "1409 / 1267 = 1.112", "Figure 8", _DIRECTION),
            ("sp", VM_NODES_MOVED, NATIVE, "1409 / 1267 = 1.112", "Figure 8", _DIRECTION),
        )
        rows = [
            published.Beside(
                f"{self._test(test)}: {self._label(how)} : {self._label(base)}",
                value,
                figure,
                self._ratio(test, how, base),
                may,
            )
            for test, how, base, value, figure, may in compared
        ]
        for kind, idle, during in (("container", MOVED, MOVED), ("VM", VM_MOVED, VM_NODES_MOVED)):
            alone = self._of("idle", idle, "total")
            busy = analysis.compare_samples(self._of("hpl3", during, "total"), alone)
            rows += [
                published.Beside(
                    f"an idle {kind} node's move, s",
                    "about 30, the same each time",
                    "section 5.4",
                    median(alone) if alone else None,
                    "That the time is constant. Nothing absolute: 512 MB over Fast Ethernet there, what is in use over "
                    "the machine itself here.",
                ),
                published.Beside(
                    f"a {kind} node's move during HPL : idle",
                    "104 s / 30 s = 3.5",
                    "section 5.4",
                    busy,
                    "The ratio, when moves make rounds of pre-copy; without them only memory in use counts.",
                ),
            ]
        return rows

    def _times(self) -> Table:
        rows = []
        for cell in self._cells:
            for metric in ("factor", "solve", "seconds"):
                data = self._results.values(cell, metric)
                if data:
                    base = self._of(cell["test"], NATIVE, metric)
                    against = analysis.compare_samples(data, base)
                    ratio = against.text() if against and cell["how"] != NATIVE else ""
                    test, how = self._test(cell["test"]), self._label(cell["how"])
                    rows.append((test, how, metric, median(data).text(), ratio))
        return Table("Times", ("test", "how", "what", "seconds", ": native"), rows)

    def _moves(self) -> Table:
        rows = []
        for cell in self._cells:
            data = {name: self._results.values(cell, name) for name in ("downtime", "total", "bytes")}
            if data["downtime"]:
                cells = [median(data[name]).text() for name in ("downtime", "total", "bytes")]
                rows.append((self._test(cell["test"]), self._label(cell["how"]), *cells))
        return Table("The moves", ("during", "how", "downtime, s", "total, s", "bytes"), rows)

    def _b_eff(self) -> Table:
        """hpcc measures messages before HPL: the latency of pairs, and of a ring in random order, and its bandwidth."""
        rows = []
        for cell in self._cells:
            data = [self._results.values(cell, name) for name in ("ping_latency", "ring_latency", "ring_bandwidth")]
            if cell["how"] not in (MOVED, VM_NODES_MOVED) and all(data):
                scaled = [[y * by for y in ys] for ys, by in zip(data, (1e6, 1e6, 8e-6), strict=True)]
                rows.append((self._test(cell["test"]), self._label(cell["how"]), *(median(ys).text() for ys in scaled)))
        head = ("in hpcc of", "how", "pair, us", "ring, us", "ring, Mbit/s (10^6) per rank")
        return Table("b_eff: messages as hpcc measures them before HPL", head, rows)

    def _cost_over_length(self) -> tuple[str, figures.Drawing]:
        """The paper's law: a move costs about the same, so its share falls with the length of the run."""
        groups: dict[str, list[tuple[float, float]]] = {}
        for test in ("hpl3", "hpl3-long", "sp"):
            base = self._of(test, NODES, "seconds")
            if base and test in self._tests.measured():
                length = median(base).value
                moved = self._of(test, MOVED, "seconds")
                groups[self._test(test)] = [(length, 100 * (one / length - 1)) for one in moved]
        caption = "Cost of one move over the length of the run without it; the paper expects it to fall as 1/length."
        return caption, figures.scatter(
            {k: v for k, v in groups.items() if v}, "seconds without a move", "longer by, %"
        )
