"""`xen-migration`: replicates the paper on Xen: Linpack, NetPIPE, HPL, and the cost of one move for HPL and SP. Each of
its Figures 2 to 8 is a test; the levels of a test are where its ranks run and whether a node moves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.lab import native_mpirun
from wherry.lab.study import sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers.xen_migration_design import (
    BY_HAND,
    HOST,
    LARGEST,
    LEVEL_WITHOUT_MOVE,
    MOVED_AFTER,
    NATIVE,
    NATIVE_TCP,
    NODES,
    SHALLOW_DURATION,
    USUAL_RUNS,
    VM_NODES,
    VM_NODES_MOVED,
    VM_TALK,
    XenDesign,
)
from wherry.lab.study.papers.xen_migration_nodes import BESIDE, NODES_OF, fabric, machines, places, shapes
from wherry.lab.study.papers.xen_migration_page import XenPage
from wherry.lab.study.program_output import linpack, netpipe, netpipe_progress
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, Testbed, installed, program
from wherry.lab.study.workloads import MoveSchedule

_NETPIPE = {"openmpi": ("NPopenmpi", "netpipe-openmpi"), "mpich": ("NPmpich2", "netpipe-mpich2")}
"""MPI -> NetPIPE's program and package."""
_CALIBRATION = "shallow-steps"
"""File of a study's directory with the steps that the long run takes: the same in all its runs."""
_LENGTH = "length"
"""Begin of the name of a file beside it: seconds of a program without a move, where the move's moment is a part."""
_Run = Callable[[ClusterShape | None, MoveSchedule | None, Path], list[Value]]
"""Makes one run of a program, with its files in this directory."""
_CALIBRATED = 5.0
"""Seconds that a trial of the model takes at least by which its steps in a second are known."""


