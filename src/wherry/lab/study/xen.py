"""`xen-migration`: the paper on Xen again: computing, messages, HPL, and what one move costs HPL and SP.

Its Figures 2 to 8, each a test here; the levels of a test are where its ranks run and whether a node moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.lab import hpcc
from wherry.lab.report import Table
from wherry.lab.stats import Estimate, median
from wherry.lab.study import analysis, figures, published, workloads
from wherry.lab.study.bench import Bench, Place, installed, program
from wherry.lab.study.lacks import VM
from wherry.lab.study.movecost import problem
from wherry.lab.study.parse import linpack, netpipe, netpipe_progress
from wherry.lab.study.recipe import Cell, Factor, Level, Page, SampleFailed, Study, Value
from wherry.lab.study.results import Results
from wherry.lab.study.workloads import Moving

_SIX_MEGABYTES = 6 << 20
"""Bytes at which the paper states the bandwidth on one host; NetPIPE itself measures beside it."""
_NATIVE, _NODES, _MOVED = "native", "nodes", "moved"
_TALK = {
    "native": "native, shared memory",
    "native-tcp": "native, TCP",
    "two-hosts": "two nodes on two hosts",
    "one-host": "two nodes on one host",
    "one-node": "two ranks in one node",
}
_VM_TALK = {"vm-two-hosts": "two VM nodes on two hosts", "vm-one-host": "two VM nodes on one host"}
_VM = "vm"
_NETPIPE = {"openmpi": ("NPopenmpi", "netpipe-openmpi"), "mpich": ("NPmpich2", "netpipe-mpich2")}
"""Each MPI's program and package."""
_COMBINATIONS = {
    "linpack": (_NATIVE, _NODES, _VM),
    "netpipe": (*_TALK, *_VM_TALK),
    "netpipe-mpich": tuple(_TALK),
    "hpl3": (_NATIVE, _NODES, _MOVED),
    "hpl3-long": (_NODES, _MOVED),
    "hpl6": (_NATIVE, _NODES),
    "sp": (_NATIVE, _NODES, _MOVED),
    "idle": (_MOVED, _VM),
}
_PLACES = {
    "two-hosts": Place("two-hosts", 2, ("a1", "a2"), memory="256MiB"),
    "one-host": Place("one-host", 2, ("a1",), memory="256MiB", spread="pack"),
    "one-node": Place("one-node", 1, ("a2",), cpus=2.0, memory="256MiB"),
    "three": Place("three", 3, ("a1", "a2", "b1")),
    "six": Place("six", 6, ("a1", "a2", "b1")),
    "four": Place("four", 4, ("a1", "a2", "b1"), memory="256MiB"),
    "idle": Place("idle", 1, ("b1",)),
    "vm": Place("vm", 1, ("b1",), memory="512MiB", nic="virtio"),
    "vm-two-hosts": Place("vm-two-hosts", 2, ("a1", "a2"), memory="256MiB", nic="virtio"),
    "vm-one-host": Place("vm-one-host", 2, ("a1",), memory="256MiB", spread="pack", nic="virtio"),
}
_MOVED_HOSTS = ("b1", "b2")


