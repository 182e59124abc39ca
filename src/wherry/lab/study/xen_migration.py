"""`xen-migration`: the paper on Xen again: computing, messages, HPL, and what one move costs HPL and SP.

Its Figures 2 to 8, each a test here; the levels of a test are where its ranks run and whether a node moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.lab import hpcc
from wherry.lab.study import workloads
from wherry.lab.study.bench import Bench, Place, installed, program
from wherry.lab.study.lacks import emulated, no_machines
from wherry.lab.study.movecost import problem
from wherry.lab.study.parse import linpack, netpipe, netpipe_progress
from wherry.lab.study.recipe import Cell, Factor, Level, Page, SampleFailed, Study, Value
from wherry.lab.study.results import Results
from wherry.lab.study.workloads import Moving

NATIVE, NATIVE_TCP, NODES, MOVED = "native", "native-tcp", "nodes", "moved"
VM, VM_MOVED, VM_NODES, VM_NODES_MOVED = "vm", "vm-idle-moved", "vms", "vms-moved"
TALK = {
    NATIVE: "native, shared memory",
    NATIVE_TCP: "native, TCP",
    "two-hosts": "two nodes on two hosts",
    "one-host": "two nodes on one host",
    "one-node": "two ranks in one node",
}
VM_TALK = {
    "vm-two-hosts": "two VM nodes on two hosts",
    "vm-one-host": "two VM nodes on one host",
    "vm-one-node": "two ranks in one VM node, shared memory",
}
_NETPIPE = {"openmpi": ("NPopenmpi", "netpipe-openmpi"), "mpich": ("NPmpich2", "netpipe-mpich2")}
"""Each MPI's program and package."""
COMBINATIONS = {
    "linpack": (NATIVE, NODES, VM),
    "netpipe": (*TALK, *VM_TALK),
    "netpipe-mpich": (*TALK, *VM_TALK),
    "hpl3": (NATIVE_TCP, NATIVE, NODES, MOVED, VM_NODES, VM_NODES_MOVED),
    "hpl3-long": (NODES, MOVED),
    "hpl6": (NATIVE_TCP, NATIVE, NODES, VM_NODES),
    "sp": (NATIVE_TCP, NATIVE, NODES, MOVED, VM_NODES, VM_NODES_MOVED),
    "idle": (MOVED, VM_MOVED),
}
"""Programs on nodes talk over TCP, so the native runs that they are compared with do; shared memory is a second row."""
UNMOVED = {MOVED: NODES, VM_NODES_MOVED: VM_NODES}
"""What a run with a move is compared with."""
_HPCC = ("/usr/bin/hpcc",)
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
    "vm-one-node": Place("vm-one-node", 1, ("a2",), cpus=2.0, memory="256MiB", nic="virtio"),
    "vm-three": Place("vm-three", 3, ("a1", "a2", "b1"), nic="virtio", needs=_HPCC),
    "vm-six": Place("vm-six", 6, ("a1", "a2", "b1"), nic="virtio", needs=_HPCC),
    "vm-four": Place("vm-four", 4, ("a1", "a2", "b1"), memory="256MiB", nic="virtio"),
}
_MOVED_HOSTS = ("b1", "b2")
_NO_XEN = (
    "a study makes its own hosts, and these run QEMU; Wherry's nodes on hosts of yours that run Xen are moved as others"
)


