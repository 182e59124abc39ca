"""`xen-migration`: replicates the paper on Xen: Linpack, NetPIPE, HPL, and the cost of one move for HPL and SP. Each of
its Figures 2 to 8 is a test; the levels of a test are where its ranks run and whether a node moves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wherry.lab.study import workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers.xen_migration_design import (
    MOVED,
    NATIVE,
    NATIVE_TCP,
    NODES,
    VM_NODES,
    VM_NODES_MOVED,
    VM_TALK,
    XenDesign,
)
from wherry.lab.study.papers.xen_migration_page import XenPage
from wherry.lab.study.program_output import linpack, netpipe, netpipe_progress
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, Testbed, installed, program
from wherry.lab.study.workloads import MoveSchedule

_NETPIPE = {"openmpi": ("NPopenmpi", "netpipe-openmpi"), "mpich": ("NPmpich2", "netpipe-mpich2")}
"""MPI -> NetPIPE's program and package."""
_HPCC = ("/usr/bin/hpcc",)
_CLUSTERS = {
    "two-hosts": ClusterShape("two-hosts", 2, ("a1", "a2"), memory="256MiB"),
    "one-host": ClusterShape("one-host", 2, ("a1",), memory="256MiB", spread="pack"),
    "one-node": ClusterShape("one-node", 1, ("a2",), cpus=2.0, memory="256MiB"),
    "three": ClusterShape("three", 3, ("a1", "a2", "b1")),
    "six": ClusterShape("six", 6, ("a1", "a2", "b1")),
    "four": ClusterShape("four", 4, ("a1", "a2", "b1"), memory="256MiB"),
    "idle": ClusterShape("idle", 1, ("b1",)),
    "vm": ClusterShape("vm", 1, ("b1",), memory="512MiB", nic="virtio"),
    "vm-two-hosts": ClusterShape("vm-two-hosts", 2, ("a1", "a2"), memory="256MiB", nic="virtio"),
    "vm-one-host": ClusterShape("vm-one-host", 2, ("a1",), memory="256MiB", spread="pack", nic="virtio"),
    "vm-one-node": ClusterShape("vm-one-node", 1, ("a2",), cpus=2.0, memory="256MiB", nic="virtio"),
    "vm-three": ClusterShape("vm-three", 3, ("a1", "a2", "b1"), nic="virtio", needs=_HPCC),
    "vm-six": ClusterShape("vm-six", 6, ("a1", "a2", "b1"), nic="virtio", needs=_HPCC),
    "vm-four": ClusterShape("vm-four", 4, ("a1", "a2", "b1"), memory="256MiB", nic="virtio"),
}
_MOVED_HOSTS = ("b1", "b2")