class XenMigration(XenDesign, Study):
    """Design, runs and report of the study."""

    name = "xen-migration"
    why_not_on_own_hosts = "it moves nodes, and between machines with two kernels a move is refused (docs/hosts.md)"
    title = "Computing, messages and moves: the paper on Xen, with container nodes and virtual machines"
    question = "What do virtual nodes and one move of a node cost the programs that the paper measured?"
    validity_checks = (
        "Linpack's and HPL's residual checks pass, NPB's verification succeeds, NetPIPE wrote its times;",
        "and a move that was asked for began after the measured part did, ended before it, and changed no digit of the "
        "result.",
    )
    duration = ("some hours", "some minutes")
    paper_duration = "days: the shallow-water model alone runs for an hour in each of its 60 runs, and more on VM nodes"
    repetitions = USUAL_RUNS
    quick_repetitions = 2
    shows = (
        "The cost of nodes for computing (Linpack), messages (NetPIPE) and HPL against native runs on the same CPUs, "
        "and the cost of one move a fixed time after the start for HPL and SP.",
    )
    limitations = (
        "The paper's nodes were machines of their own with Fast Ethernet; here all nodes share one machine's CPUs, "
        "so ranks beyond its cores wait for each other, natively as on nodes, and no cable limits a move.",
        "The paper's figures hold numbers that its text does not give; only those of its text are beside ours.",
    )

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        how = combination["how"]
        testbed.use_fabric(fabric(self))
        testbed.leave_machines_of(machines(self, combination["test"], how))
        measurements: dict[str, Callable[[], list[Value]]] = {
            "linpack": lambda: self._linpack(testbed, how, directory),
            "netpipe": lambda: self._netpipe(testbed, how, directory, "openmpi"),
            "netpipe-mpich": lambda: self._netpipe(testbed, how, directory, "mpich"),
            **{
                test: partial(self._hpl, testbed, test, how, directory)
                for test in ("hpl3", "hpl3-long", "hpl6", "hpl3-emulated")
            },
            "sp": lambda: self._sp(testbed, "sp", how, directory),
            "shallow": lambda: self._shallow(testbed, how, directory),
            "sp-emulated": lambda: self._sp(testbed, "sp-emulated", how, directory),
            "idle": lambda: self._idle(testbed, how, directory),
        }
        return measurements[combination["test"]]()

    def _linpack(self, testbed: Testbed, how: str, directory: Path) -> list[Value]:
        argv = [program("linpack"), "--n", str(self.linpack_order())]
        if how in (NATIVE, HOST):
            if beside := machines(self, "linpack", how):
                testbed.ensure_cluster(beside)
            done = testbed.run_command(argv, directory, 600.0, workloads.ONE_THREAD)
        else:
            env = workloads.ONE_THREAD
            cluster = shapes(self)["one-node" if how == NODES else "vm"]
            done = testbed.run_on_cluster(cluster, argv, 1, directory, 1800.0, "openmpi", env)
        return linpack(done.require_success())

    def _netpipe(self, testbed: Testbed, how: str, directory: Path, mpi: str) -> list[Value]:
        count, largest = self.exchanges(how), self.value(LARGEST)
        out = directory / "np.out"
        argv = [installed(*_NETPIPE[mpi]), "-u", str(largest), "-n", str(count), "-p", "0", "-o", str(out)]
        if how.startswith("native"):
            words = [*(native_mpirun.waiting_as_on_nodes(mpi) if how == NATIVE_TCP else ()), *argv]
            testbed.run_native(words, 2, directory, 900.0, _transport(how), mpi).require_success()
        elif how == HOST:
            beside = shapes(self)[BESIDE["netpipe"]]
            testbed.ensure_cluster(beside)
            sites.run_on_hosts(testbed, beside.hosts, argv, directory, 900.0).require_success()
        elif how in VM_TALK:  # its files are here only where an NFS server serves them to the machines
            done = testbed.run_on_cluster(shapes(self)[how], argv, 2, directory, 1800.0, mpi)
            return netpipe_progress(done.require_success() + done.stderr)
        else:
            testbed.run_on_cluster(shapes(self)[how], argv, 2, directory, 900.0, mpi).require_success()
        if not out.exists():
            raise RunFailed("NetPIPE wrote no output file")
        return netpipe(out.read_text())

    def _idle(self, testbed: Testbed, how: str, directory: Path) -> list[Value]:
        cluster = machines(self, "idle", how) or shapes(self)["idle"]
        return workloads.move_idle_node(testbed, cluster, directory, _move_to_free(testbed, cluster, 0, 0.0))

    def _hpl(self, testbed: Testbed, test: str, how: str, directory: Path) -> list[Value]:
        def run(cluster: ClusterShape | None, move: MoveSchedule | None, to: Path) -> list[Value]:
            return workloads.hpl(testbed, cluster, self.problem(test), to, move, _transport(how))

        return self._with_move(testbed, test, how, directory, run)

    def _sp(self, testbed: Testbed, test: str, how: str, directory: Path) -> list[Value]:
        def run(cluster: ClusterShape | None, move: MoveSchedule | None, to: Path) -> list[Value]:
            ranks, size = self.nodes(test), self.sp_class(test)
            return workloads.npb(testbed, cluster, "sp", size, ranks, to, move, _transport(how))

        return self._with_move(testbed, test, how, directory, run)

    def _shallow(self, testbed: Testbed, how: str, directory: Path) -> list[Value]:
        size = self._shallow_size(testbed, directory)

        def run(cluster: ClusterShape | None, move: MoveSchedule | None, to: Path) -> list[Value]:
            return workloads.shallow(testbed, cluster, size, self.nodes("shallow"), to, move)

        return [*self._with_move(testbed, "shallow", how, directory, run), Value("steps", size[1], "")]

    def _shallow_size(self, testbed: Testbed, directory: Path) -> tuple[int, int, int]:
        """Cells, steps and steps between outputs. Where a duration is asked for, the steps for it, which the first run
        finds and all runs of the study's directory take: only then their states can be compared."""
        cells, steps, every = self.shallow_size()
        duration = self.value(SHALLOW_DURATION)
        if not duration:
            return cells, steps, every
        found = directory.parents[1] / _CALIBRATION
        if not found.exists():
            write_atomically(found, f"{self._steps_for(testbed, duration, directory)}\n".encode(), 0o644)
        return cells, int(found.read_text()), every

    def _steps_for(self, testbed: Testbed, duration: float, directory: Path) -> int:
        """The steps of so many seconds, from trials that get longer until one is long enough."""
        cells, _, every = self.shallow_size()
        steps, enough = 100, min(_CALIBRATED, duration / 2)
        while True:
            trial = directory / f"trial-{steps}"
            trial.mkdir(exist_ok=True)
            size = (cells, steps, min(every, steps))
            seconds = workloads.shallow(testbed, shapes(self)["long"], size, self.nodes("shallow"), trial)[0].value
            if seconds >= enough:
                return max(1, round(steps * duration / seconds))
            steps = round(steps * min(10.0, 1.2 * enough / max(seconds, 0.001)))

    def _with_move(self, testbed: Testbed, test: str, how: str, directory: Path, run: _Run) -> list[Value]:
        """Runs a program natively or on its cluster, there with the scheduled move of its third node if a level has
        one."""
        if how in (NATIVE, NATIVE_TCP, BY_HAND):
            return run(None, None, directory)
        name = NODES_OF[test]
        cluster = shapes(self)[f"vm-{name}" if how in (VM_NODES, VM_NODES_MOVED) else name]
        if how not in LEVEL_WITHOUT_MOVE:
            return run(cluster, None, directory)
        after = self._moment(test, cluster, directory, run)
        move = _move_to_free(testbed, cluster, min(2, cluster.nodes - 1), after)
        return [*run(cluster, move, directory), Value(MOVED_AFTER, after, "s")]

    def _moment(self, test: str, cluster: ClusterShape, directory: Path, run: _Run) -> float:
        """Seconds from the program's start to the move. Where they are a part of the run's length, the first run with a
        move finds the length by one without, and all runs of the study's directory take it."""
        part = self.part(test)
        if not part:
            return self.after(test)
        found = directory.parents[1] / f"{_LENGTH}-{test}-{cluster.name}"
        if not found.exists():
            trial = directory / _LENGTH
            trial.mkdir(exist_ok=True)
            seconds = next(value.value for value in run(cluster, None, trial) if value.metric == "seconds")
            write_atomically(found, f"{seconds:.3f}\n".encode(), 0o644)
        return part * float(found.read_text())

    def page(self, results: Results) -> Page:
        return XenPage(self, results).page()


def _move_to_free(testbed: Testbed, cluster: ClusterShape, number: int, after: float) -> MoveSchedule:
    """The move of a node from where it is to the host without a node of its cluster, which earlier moves changed."""
    testbed.ensure_cluster(cluster)
    hosts = {node.name: node.host for node in testbed.client.nodes(cluster.name)}
    node = f"{cluster.name}-{number}"
    spare = next(host for host in places(cluster) if host not in hosts.values())
    return MoveSchedule(node, (hosts[node], spare), after)


def _transport(how: str) -> str:
    """Transport of a native run."""
    return {NATIVE: "shm", BY_HAND: workloads.BY_HAND}.get(how, "tcp")
