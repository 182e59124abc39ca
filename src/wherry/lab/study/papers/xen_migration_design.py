"""Design of `xen-migration`: the paper's tests, where their ranks run, problem sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from wherry.base.errors import Code, Refused
from wherry.lab import hpcc
from wherry.lab.study import npb_counts
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.requirements import KVM, LEAST_VM_MEMORY, vms_are_emulated, why_no_vms
from wherry.lab.study.settings import BYTES, LONGEST_WAIT, NAMES, NPB_CLASSES, SECONDS, Setting

NATIVE, NATIVE_TCP, NODES, MOVED = "native", "native-tcp", "nodes", "moved"
BY_HAND = "native-by-hand"
"""TCP as a user types it: ranks wait as Open MPI does of its own, and not as on nodes."""
VM, VM_MOVED, VM_NODES, VM_NODES_MOVED = "vm", "vm-idle-moved", "vms", "vms-moved"
HOST = "host"
"""The paper's Domain0: the host's own system, which VM nodes run on."""
EMULATED = {"hpl3-emulated": "hpl3", "sp-emulated": "sp"}
"""Tests of a size for emulated VM nodes -> the test that VM nodes with KVM have."""
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
COMBINATIONS = {
    "linpack": (NATIVE, NODES, HOST, VM),
    "netpipe": (*TALK, HOST, *VM_TALK),
    "netpipe-mpich": (*TALK, *VM_TALK),
    "hpl3": (NATIVE_TCP, BY_HAND, NATIVE, NODES, MOVED, VM_NODES, VM_NODES_MOVED),
    "hpl3-long": (NODES, MOVED),
    "hpl6": (NATIVE_TCP, BY_HAND, NATIVE, NODES, VM_NODES),
    "sp": (NATIVE_TCP, BY_HAND, NATIVE, NODES, MOVED, VM_NODES, VM_NODES_MOVED),
    "hpl3-emulated": (NATIVE_TCP, NODES, VM_NODES, VM_NODES_MOVED),
    "sp-emulated": (NATIVE_TCP, NODES, VM_NODES, VM_NODES_MOVED),
    "shallow": (NODES, MOVED, VM_NODES, VM_NODES_MOVED),
    "idle": (MOVED, VM_MOVED),
}
"""Test -> its levels. Native baselines use TCP and wait as programs on nodes do; runs by hand, as of a user, and
shared memory are additional levels."""
MOVED_AFTER = "moved_after"
"""Metric: seconds from the program's start to the move."""
LEVEL_WITHOUT_MOVE = {MOVED: NODES, VM_NODES_MOVED: VM_NODES}
"""Level with a move -> the level without that it is compared with."""
_NO_XEN = (
    "a study makes its own hosts, and these run QEMU; Wherry's nodes on hosts of yours that run Xen are moved as others"
)


USUAL_RUNS = 30
"""Runs of each combination, as the paper's of moves: `linpack.runs` and `vm.runs` are relative to it."""


def _part(name: str, paper: float) -> Setting[float]:
    """A program may be shorter than the paper's 60 s; its length is known after a run without a move."""
    text = (
        f"the move's moment as a part of the run's length, which a run without a move finds once; 0, or where "
        f"`{name}.after` is given: `{name}.after`"
    )
    return Setting(f"{name}.part", text, 0.0, 0.0, paper=paper, least=0, most=0.9)