class XenMigration(XenDesign, Study):
    """Design, runs and report of the study."""

    name = "xen-migration"
    title = "Computing, messages and moves: the paper on Xen, with container nodes and virtual machines"
    question = "What do virtual nodes and one move of a node cost the programs that the paper measured?"
    validity_checks = (
        "Linpack's and HPL's residual checks pass, NPB's verification succeeds, NetPIPE wrote its times;",
        "and a move that was asked for began after the measured part did, ended before it, and changed no digit of the "
        "result.",
    )
    duration = ("some hours", "some minutes")
    repetitions = 30
    quick_repetitions = 2
    shows = (
        "What nodes cost computing (Linpack), messages (NetPIPE) and HPL against native runs on the same CPUs, and "
        "what one move a fixed time after the start costs HPL and SP.",
    )
    limitations = (
        "The paper's nodes were machines of their own with Fast Ethernet; here all nodes share one machine's CPUs, "
        "so ranks beyond its cores wait for each other, natively as on nodes, and no cable limits a move.",
        "The paper's figures hold numbers that its text does not give; only what the text says is beside ours.",
    )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        how = combination["how"]
        measurements: dict[str, Callable[[], list[Value]]] = {
            "linpack": lambda: self._linpack(testbed, how, directory),
            "netpipe": lambda: self._netpipe(testbed, how, directory, "openmpi"),
            "netpipe-mpich": lambda: self._netpipe(testbed, how, directory, "mpich"),
            "hpl3": lambda: self._hpl(testbed, "three", "hpl3", how, directory),
            "hpl3-long": lambda: self._hpl(testbed, "three", "hpl3-long", how, directory),
            "hpl6": lambda: self._hpl(testbed, "six", "hpl6", how, directory),
            "sp": lambda: self._sp(testbed, how, directory),
            "idle": lambda: self._idle(testbed, _CLUSTERS["idle" if how == MOVED else "vm"], directory),
        }
        return measurements[combination["test"]]()

    def _linpack(self, testbed: Testbed, how: str, directory: Path) -> list[Value]:
        argv = [program("linpack"), "--n", str(self.linpack_order())]
        if how == NATIVE:
            done = testbed.run_command(argv, directory, 600.0, workloads.SHARED_CORES)
        else:
            env = workloads.ONE_THREAD
            cluster = _CLUSTERS["one-node" if how == NODES else "vm"]
            done = testbed.run_on_cluster(cluster, argv, 1, directory, 1800.0, "openmpi", env)
        return linpack(done.require_success())

    def _netpipe(self, testbed: Testbed, how: str, directory: Path, mpi: str) -> list[Value]:
        count, largest = self.exchanges(how), 8 << 20
        out = directory / "np.out"
        argv = [installed(*_NETPIPE[mpi]), "-u", str(largest), "-n", str(count), "-p", "0", "-o", str(out)]
        if how.startswith("native"):
            testbed.run_native(argv, 2, directory, 900.0, _transport(how), mpi).require_success()
        elif how in VM_TALK:  # its files cannot be read from outside the node
            done = testbed.run_on_cluster(_CLUSTERS[how], argv, 2, directory, 1800.0, mpi)
            return netpipe_progress(done.require_success() + done.stderr)
        else:
            testbed.run_on_cluster(_CLUSTERS[how], argv, 2, directory, 900.0, mpi).require_success()
        if not out.exists():
            raise RunFailed("NetPIPE wrote no output file")
        return netpipe(out.read_text())

    @staticmethod
    def _idle(testbed: Testbed, cluster: ClusterShape, directory: Path) -> list[Value]:
        return workloads.move_idle_node(
            testbed, cluster, directory, MoveSchedule(f"{cluster.name}-0", _MOVED_HOSTS, 0.0)
        )

    def _hpl(self, testbed: Testbed, name: str, test: str, how: str, directory: Path) -> list[Value]:
        cluster, move_schedule = self._cluster_and_move(name, how, self.after(test))
        return workloads.hpl(testbed, cluster, self.problem(test), directory, move_schedule, _transport(how))

    def _sp(self, testbed: Testbed, how: str, directory: Path) -> list[Value]:
        cluster, move_schedule = self._cluster_and_move("four", how, self.after("sp"))
        return workloads.npb(testbed, cluster, "sp", self.sp_class(), 4, directory, move_schedule, _transport(how))

    @staticmethod
    def _cluster_and_move(name: str, how: str, after: float) -> tuple[ClusterShape | None, MoveSchedule | None]:
        """The cluster (None: native) and the scheduled move of its third node (None: no move)."""
        if how in (NATIVE, NATIVE_TCP):
            return None, None
        cluster = _CLUSTERS[f"vm-{name}" if how in (VM_NODES, VM_NODES_MOVED) else name]
        moved = how in (MOVED, VM_NODES_MOVED)
        return cluster, MoveSchedule(f"{cluster.name}-2", _MOVED_HOSTS, after) if moved else None

    def page(self, results: Results) -> Page:
        return XenPage(self, results).page()


def _transport(how: str) -> str:
    """Transport of a native run."""
    return "shm" if how == NATIVE else "tcp"