class XenMigration(Study):
    """The recipe."""

    name = "xen-migration"
    title = "Computing, messages and moves: the paper on Xen, with container nodes and virtual machines"
    question = "What do virtual nodes and one move of a node cost the programs that the paper measured?"
    verified = (
        "Linpack's and HPL's residual checks pass, NPB's verification succeeds, NetPIPE wrote its times;",
        "and a move that was asked for began after the measured part did, ended before it, and changed no digit of the "
        "result.",
    )
    lasts = ("some hours", "some minutes")
    repetitions = 30
    quick_repetitions = 2
    shows = (
        "What nodes cost computing (Linpack), messages (NetPIPE) and HPL against native runs on the same CPUs, and "
        "what one move a fixed time after the start costs HPL and SP.",
    )
    cannot = (
        "The paper's nodes were machines of their own with Fast Ethernet; here all nodes share one machine's CPUs, "
        "so ranks beyond its cores wait for each other, natively as on nodes, and no cable limits a move.",
        "The paper's figures hold numbers that its text does not give; only what the text says is beside ours.",
    )

    def factors(self) -> Sequence[Factor]:
        no_vm, no_moves = no_machines(self.lacks, self.quick), no_machines(self.lacks, self.quick, moved=True)
        too_heavy = no_machines(self.lacks, self.quick, moved=True, heavy=True)
        no_heavy = no_machines(self.lacks, self.quick, heavy=True)
        too_long = "six ranks of hpcc on few cores take minutes: not with --quick" if self.quick else ""
        long, no_hpcc = "not with --quick" if self.quick else "", self.lacks.get("hpcc", "")
        tests = (
            Level("linpack", f"Linpack; n = {self._n()}, one process", self.lacks.get("wherry-linpack", "")),
            Level("netpipe", "NetPIPE, Open MPI", self.lacks.get("NPopenmpi", "")),
            Level("netpipe-mpich", "NetPIPE, MPICH", long or self.lacks.get("NPmpich2", "")),
            Level("hpl3", self._hpl_text("hpl3", "HPL, 3 nodes"), no_hpcc),
            Level(
                "hpl3-long",
                self._hpl_text("hpl3-long", "HPL, 3 nodes, more often"),
                long or no_hpcc,
            ),
            Level("hpl6", self._hpl_text("hpl6", "HPL, 6 nodes on 3 hosts"), too_long or no_hpcc),
            Level(
                "sp",
                f"NPB SP, 4 nodes; class {self.sp_class()}, a move {self.after('sp'):g} s after its first step",
                self.lacks.get("npb-sp-openmpi", ""),
            ),
            Level("idle", "an idle node's move"),
        )
        how = (
            *(Level(name, text) for name, text in TALK.items()),
            Level(NODES, "container nodes"),
            Level(MOVED, "container nodes, one of them moves"),
            Level(VM, "one VM node", no_vm),
            Level(VM_MOVED, "one VM node, which moves", no_moves),
            *(Level(name, text, no_vm) for name, text in VM_TALK.items()),
            Level(VM_NODES, "VM nodes", no_heavy),
            Level(VM_NODES_MOVED, "VM nodes, one of them moves", too_heavy),
            Level("xen", "guests of Xen, as the paper's", _NO_XEN),
        )
        return [Factor("test", "what runs", tests), Factor("how", "where, and with what", how)]

    def _n(self) -> int:
        return 1000 if self.quick else 3000

    def sp_class(self) -> str:
        """SP's."""
        return "W" if self.quick else "B"

    def problem(self, test: str) -> hpcc.Problem:
        """Of a test with HPL."""
        if test == "hpl6":
            return hpcc.Problem(n=3000, p=2, q=3, pfacts=1, rfacts=1)
        return problem(self.quick, 2 if test == "hpl3-long" else 1)

    def after(self, test: str) -> float:
        """Seconds from a program's begin to its move."""
        if test == "sp":  # 4.7 % into the run, as the paper's 60 s of 1267 s were, when it lasts a minute
            return 1.0 if self.quick else 2.8
        return 0.3 if self.quick else 2.0

    def _hpl_text(self, test: str, short: str) -> str:
        move = f", a move {self.after(test):g} s after it began" if MOVED in COMBINATIONS[test] else ""
        return f"{short}; {self.problem(test).said}{move}"

    def exchanges(self, how: str) -> int:
        """NetPIPE's measurements of each size; the paper made 300."""
        return 10 if self.quick or how in VM_TALK and emulated(self.lacks) else 300

    def unmoved(self, cell: Cell) -> Cell | None:
        base = UNMOVED.get(cell["how"], "")
        return Cell.of(test=cell["test"], how=base) if base in COMBINATIONS[cell["test"]] else None

    def cells(self) -> Sequence[Cell]:
        tests, hows = (factor.measured() for factor in self.factors())
        return [Cell.of(test=test, how=how) for test in tests for how in COMBINATIONS[test] if how in hows]

    def measure(self, bench: Bench, cell: Cell, directory: Path) -> list[Value]:
        how = cell["how"]
        act: dict[str, Callable[[], list[Value]]] = {
            "linpack": lambda: self._linpack(bench, how, directory),
            "netpipe": lambda: self._netpipe(bench, how, directory, "openmpi"),
            "netpipe-mpich": lambda: self._netpipe(bench, how, directory, "mpich"),
            "hpl3": lambda: self._hpl(bench, "three", "hpl3", how, directory),
            "hpl3-long": lambda: self._hpl(bench, "three", "hpl3-long", how, directory),
            "hpl6": lambda: self._hpl(bench, "six", "hpl6", how, directory),
            "sp": lambda: self._sp(bench, how, directory),
            "idle": lambda: self._idle(bench, _PLACES["idle" if how == MOVED else "vm"], directory),
        }
        return act[cell["test"]]()

    def _linpack(self, bench: Bench, how: str, directory: Path) -> list[Value]:
        argv = [program("linpack"), "--n", str(self._n())]
        if how == NATIVE:
            done = bench.plain(argv, directory, 600.0, workloads.SHARED_CORES)
        else:
            env = workloads.SHARED_CORES
            place = _PLACES["one-node" if how == NODES else "vm"]
            done = bench.on(place, argv, 1, directory, 1800.0, "openmpi", env)
        return linpack(done.verified())

    def _netpipe(self, bench: Bench, how: str, directory: Path, mpi: str) -> list[Value]:
        count, largest = self.exchanges(how), 8 << 20
        out = directory / "np.out"
        argv = [installed(*_NETPIPE[mpi]), "-u", str(largest), "-n", str(count), "-p", "0", "-o", str(out)]
        if how.startswith("native"):
            bench.native(argv, 2, directory, 900.0, _transport(how), mpi).verified()
        elif how in VM_TALK:  # its files stay in the node
            done = bench.on(_PLACES[how], argv, 2, directory, 1800.0, mpi)
            return netpipe_progress(done.verified() + done.stderr)
        else:
            bench.on(_PLACES[how], argv, 2, directory, 900.0, mpi).verified()
        if not out.exists():
            raise SampleFailed("NetPIPE wrote no output file")
        return netpipe(out.read_text())

    @staticmethod
    def _idle(bench: Bench, place: Place, directory: Path) -> list[Value]:
        return workloads.idle(bench, place, directory, Moving(f"{place.name}-0", _MOVED_HOSTS, 0.0))

    def _hpl(self, bench: Bench, place: str, test: str, how: str, directory: Path) -> list[Value]:
        where, moving = self._where(place, how, self.after(test))
        return workloads.hpl(bench, where, self.problem(test), directory, moving, _transport(how))

    def _sp(self, bench: Bench, how: str, directory: Path) -> list[Value]:
        where, moving = self._where("four", how, self.after("sp"))
        return workloads.npb(bench, where, "sp", self.sp_class(), 4, directory, moving, _transport(how))

    @staticmethod
    def _where(place: str, how: str, after: float) -> tuple[Place | None, Moving | None]:
        """The cluster, none natively; and the move of its third node, if there is one."""
        if how in (NATIVE, NATIVE_TCP):
            return None, None
        where = _PLACES[f"vm-{place}" if how in (VM_NODES, VM_NODES_MOVED) else place]
        moved = how in (MOVED, VM_NODES_MOVED)
        return where, Moving(f"{where.name}-2", _MOVED_HOSTS, after) if moved else None

    def page(self, results: Results) -> Page:
        from wherry.lab.study.xen_page import XenPage

        return XenPage(self, results).page()


def _transport(how: str) -> str:
    """Of a native run."""
    return "shm" if how == NATIVE else "tcp"