class XenMigration(Study):
    """The recipe."""

    name = "xen-migration"
    title = "Computing, messages and moves: the paper on Xen, with container nodes"
    question = "What do virtual nodes and one move of a node cost the programs that the paper measured?"
    repetitions = 30
    quick_repetitions = 2
    shows = (
        "What container nodes cost computing (Linpack), messages (NetPIPE) and HPL against native runs on the same "
        "CPUs, and what one move a fixed time after the start costs HPL and SP.",
    )
    cannot = (
        "The paper's nodes were machines of their own with Fast Ethernet; here all nodes share one machine's CPUs, "
        "so ranks beyond its cores wait for each other, natively as on nodes, and no cable limits a move.",
        "The paper's figures hold numbers that its text does not give; only what the text says is beside ours.",
    )

    def factors(self) -> Sequence[Factor]:
        no_vm = self.lacks.get(VM, "") or self.lacks.get("qemu", "")
        if self.quick and not no_vm:
            no_vm = "not with --quick: they take minutes to boot"
        too_long = "six ranks of hpcc on few cores take minutes: not with --quick" if self.quick else ""
        tests = (
            Level("linpack", f"Linpack, n = {self._n()}"),
            Level("netpipe", "NetPIPE, Open MPI"),
            Level("netpipe-mpich", "NetPIPE, MPICH", "not with --quick" if self.quick else ""),
            Level("hpl3", "HPL, 3 nodes"),
            Level("hpl3-long", "HPL, 3 nodes, twice as long"),
            Level("hpl6", "HPL, 6 nodes on 3 hosts", too_long),
            Level("sp", f"NPB SP, class {self._class()}, 4 nodes", self.lacks.get("npb-sp", "")),
            Level("idle", "an idle node's move"),
        )
        how = (
            *(Level(name, text) for name, text in _TALK.items()),
            Level(_NODES, "container nodes"),
            Level(_MOVED, "container nodes, one of them moves"),
            Level(_VM, "one VM node", no_vm),
            *(Level(name, text, no_vm) for name, text in _VM_TALK.items()),
        )
        return [Factor("test", "what runs", tests), Factor("how", "where, and with what", how)]

    def _n(self) -> int:
        return 1000 if self.quick else 3000

    def _class(self) -> str:
        return "W" if self.quick else "B"

    def cells(self) -> Sequence[Cell]:
        tests, hows = (factor.measured() for factor in self.factors())
        return [Cell.of(test=test, how=how) for test in tests for how in _COMBINATIONS[test] if how in hows]

    def measure(self, bench: Bench, cell: Cell, directory: Path) -> list[Value]:
        how = cell["how"]
        act: dict[str, Callable[[], list[Value]]] = {
            "linpack": lambda: self._linpack(bench, how, directory),
            "netpipe": lambda: self._netpipe(bench, how, directory, "openmpi"),
            "netpipe-mpich": lambda: self._netpipe(bench, how, directory, "mpich"),
            "hpl3": lambda: self._hpl(bench, "three", problem(self.quick), how, directory),
            "hpl3-long": lambda: self._hpl(bench, "three", problem(self.quick, 2), how, directory),
            "hpl6": lambda: self._hpl(bench, "six", hpcc.Problem(n=3000, p=2, q=3, pfacts=1, rfacts=1), how, directory),
            "sp": lambda: self._sp(bench, how, directory),
            "idle": lambda: self._idle(bench, _PLACES["idle" if how == _MOVED else _VM]),
        }
        return act[cell["test"]]()

    def _linpack(self, bench: Bench, how: str, directory: Path) -> list[Value]:
        argv = [program("linpack"), "--n", str(self._n())]
        if how == _NATIVE:
            done = bench.plain(argv, directory, 600.0, workloads.SHARED_CORES)
        else:
            env = workloads.SHARED_CORES
            place = _PLACES["one-node" if how == _NODES else _VM]
            done = bench.on(place, argv, 1, directory, 1800.0, "openmpi", env)
        return linpack(done.verified())

    def _netpipe(self, bench: Bench, how: str, directory: Path, mpi: str) -> list[Value]:
        count, largest = (10 if self.quick or how in _VM_TALK else 300), 8 << 20
        out = directory / "np.out"
        argv = [installed(*_NETPIPE[mpi]), "-u", str(largest), "-n", str(count), "-p", "0", "-o", str(out)]
        if how.startswith("native"):
            transport = "shm" if how == _NATIVE else "tcp"
            bench.native(argv, 2, directory, 900.0, transport, mpi).verified()
        elif how in _VM_TALK:  # its files stay in the node
            done = bench.on(_PLACES[how], argv, 2, directory, 1800.0, mpi)
            return netpipe_progress(done.verified() + done.stderr)
        else:
            bench.on(_PLACES[how], argv, 2, directory, 900.0, mpi).verified()
        if not out.exists():
            raise SampleFailed("NetPIPE wrote no output file")
        return netpipe(out.read_text())

    @staticmethod
    def _idle(bench: Bench, place: Place) -> list[Value]:
        return workloads.idle(bench, place, Moving(f"{place.name}-0", _MOVED_HOSTS, 0.0))

    def _hpl(self, bench: Bench, place: str, work: hpcc.Problem, how: str, directory: Path) -> list[Value]:
        moving = Moving(f"{place}-2", _MOVED_HOSTS, 0.3 if self.quick else 2.0) if how == _MOVED else None
        return workloads.hpl(bench, None if how == _NATIVE else _PLACES[place], work, directory, moving)

    def _sp(self, bench: Bench, how: str, directory: Path) -> list[Value]:
        # 4.7 % into the run, as the paper's 60 s of 1267 s were, when it lasts a minute
        moving = Moving("four-2", _MOVED_HOSTS, 1.0 if self.quick else 2.8) if how == _MOVED else None
        place = None if how == _NATIVE else _PLACES["four"]
        return workloads.npb(bench, place, "sp", self._class(), 4, directory, moving)

    def page(self, results: Results) -> Page:
        page = Page()
        page.tables += [self._beside(results), self._times(results), self._moves(results)]
        page.figures.append(
            (
                f"Linpack, n = {self._n()}: seconds, in the form of the paper's Figure 2.",
                figures.bars(
                    {
                        part: {
                            self._label(how): self._of(results, "linpack", how, part)
                            for how in _COMBINATIONS["linpack"]
                            if how in self.factors()[1].measured()
                        }
                        for part in ("factor", "solve")
                    },
                    "seconds",
                ),
            )
        )
        for test in ("netpipe", "netpipe-mpich"):
            if test in self.factors()[0].measured():
                self._show_netpipe(page, results, test)
        for test, which in (("hpl6", "Figure 5"), ("hpl3", "Figures 6 and 7"), ("sp", "Figure 8")):
            if test in self.factors()[0].measured():
                bars = {self._label(how): {"": self._of(results, test, how, "seconds")} for how in _COMBINATIONS[test]}
                caption = (
                    f"{self._test(test)}: seconds, in the form of the paper's {which}. Dashed: where the paper's ratio "
                    "would put them, from our native median."
                )
                page.figures.append((caption, figures.bars(bars, "seconds", self._scaled(results, test))))
        page.figures.append(self._cost_over_length(results))
        page.remarks += [
            "HPL's seconds are from the first to the last line of its section as they appear in hpcc's output file, so "
            "that hpcc's other tests do not count; the move begins a fixed time after that first line. SP's are its "
            "own, by the time of day; the move begins a fixed time after its first step.",
            "Linpack runs through the machine's LAPACK (named below), NetPIPE's Mbps were made from its seconds.",
        ]
        return page

    def _show_netpipe(self, page: Page, results: Results, test: str) -> None:
        hows = [how for how in _COMBINATIONS[test] if how in self.factors()[1].measured()]
        talk = {self.factors()[1].label(how): Cell.of(test=test, how=how) for how in hows}
        curves, name = analysis.by_size(results, talk, "latency_mean"), self._test(test)
        page.tables.append(analysis.latency_table(f"{name}: half of the round trip", curves))
        far = (_TALK["two-hosts"], _VM_TALK["vm-two-hosts"])
        two = {how: points for how, points in curves.items() if how in (_TALK["native-tcp"], *far)}
        one = {how: points for how, points in curves.items() if how not in far}
        for number, chosen in ((3, two), (4, one)):
            stars = published.ON_ONE_HOST if number == 4 else ()
            figure = figures.curves(chosen, "Mbit/s (10^6)", scale=analysis.bandwidth, log_y=True, published=stars)
            page.figures.append((f"{name}: bandwidth, in the form of the paper's Figure {number}.", figure))

    def _scaled(self, results: Results, test: str) -> list[figures.Published]:
        native = self._of(results, test, _NATIVE, "seconds")
        ratios = published.RATIOS[test] if native else {}
        return [
            figures.Published(self._label(how), median(native).value * ratio, f"paper: {ratio:.3g} x native")
            for how, ratio in ratios.items()
        ]

    def _of(self, results: Results, test: str, how: str, metric: str, x: float | None = None) -> list[float]:
        return results.values(Cell.of(test=test, how=how), metric, x)

    def _label(self, how: str) -> str:
        return self.factors()[1].label(how).replace("native, shared memory", "native")

    def _test(self, name: str) -> str:
        return self.factors()[0].label(name)

    def _ratio(self, results: Results, test: str, how: str, base: str, metric: str = "seconds") -> Estimate | None:
        return analysis.compare_samples(self._of(results, test, how, metric), self._of(results, test, base, metric))

    def _beside(self, results: Results) -> Table:
        def row(quantity: str, value: str, figure: str, ours: Estimate | str | None, may: str) -> published.Beside:
            return published.Beside(quantity, value, figure, ours, may)

        def six(how: str) -> list[float]:
            xs = results.xs(Cell.of(test="netpipe", how=how), "latency_mean")
            near = min(xs, key=lambda x: abs(x - _SIX_MEGABYTES)) if xs else None
            return self._of(results, "netpipe", how, "latency_mean", near)

        idle, vm = (self._of(results, "idle", how, "total") for how in (_MOVED, _VM))
        busy = analysis.compare_samples(self._of(results, "hpl3", _MOVED, "total"), idle)
        ratio = "The ratio."
        rows = [
            row(
                "Linpack, factor: nodes over native",
                "Xen's kernel faster than Debian's, guests slower than Dom0 (order only)",
                "Figure 2",
                self._ratio(results, "linpack", _NODES, _NATIVE, "factor"),
                "Whether nodes cost computing anything; containers have no kernel of their own.",
            ),
            row(
                "NetPIPE at its largest near 6 MB, two hosts : native TCP, times",
                "1 to 2 % (which way, its text and figure disagree)",
                "Figure 3",
                analysis.compare_samples(six("two-hosts"), six("native-tcp")),
                "That it is near 1 needs a wire that is the bottleneck, as there; here it is loopback and CPUs.",
            ),
            row(
                "bandwidth near 6 MB, two nodes on one host : native shared memory",
                "180 / 1200 = 0.15",
                "Figure 4",
                analysis.compare_samples(six("native"), six("one-host")),
                "The ratio and its direction, not the rates.",
            ),
            row(
                "bandwidth near 6 MB, two VM nodes on one host : native shared memory",
                "180 / 1200 = 0.15",
                "Figure 4",
                analysis.compare_samples(six("native"), six("vm-one-host")),
                "The direction; the ratio only with KVM, as without it a VM's processor is emulated.",
            ),
            row(
                "bandwidth near 6 MB, two ranks in one node : native TCP",
                "about 1",
                "Figure 4",
                analysis.compare_samples(six("native-tcp"), six("one-node")),
                "Against TCP only: ranks of one node talk over TCP here.",
            ),
            row("HPL, 6 nodes : native", "1.09", "Figure 5", self._ratio(results, "hpl6", _NODES, _NATIVE), ratio),
            row("HPL, 3 nodes : native", "1.011", "Figure 6", self._ratio(results, "hpl3", _NODES, _NATIVE), ratio),
            row(
                "an idle node's move, s",
                "about 30",
                "section 5.4",
                median(idle) if idle else None,
                "Nothing absolute: 512 MB over Fast Ethernet there, the memory in use over the machine itself here.",
            ),
            row(
                "an idle VM node's move, s",
                "about 30",
                "section 5.4",
                median(vm) if vm else None,
                "Nothing absolute: no wire here; that the time is constant.",
            ),
            row(
                "HPL, 3 nodes, with one move : without",
                "1.284",
                "Figure 7",
                self._ratio(results, "hpl3", _MOVED, _NODES),
                "The direction; the share depends on the run's length, see the last figure.",
            ),
            row(
                "a move during HPL : idle",
                "104 s / 30 s = 3.5",
                "section 5.4",
                busy,
                "The ratio, when moves make rounds of pre-copy; without them only memory in use counts.",
            ),
            row("SP, nodes : native", "about 1.04", "Figure 8", self._ratio(results, "sp", _NODES, _NATIVE), ratio),
            row(
                "SP, one move : native",
                "1409 / 1267 = 1.112",
                "Figure 8",
                self._ratio(results, "sp", _MOVED, _NATIVE),
                "The direction; the class and the run's length differ with --quick.",
            ),
        ]
        return published.table(rows, published.XEN)

    def _times(self, results: Results) -> Table:
        rows = []
        for cell in self.cells():
            for metric in ("factor", "solve", "seconds"):
                data = results.values(cell, metric)
                if data:
                    base = self._of(results, cell["test"], _NATIVE, metric)
                    against = analysis.compare_samples(data, base)
                    ratio = against.text() if against and cell["how"] != _NATIVE else ""
                    test, how = self._test(cell["test"]), self._label(cell["how"])
                    rows.append((test, how, metric, median(data).text(), ratio))
        return Table("Times", ("test", "how", "what", "seconds", ": native"), rows)

    def _moves(self, results: Results) -> Table:
        rows = []
        for cell in self.cells():
            data = {name: results.values(cell, name) for name in ("downtime", "total", "bytes")}
            if data["downtime"]:
                cells = [median(data[name]).text() for name in ("downtime", "total", "bytes")]
                rows.append((self._test(cell["test"]), *cells))
        return Table("The moves", ("during", "downtime, s", "total, s", "bytes"), rows)

    def _cost_over_length(self, results: Results) -> tuple[str, figures.Drawing]:
        """The paper's law: a move costs about the same, so its share falls with the length of the run."""
        groups: dict[str, list[tuple[float, float]]] = {}
        for test in ("hpl3", "hpl3-long", "sp"):
            base = self._of(results, test, _NODES, "seconds")
            if base and test in self.factors()[0].measured():
                length = median(base).value
                moved = self._of(results, test, _MOVED, "seconds")
                groups[self._test(test)] = [(length, 100 * (one / length - 1)) for one in moved]
        caption = "Cost of one move over the length of the run without it; the paper expects it to fall as 1/length."
        return caption, figures.scatter(
            {k: v for k, v in groups.items() if v}, "seconds without a move", "longer by, %"
        )