TESTS = Setting(
    "tests",
    "tests that run; the moves of all others are compared with that of `idle`",
    ",".join(COMBINATIONS),
    ",".join(COMBINATIONS),
    unit=NAMES,
    choices=tuple(COMBINATIONS),
)
LINPACK_N = Setting("linpack.n", "order of Linpack's matrix", 3000, 1000, most=20_000)
HPL_N = Setting("hpl.n", "order of HPL's matrix", 3000, 500, paper=8000, most=500_000)
HPL_NB = Setting("hpl.nb", "size of its blocks", 80, 80, most=1000)
HPL_RANKS = Setting("hpl.ranks", "ranks of HPL, one on each node, a host for each", 3, 3, most=64)
HPL_RUNS = Setting(
    "hpl.runs",
    "factorisations of HPL in a run; the long test has twice as many",
    3,
    54,
    most=hpcc.MOST_RUNS // 2,
)
HPL_AFTER = Setting(
    "hpl.after", "from HPL's begin to the move", 2.0, 0.2, paper=60.0, unit=SECONDS, least=0, most=LONGEST_WAIT
)
HPL_PART = _part("hpl", 0.23)
"""60 s of some 263 s, the length by the paper's 2.6 GFlops on twice as many processors."""
HPL6_N = Setting("hpl6.n", "order of the larger HPL's matrix", 3000, 3000, paper=8000, most=500_000)
HPL6_RANKS = Setting("hpl6.ranks", "ranks of the larger HPL, two nodes on each host", 6, 6, most=128)
HPL6_RUNS = Setting("hpl6.runs", "factorisations of the larger HPL in a run", 8, 8, most=hpcc.MOST_RUNS)
SP_RANKS = Setting("sp.ranks", "ranks of SP, one on each node; the next smaller square number", 4, 4, most=64)
SP_CLASS = Setting("sp.class", "problem class of SP", "B", "W", choices=NPB_CLASSES)
SP_AFTER = Setting(
    "sp.after", "from SP's first step to the move", 2.8, 0.3, paper=60.0, unit=SECONDS, least=0, most=LONGEST_WAIT
)
"""4.7 % of a run of a minute, as the paper's 60 s of 1267 s."""
SP_PART = _part("sp", 0.047)
SHALLOW_RANKS = Setting("shallow.ranks", "ranks of the shallow-water model, one on each node", 4, 4, most=64)
SHALLOW_N = Setting("shallow.n", "cells in a row of the shallow-water model", 512, 256, most=32_768)
SHALLOW_STEPS = Setting(
    "shallow.steps",
    "its steps, which are its length where `shallow.duration` is 0",
    40_000,
    4_000,
    most=10**9,
)
SHALLOW_DURATION = Setting(
    "shallow.duration",
    "how long it is to run: it takes the steps for that, found once by a short run on nodes; 0: `shallow.steps`. The "
    "model is ours: its time with `--paper` is that of the paper's programs, and not a value of the paper",
    0.0,
    0.0,
    paper=3600.0,
    unit=SECONDS,
    least=0,
    most=18_000,
)
SHALLOW_EVERY = Setting("shallow.every", "its steps from one output to the next", 500, 200, paper=5_000, most=10**9)
SHALLOW_AFTER = Setting(
    "shallow.after", "from its first output to the move", 2.8, 0.5, paper=60.0, unit=SECONDS, least=0, most=LONGEST_WAIT
)
SHALLOW = (SHALLOW_RANKS, SHALLOW_N, SHALLOW_DURATION, SHALLOW_STEPS, SHALLOW_EVERY, SHALLOW_AFTER)
"""A weather model's core, as long as one likes: the far point of a move's cost over the length of a run."""
VM_HPL_N = Setting("vm.hpl.n", "order of HPL's matrix where VM nodes are emulated", 300, 200, most=20_000)
VM_HPL_AFTER = Setting(
    "vm.hpl.after",
    "from HPL's begin to the move, emulated VM nodes",
    1.0,
    0.2,
    unit=SECONDS,
    least=0,
    most=LONGEST_WAIT,
)
VM_HPL_RUNS = Setting("vm.hpl.runs", "its factorisations in a run, emulated VM nodes", 36, 36, most=hpcc.MOST_RUNS)
VM_RUNS = Setting(
    "vm.runs",
    f"runs of HPL and SP on emulated VM nodes where the other tests have {USUAL_RUNS}",
    5,
    USUAL_RUNS,
    most=1000,
)
"""HPL's takes minutes there, most of them hpcc's other tests: thirty of each, with a move and without, took a night."""
VM_SP_CLASS = Setting("vm.sp.class", "problem class of SP, emulated VM nodes", "S", "S", choices=NPB_CLASSES)
VM_SP_AFTER = Setting(
    "vm.sp.after",
    "from SP's first step to the move, emulated VM nodes",
    1.0,
    0.3,
    unit=SECONDS,
    least=0,
    most=LONGEST_WAIT,
)
LINPACK_RUNS = Setting(
    "linpack.runs", f"runs of Linpack where the other tests have {USUAL_RUNS}", 50, USUAL_RUNS, most=1000
)
"""The paper's 50."""
EXCHANGES = Setting("netpipe.exchanges", "NetPIPE's repetitions for each size", 300, 10, most=100_000)
VM_EXCHANGES = Setting("vm.netpipe.exchanges", "the same between emulated VM nodes", 10, 10, paper=300, most=100_000)
NODE_MEMORY = Setting(
    "node.memory", "memory of a node that moves", 512 << 20, 512 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 40
)
TALK_MEMORY = Setting(
    "talk.memory", "memory of NetPIPE's nodes", 256 << 20, 256 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 40
)
LARGEST = Setting("netpipe.largest", "NetPIPE's largest message", 8 << 20, 8 << 20, unit=BYTES, least=64, most=1 << 30)


