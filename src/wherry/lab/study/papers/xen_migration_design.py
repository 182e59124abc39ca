"""Design of `xen-migration`: the paper's tests, where their ranks run, problem sizes."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.lab import hpcc
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.papers.migration_cost import problem
from wherry.lab.study.requirements import vms_are_emulated, why_no_vms

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
"""Test -> its levels. Native baselines use TCP, as programs on nodes do; shared memory is an additional level."""
LEVEL_WITHOUT_MOVE = {MOVED: NODES, VM_NODES_MOVED: VM_NODES}
"""Level with a move -> the level without that it is compared with."""
_NO_XEN = (
    "a study makes its own hosts, and these run QEMU; Wherry's nodes on hosts of yours that run Xen are moved as others"
)


class XenDesign(Design):
    """Factors, combinations and sizes."""

    def factors(self) -> Sequence[Factor]:
        no_vm, no_moves = why_no_vms(self.unavailable, self.quick), why_no_vms(self.unavailable, self.quick, moved=True)
        too_heavy = why_no_vms(self.unavailable, self.quick, moved=True, heavy=True)
        no_heavy = why_no_vms(self.unavailable, self.quick, heavy=True)
        too_long = "six ranks of hpcc on few cores take minutes: not with --quick" if self.quick else ""
        full_only, no_hpcc = "not with --quick" if self.quick else "", self.unavailable.get("hpcc", "")
        tests = (
            Level(
                "linpack",
                f"Linpack; n = {self.linpack_order()}, one process",
                self.unavailable.get("wherry-linpack", ""),
            ),
            Level("netpipe", "NetPIPE, Open MPI", self.unavailable.get("NPopenmpi", "")),
            Level("netpipe-mpich", "NetPIPE, MPICH", full_only or self.unavailable.get("NPmpich2", "")),
            Level("hpl3", self._hpl_text("hpl3", "HPL, 3 nodes"), no_hpcc),
            Level(
                "hpl3-long",
                self._hpl_text("hpl3-long", "HPL, 3 nodes, more often"),
                full_only or no_hpcc,
            ),
            Level("hpl6", self._hpl_text("hpl6", "HPL, 6 nodes on 3 hosts"), too_long or no_hpcc),
            Level(
                "sp",
                f"NPB SP, 4 nodes; class {self.sp_class()}, a move {self.after('sp'):g} s after its first step",
                self.unavailable.get("npb-sp-openmpi", ""),
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

    def linpack_order(self) -> int:
        """Order of Linpack's matrix."""
        return 1000 if self.quick else 3000

    def sp_class(self) -> str:
        """Problem class of SP."""
        return "W" if self.quick else "B"

    def problem(self, test: str) -> hpcc.Problem:
        """HPL's parameters for a test."""
        if test == "hpl6":
            return hpcc.Problem(n=3000, p=2, q=3, pfacts=1, rfacts=1)
        return problem(self.quick, 2 if test == "hpl3-long" else 1)

    def after(self, test: str) -> float:
        """Seconds from the program's start to the move."""
        if test == "sp":  # 4.7 % of a run of a minute, as the paper's 60 s of 1267 s
            return 1.0 if self.quick else 2.8
        return 0.3 if self.quick else 2.0

    def _hpl_text(self, test: str, short: str) -> str:
        move = f", a move {self.after(test):g} s after it began" if MOVED in COMBINATIONS[test] else ""
        return f"{short}; {self.problem(test).description}{move}"

    def exchanges(self, how: str) -> int:
        """NetPIPE's repetitions for each size; the paper made 300."""
        return 10 if self.quick or how in VM_TALK and vms_are_emulated(self.unavailable) else 300

    def without_move(self, combination: Combination) -> Combination | None:
        baseline = LEVEL_WITHOUT_MOVE.get(combination["how"], "")
        return (
            Combination.of(test=combination["test"], how=baseline)
            if baseline in COMBINATIONS[combination["test"]]
            else None
        )

    def combinations(self) -> Sequence[Combination]:
        tests, hows = (factor.measured() for factor in self.factors())
        return [Combination.of(test=test, how=how) for test in tests for how in COMBINATIONS[test] if how in hows]