class XenDesign(Design):
    """Factors, combinations and sizes."""

    settings = (
        *(TESTS, LINPACK_N, LINPACK_RUNS, HPL_N, HPL_NB, HPL_RANKS, HPL_RUNS, HPL_AFTER, HPL_PART),
        *(HPL6_N, HPL6_RANKS, HPL6_RUNS, SP_CLASS, SP_RANKS, SP_AFTER, SP_PART, *SHALLOW),
        *(VM_HPL_N, VM_HPL_RUNS, VM_RUNS, VM_HPL_AFTER, VM_SP_CLASS, VM_SP_AFTER),
        *(EXCHANGES, VM_EXCHANGES, LARGEST, NODE_MEMORY, TALK_MEMORY),
    )
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"ranks": (HPL_RANKS, SP_RANKS, SHALLOW_RANKS)}

    def require_compatible_settings(self) -> None:
        for after, part in ((HPL_AFTER, HPL_PART), (SP_AFTER, SP_PART)):
            if after.name in self.given and part.name in self.given and self.value(part):
                what = f"{after.name} and {part.name} both say when the node moves"
                again = f"wherry study run {self.name} --set {part.name}={part.shown(self.value(part))}"
                raise Refused(Code.USAGE, what, "only one of them can count", again)

    def factors(self) -> Sequence[Factor]:
        no_vm, no_moves = why_no_vms(self.unavailable, self.quick), why_no_vms(self.unavailable, self.quick, moved=True)
        emulated = vms_are_emulated(self.unavailable)
        no_emulated = no_vm or ("" if emulated else "with KVM virtual machines run the size of the others")
        only_kvm = self.unavailable.get(KVM, "") if emulated else ""
        too_long = "six ranks of hpcc on few cores take minutes: not with --quick" if self.quick else ""
        full_only, no_hpcc = "not with --quick" if self.quick else "", self.unavailable.get("hpcc", "")
        no_sp, kind = self.unavailable.get("npb-sp-openmpi", ""), ", emulated" if emulated and not no_vm else ""
        tests = (
            Level(
                "linpack",
                f"Linpack; n = {self.linpack_order()}, one process",
                self.unavailable.get("wherry-linpack", ""),
            ),
            Level("netpipe", "NetPIPE, Open MPI", self.unavailable.get("NPopenmpi", "")),
            Level("netpipe-mpich", "NetPIPE, MPICH", full_only or self.unavailable.get("NPmpich2", "")),
            Level("hpl3", self._hpl_text("hpl3", f"HPL, {self.value(HPL_RANKS)} nodes"), no_hpcc),
            Level(
                "hpl3-long",
                self._hpl_text("hpl3-long", f"HPL, {self.value(HPL_RANKS)} nodes, more often"),
                full_only or no_hpcc,
            ),
            Level(
                "hpl6",
                self._hpl_text("hpl6", f"HPL, {self.nodes('hpl6')} nodes on {self.hosts('hpl6')} hosts"),
                too_long or no_hpcc,
            ),
            Level("sp", self._sp_text("sp", f"NPB SP, {self.nodes('sp')} nodes"), no_sp or self._no_work("sp")),
            Level(
                "hpl3-emulated",
                self._hpl_text("hpl3-emulated", f"HPL, {self.nodes('hpl3')} nodes, for emulated VMs"),
                no_emulated or no_hpcc,
            ),
            Level(
                "sp-emulated",
                self._sp_text("sp-emulated", f"NPB SP, {self.nodes('sp')} nodes, for emulated VMs"),
                no_emulated or no_sp or self._no_work("sp-emulated"),
            ),
            Level("shallow", self._shallow_text()),
            Level("idle", "an idle node's move"),
        )
        how = (
            *(Level(name, text) for name, text in TALK.items()),
            Level(BY_HAND, "native, TCP, waiting as Open MPI does of its own", full_only),
            Level(NODES, "container nodes"),
            Level(MOVED, "container nodes, one of them moves"),
            Level(HOST, "the hosts themselves, beside idle VM nodes (Domain0)", no_vm),
            Level(VM, f"one VM node{kind}", no_vm),
            Level(VM_MOVED, f"one VM node{kind}, which moves", no_moves),
            *(Level(name, text, no_vm) for name, text in VM_TALK.items()),
            Level(VM_NODES, f"VM nodes{kind}", no_vm),
            Level(VM_NODES_MOVED, f"VM nodes{kind}, one of them moves", no_moves),
            *(
                [
                    Level(
                        "vms-full",
                        "VM nodes with HPL and SP of the size of the others, and six of them",
                        only_kvm and f"{only_kvm}, so these would take hours on them",
                    )
                ]
                if only_kvm and not no_vm
                else []
            ),
            Level("xen", "guests of Xen, as the paper's", _NO_XEN),
        )
        return [
            Factor("test", "what runs", self.chosen(TESTS, tests)),
            Factor("how", "the place, and its network", how),
        ]

    def linpack_order(self) -> int:
        """Order of Linpack's matrix."""
        return self.value(LINPACK_N)

    def sp_class(self, test: str = "sp") -> str:
        """Problem class of SP."""
        return self.value(VM_SP_CLASS if test in EMULATED else SP_CLASS)

    def _no_work(self, test: str) -> str:
        """Why SP does not run on a test's nodes; empty if it does. Both tests have one cluster, so the same number."""
        ranks, size = self.nodes(test), self.sp_class(test)
        return "" if npb_counts.takes("sp", ranks, size) else f"class {size} has no work for {ranks} ranks"

    def problem(self, test: str) -> hpcc.Problem:
        """HPL's parameters for a test."""
        nb, ranks = self.value(HPL_NB), self.nodes(test)
        if test == "hpl6":
            return hpcc.Problem.of(self.value(HPL6_N), nb, ranks, self.value(HPL6_RUNS))
        if test in EMULATED:
            # Many small ones: hpcc's tests before HPL grow with the matrix, and take minutes between emulated machines.
            return hpcc.Problem.of(self.value(VM_HPL_N), nb, ranks, self.value(VM_HPL_RUNS))
        runs = self.value(HPL_RUNS) * (2 if test == "hpl3-long" else 1)
        return hpcc.Problem.of(self.value(HPL_N), nb, ranks, runs)

    def nodes(self, test: str) -> int:
        """Nodes of a test, with one rank each; SP's are a square number."""
        if test == "hpl6":
            return self.value(HPL6_RANKS)
        if test == "shallow":
            return self.value(SHALLOW_RANKS)
        if EMULATED.get(test, test) == "sp":
            return npb_counts.at_most("sp", self.value(SP_RANKS))
        return self.value(HPL_RANKS)

    def hosts(self, test: str) -> int:
        """Hosts of a test's nodes: one for each, half as many for the larger HPL; a move needs one more."""
        return math.ceil(self.nodes(test) / 2) if test == "hpl6" else self.nodes(test)

    def all_hosts(self) -> tuple[str, ...]:
        """So many that the largest test has a free one; the paper's tests need five."""
        most = max(self.hosts("hpl6"), *(self.hosts(test) + 1 for test in ("hpl3", "sp", "shallow")), 5)
        return tuple(f"a{number}" for number in range(1, most + 1))

    def part(self, test: str) -> float:
        """The part of a test's length after which a node moves; 0 if it moves after a fixed time."""
        parts = {"hpl3": (HPL_AFTER, HPL_PART), "hpl3-long": (HPL_AFTER, HPL_PART), "sp": (SP_AFTER, SP_PART)}
        after, part = parts.get(test, (None, None))
        return 0.0 if after is None or part is None or after.name in self.given else self.value(part)

    def moment(self, test: str) -> str:
        """When the node moves, for texts."""
        part = self.part(test)
        return f"{100 * part:.3g} % of the run's length" if part else f"{self.after(test):g} s"

    def after(self, test: str) -> float:
        """Seconds from the program's start to the move, where they are fixed."""
        moments = {"sp": SP_AFTER, "shallow": SHALLOW_AFTER, "hpl3-emulated": VM_HPL_AFTER, "sp-emulated": VM_SP_AFTER}
        return self.value(moments.get(test, HPL_AFTER))

    def hows(self, test: str) -> list[str]:
        """The measured levels of a test: emulated VM nodes have HPL and SP of a size of their own."""
        _, how = self.factors()
        measured, emulated = set(how.measured()), vms_are_emulated(self.unavailable)
        if emulated and test in ("hpl3", "hpl6", "sp", "shallow"):
            measured -= {VM_NODES, VM_NODES_MOVED}
        return [level for level in COMBINATIONS[test] if level in measured]

    def repetitions_of(self, combination: Combination, asked: int) -> int:
        if combination["test"] == "linpack":
            return math.ceil(asked * self.value(LINPACK_RUNS) / USUAL_RUNS)
        if combination["test"] in EMULATED and combination["how"] in (VM_NODES, VM_NODES_MOVED):
            return math.ceil(asked * self.value(VM_RUNS) / USUAL_RUNS)
        return asked

    def warms_up(self, combination: Combination) -> bool:
        return combination["test"] != "shallow" or not self.value(SHALLOW_DURATION)

    def _moves(self, test: str) -> bool:
        return any(how in LEVEL_WITHOUT_MOVE for how in COMBINATIONS[test])

    def shallow_size(self) -> tuple[int, int, int]:
        """Cells in a row, steps, steps from one output to the next."""
        return self.value(SHALLOW_N), self.value(SHALLOW_STEPS), self.value(SHALLOW_EVERY)

    def _shallow_text(self) -> str:
        cells, steps, _ = self.shallow_size()
        duration = self.value(SHALLOW_DURATION)
        length = f"steps for {duration:g} s" if duration else f"{steps} steps"
        move = f"a move {self.moment('shallow')} after its first output"
        return f"shallow water, {self.nodes('shallow')} nodes; {cells} x {cells} cells, {length}, {move}"

    def _hpl_text(self, test: str, short: str) -> str:
        move = f", a move {self.moment(test)} after it began" if self._moves(test) else ""
        return f"{short}; {self.problem(test).description}{move}"

    def _sp_text(self, test: str, short: str) -> str:
        return f"{short}; class {self.sp_class(test)}, a move {self.moment(test)} after its first step"

    def exchanges(self, how: str) -> int:
        """NetPIPE's repetitions for each size; the paper made 300."""
        emulated = how in VM_TALK and vms_are_emulated(self.unavailable)
        return self.value(VM_EXCHANGES if emulated else EXCHANGES)

    def without_move(self, combination: Combination) -> Combination | None:
        baseline = LEVEL_WITHOUT_MOVE.get(combination["how"], "")
        return (
            Combination.of(test=combination["test"], how=baseline)
            if baseline in COMBINATIONS[combination["test"]]
            else None
        )

    def combinations(self) -> Sequence[Combination]:
        tests, _ = self.factors()
        return [Combination.of(test=test, how=how) for test in tests.measured() for how in self.hows(test)]
