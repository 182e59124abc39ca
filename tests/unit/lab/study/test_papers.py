"""The individual studies with synthetic values: designs, comparisons and reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_results import table

from wherry.lab import hpcc, native_mpirun
from wherry.lab.report.statistics import difference, median, ratio
from wherry.lab.study import render, requirements, runner, workloads
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers import xen_migration
from wherry.lab.study.papers.colocated import Colocated
from wherry.lab.study.papers.migration_cost import MigrationCost
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.results import Results, Run
from wherry.lab.study.testbed import ClusterShape, ProgramResult, Testbed
from wherry.lab.study.workloads import MoveSchedule
from wherry.model.records import Move, Phase

NO_KVM = {"kvm": "no KVM here"}


def add_run(results: Results, combination: Combination, turn: int, problem: str = "", **values: float) -> None:
    """Adds one run with these values, or a failed one."""
    run = Run(results.next_number(), turn, False, True, combination, 0.0, 1.0)
    if problem:
        run.problem = problem
        results.add_failed(run)
        return
    run.values = [Value(name, value, "") for name, value in values.items()]
    results.add(run)


def left_out(study: Study) -> dict[str, str]:
    return {level.text: level.left_out for factor in study.factors() for level in factor.levels if level.left_out}


# migration-cost


def ring(**levels: str) -> Combination:
    defaults = {"kind": "container", "workload": "ring", "memory": "64", "dirty": "16", "mode": "none", "link": "bare"}
    return Combination.of(**{**defaults, **levels})


def program(name: str, mode: str) -> Combination:
    return ring(workload=name, memory="own", dirty="own", mode=mode)


@pytest.mark.parametrize("quick", [True, False])
def test_dirty_rate_is_a_factor_of_migration_cost(quick: bool) -> None:
    combinations = set(MigrationCost(quick).combinations())
    rates = {
        combination["dirty"]
        for combination in combinations
        if combination["memory"] == "64" and combination["mode"] == "stop"
    }
    assert rates == ({"16", "256"} if quick else {"1", "16", "256"})
    assert all(
        Combination.of(**{**dict(combination.levels), "mode": "none"}) in combinations for combination in combinations
    ), "each has its run without"
    over = {combination["link"] for combination in combinations if combination["dirty"] == "256"}
    assert over == ({"bare"} if quick else {"bare", "fast", "slow"})


def test_vms_and_containers_are_moved_in_all_their_modes() -> None:
    def modes(kind: str, quick: bool = False, **unavailable: str) -> set[str]:
        return {
            combination["mode"]
            for combination in MigrationCost(quick, unavailable).combinations()
            if combination["kind"] == kind
        }

    assert modes("vm") == {"none", "pre-copy", "auto-converge", "post-copy"}
    assert modes("container") == {"none", "stop", "rounds"}
    assert modes("vm", quick=True) == set() == modes("vm", **{"vm-moves": "QEMU 7"})
    assert modes("vm", **{"post-copy": "no userfaultfd"}) == {"none", "pre-copy", "auto-converge"}
    assert {
        combination["link"] for combination in MigrationCost(False).combinations() if combination["kind"] == "vm"
    } == {"bare", "slow"}


def test_quick_migration_cost_moves_programs_in_one_mode() -> None:
    """With both modes it would exceed five minutes; the report states it."""

    def programs(**unavailable: str) -> set[str]:
        return {
            combination["mode"]
            for combination in MigrationCost(True, unavailable).combinations()
            if combination["workload"] == "hpl"
        }

    assert programs() == {"none", "rounds"}
    assert programs(**{"dirty pages": "no"}) == {"none", "stop"}


def test_excluded_combinations_are_listed_as_left_out() -> None:
    excluded = left_out(MigrationCost(False, {"post-copy": "no userfaultfd"}))
    texts = ("HPL, SP, LAMMPS and GROMACS over a link", "more than 64 MiB over a link", "GROMACS on them", "hybrid")
    for text in texts:
        assert any(text in level for level in excluded), text
    assert "no userfaultfd" in excluded.values()
    quick = left_out(MigrationCost(True))
    assert {"256 MiB", "1024 MiB", "1 page of 4 KiB", "1 Gbit/s, 10ms", "more than 16 MiB over a link"} <= set(quick)
    assert "HPL, SP, LAMMPS and GROMACS: all memory while frozen" in quick


def test_post_copy_is_unavailable_without_userfaultfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, device = tmp_path / "setting", tmp_path / "device"
    monkeypatch.setattr(requirements, "_USERFAULTFD", setting)
    monkeypatch.setattr(requirements, "_USERFAULTFD_DEVICE", device)
    assert "this kernel has no userfaultfd" in requirements.unavailable_features([])[requirements.POST_COPY]
    setting.write_text("0\n")
    assert "there is no /dev/userfaultfd" in requirements.unavailable_features([])[requirements.POST_COPY]
    device.touch()
    assert requirements.POST_COPY not in requirements.unavailable_features([])
    device.unlink()
    setting.write_text("1\n")
    assert requirements.POST_COPY not in requirements.unavailable_features([])


def test_run_whose_result_differs_from_unmoved_runs_fails(tmp_path: Path) -> None:
    """Also if the run without a move comes later, and when the results are loaded again."""
    study = MigrationCost(True, {"dirty pages": "no"})
    results = Results.create(tmp_path, study, 2)
    moved, without_move = program("lammps", "stop"), program("lammps", "none")
    add_run(results, moved, 0, seconds=9.0, downtime=0.1, total=0.2, result_crc=7.0)
    first = results.counted(moved)[0].number
    assert "nothing to compare 1 runs" in dict(table(study, results, "Results").rows)["lammps"]
    add_run(results, without_move, 0, seconds=3.0, result_crc=5.0)
    add_run(results, moved, 1, seconds=3.5, downtime=0.1, total=0.2, result_crc=5.0)
    for reopened in (results, Results(tmp_path, study, results.manifest)):
        assert reopened.values(moved, "seconds") == [3.5]
        assert [run.problem for run in reopened.failed()] == ["its result is another than without a move"]
        assert (0, moved) in runner.remaining_runs(reopened), "it is run again"
        assert "another than without a move" in render.report(reopened).html()
        text = dict(table(study, reopened, "Results").rows)["lammps"]
        assert text.startswith("every digit as without a move in 1 of 2 runs")
    with results.samples_file.open() as file:
        last = [row for row in csv.DictReader(file) if row["run"] == str(first)][-1]
    assert (last["metric"], last["ok"], last["problem"]) == ("judged", "0", "its result is another than without a move")


def test_results_table_counts_failed_ring_runs(tmp_path: Path) -> None:
    study = MigrationCost(True)
    results = Results.create(tmp_path, study, 2)
    add_run(results, ring(mode="stop"), 0, rate=5.0)
    add_run(results, ring(mode="stop"), 1, problem="the ring found wrong content")
    add_run(results, ring(), 0, problem="a run without a move")
    text = dict(table(study, results, "Results").rows)["ring"]
    assert text == "every byte right in 1 of 2 runs with a move; the others do not count"


def test_cost_of_a_move_is_reported_in_seconds(tmp_path: Path) -> None:
    study = MigrationCost(True, {"dirty pages": "no"})
    results = Results.create(tmp_path, study, 2)
    for turn, extra in enumerate((0.0, 0.2)):
        add_run(results, program("hpl", "none"), turn, seconds=10.0 + extra, result_crc=1.0)
        add_run(results, program("hpl", "stop"), turn, seconds=12.0 + extra, result_crc=1.0)
        add_run(results, ring(), turn, rate=100.0, seconds=4.0, written=5e8)
        moved = {"downtime": 0.5, "total": 0.6, "bytes": (3 + extra) * 1e7, "rounds": 2 + 5 * extra, "largest_gap": 0.5}
        add_run(results, ring(mode="stop"), turn, rate=75.0, seconds=4.0, written=4e8, **moved)
    rows = {row[:2]: row[2:] for row in table(study, results, "Slowdown").rows}
    assert rows["hpl", "stop"][1].startswith("2 [1.8, 2.2]")
    assert rows["ring, 64 MiB, 16 pages a step", "stop"][:2] == ("1.33 [1.33, 1.33] n=2", "1 [1, 1] n=2")
    (move,) = table(study, results, "The moves").rows
    assert move[2].startswith("500 ") and move[-2].startswith("31 [30, 32]") and move[-1].startswith("2.5 [2, 3]")


class RecordingTestbed(Testbed):
    """Runs nothing: records requests, and returns the output that the test gives."""

    def __init__(self, stdout: str = "") -> None:
        self.stdout = stdout
        self.requests = list[tuple[ClusterShape, list[str]]]()
        self.transports = list[str]()
        self.modes = list[str | None]()

    def run_native(self, argv: Sequence[str], *rest: Any, **_: Any) -> ProgramResult:
        _ranks, _directory, _seconds, transport = rest
        self.transports.append(transport)
        raise RunFailed("nothing runs")

    def start_job(
        self, cluster: ClusterShape, argv: Sequence[str], _ranks: int, directory: Path, *_: Any, **__: Any
    ) -> Any:
        self.requests.append((cluster, list(argv)))
        result = ProgramResult(0, self.stdout, "")
        job = {"directory": directory, "ended": 2000.0}
        return SimpleNamespace(wait=lambda _: result, await_output=lambda _: None, cancel=lambda: None, **job)

    def run_on_cluster(self, cluster: ClusterShape, argv: Sequence[str], *_: Any, **__: Any) -> ProgramResult:
        self.requests.append((cluster, list(argv)))
        raise RunFailed("nothing runs")

    def move(
        self, node: str, _hosts: Any, _directory: Path, _rounds: int | None, mode: str | None, _after: float
    ) -> Move:
        self.modes.append(mode)
        times = {"created": 1000.0, "ended": 1001.0, "downtime": 0.5, "total": 1.0}
        return Move(id="m", node=node, cluster="c", source="b1", destination="b2", phase=Phase.DONE, **times)

    def use_fabric(self, fabric: Any) -> None:
        pass

    def leave_machines_of(self, kept: ClusterShape | None) -> None:
        pass


RING = {"iterations": 160, "checked_bytes": 1, "written_bytes": 6_000_000, "errors": 0, "max_gap_ms": 5.0}


def test_ring_gets_its_dirty_rate_and_vm_moves_their_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "program", lambda *names: "-".join(names))
    monkeypatch.setattr(workloads.time, "sleep", lambda _: None)
    testbed = RecordingTestbed(json.dumps({**RING, "seconds": 2.0, "ranks": 3}) + "\n")
    machine = ring(kind="vm", dirty="256", mode="auto-converge", link="slow")
    values = MigrationCost(False).measure(testbed, machine, tmp_path)
    assert {value.metric: value.value for value in values}["written"] == 1e6
    cluster, argv = testbed.requests[0]
    assert argv[argv.index("--pages") + 1] == "256" and (cluster.nic, cluster.nodes) == ("virtio", 3)
    MigrationCost(False).measure(testbed, ring(mode="rounds"), tmp_path)
    assert testbed.requests[1][0].nic == "" and testbed.modes == ["auto-converge", None]


# xen-migration

SP = """ Time in seconds = 12.5
 Residual 1     1.0E+00  relative error  1.0E-10
 Verification    = SUCCESSFUL
"""


def test_npb_on_vms_is_timed_by_its_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing from outside would include the parts before and after the timed one."""
    monkeypatch.setattr(workloads, "native_program", Path)
    cluster = ClusterShape("vm", 4, ("a1",), nic="virtio")
    for move_schedule in (None, MoveSchedule("vm-2", ("b1", "b2"), 0.0)):
        values = workloads.npb(RecordingTestbed(SP), cluster, "sp", "S", 4, tmp_path, move_schedule)
        assert [value.value for value in values if value.metric == "seconds"] == [12.5]


def test_native_runs_use_tcp_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "native_program", Path)
    monkeypatch.setattr(workloads, "installed", lambda name, package: name)
    testbed, study = RecordingTestbed(), XenMigration(False)
    for test in ("hpl3", "hpl6", "sp"):
        for how in ("native-tcp", "native"):
            with pytest.raises(RunFailed):
                study.measure(testbed, Combination.of(test=test, how=how), tmp_path)
    assert testbed.transports == ["tcp", "shm"] * 3


def test_xen_report_states_sizes_move_times_and_tests(tmp_path: Path) -> None:
    study = XenMigration(False, {"vm": "no VMs"})
    results = Results.create(tmp_path, study, 4)
    for turn in range(4):
        for test in ("hpl3", "hpl6", "sp"):
            for number, how in enumerate(("native-tcp", "native", "nodes", "moved")):
                combination = Combination.of(test=test, how=how)
                if combination in study.combinations():
                    seconds = 10.0 + number + turn / 10
                    add_run(
                        results,
                        combination,
                        turn,
                        seconds=seconds,
                        flops=100 / seconds,
                        downtime=0.1,
                        total=0.2,
                        bytes=1e6,
                    )
        add_run(results, Combination.of(test="idle", how="moved"), turn, downtime=0.1, total=0.1, bytes=1e6)
        for how in ("native-tcp", "two-hosts"):
            values = [Value("latency_mean", 1e-3, "s", 6e6)]
            combination = Combination.of(test="netpipe", how=how)
            results.add(Run(results.next_number(), turn, False, True, combination, 0.0, 1.0, values=values))
    text = render.report(results).html()
    for text in (
        "n = 3000, 1 x 3 ranks, 3 factorisations, a move 2 s after",
        "n = 3000, 2 x 3 ranks, 8 factorisations",
        "a move 2.8 s after its first step",
        "n = 3000 here, 8000 there",
        "2.35 / 2.6 GFlops = 0.904",
        "times 1 to 2 % lower",
        "1.3 is 1.011 x 1.284",
        "totals by `time` are left out",
        "1258 and 189 Mbit/s",
        "NetPIPE: 300 measurements",
    ):
        assert text.replace("'", "&#39;") in text, text
    assert "disagree" not in text
    costs = {row[:2]: row[2:] for row in table(study, results, "Cost of one move").rows}
    assert costs["HPL, 3 nodes", "container nodes, one of them moves"][1].startswith("1 [0.7, 1.3]")
    assert costs["NPB SP, 4 nodes", "container nodes, one of them moves"][-1].startswith("differs, p =")
    beside = table(study, results, "Beside")
    assert "test" in beside.head and sum("differs, p =" in " ".join(row) for row in beside.rows) == 9
    assert not any("VM" in row[0] for row in beside.rows), "rows are only of measured combinations"
    times = table(study, results, "Times")
    assert {row[1]: row[-1] for row in times.rows if row[0] == "NPB SP, 4 nodes"}["native, TCP"] == ""
    assert all(row[-1].startswith("differs") for row in times.rows if row[1] == "container nodes")


def test_cost_over_length_figure_includes_vms(tmp_path: Path) -> None:
    study = XenMigration(False)
    results = Results.create(tmp_path, study, 1)
    for test, how, seconds in (("sp", "vms", 50.0), ("sp", "vms-moved", 55.0), ("hpl3", "vms", 20.0)):
        add_run(results, Combination.of(test=test, how=how), 0, seconds=seconds)
    drawn = study.page(results).figures[-1][1].as_figure().axes[0]
    labels = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert labels == ["NPB SP, 4 nodes, VMs", "5 s over the length, VMs"]


# colocated, nic-degradation


def test_colocated_compares_both_mpis(tmp_path: Path) -> None:
    study = Colocated(False, {"vm": "no VMs"})
    results = Results.create(tmp_path, study, 1)
    for number, combination in enumerate(study.combinations(), 1):
        run = Run(results.next_number(), 0, False, True, combination, 0.0, 1.0)
        run.values = [Value("latency_median", 1e-3 * number, "s", float(6 << 20))]
        results.add(run)
    assert [row[1] for row in table(study, results, "Times with MPICH").rows]
    beside = table(study, results, "Beside")
    assert {row[0].partition(":")[0] for row in beside.rows} == {"Open MPI", "MPICH"}
    assert "test" in beside.head and not any("VM" in row[0] for row in beside.rows)


def largest(study: Study, combination: Combination, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    testbed = RecordingTestbed()
    for module in ("colocated", "nic_degradation"):
        monkeypatch.setattr(f"wherry.lab.study.papers.{module}.program", lambda *names: "-".join(names))
    monkeypatch.setattr(testbed, "require_memory", lambda _: None)
    with pytest.raises(RunFailed):
        study.measure(testbed, combination, directory)
    argv = testbed.requests[0][1]
    return int(argv[argv.index("--max") + 1])


def test_vms_with_kvm_send_larger_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = Combination.of(where="vm-one-host", mpi="openmpi")
    assert largest(Colocated(False), vm, tmp_path, monkeypatch) == 1 << 30
    assert largest(Colocated(False, NO_KVM), vm, tmp_path, monkeypatch) == 1 << 20
    card = Combination.of(nic="e1000", tool="pingpong", mpi="openmpi")
    assert largest(NicDegradation(False), card, tmp_path, monkeypatch) == 8 << 20
    assert largest(NicDegradation(False, NO_KVM), card, tmp_path, monkeypatch) == 1 << 20
    for reopened, size in (({}, "up to 8 MiB"), (NO_KVM, "up to 1 MiB")):
        study = NicDegradation(False, reopened)
        remarks = study.page(Results.create(tmp_path / size, study, 1)).remarks
        assert any(size in remark for remark in remarks)


@pytest.mark.parametrize("how", ["native-tcp", "native"])
def test_netpipe_waits_natively_over_tcp_as_on_nodes(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over shared memory as its MPI does: no message wakes a rank that sleeps."""
    monkeypatch.setattr(xen_migration, "installed", lambda name, package: f"/usr/bin/{name}")
    monkeypatch.setattr(native_mpirun, "native_library", lambda name: Path("/lib") / name)
    study, run = XenMigration(False), list[list[str]]()

    def run_native(argv: Sequence[str], *_: Any) -> ProgramResult:
        run.append(list(argv))
        (tmp_path / "np.out").write_text("1 0.1 0.0001\n")
        return ProgramResult(0, "", "")

    testbed: Any = SimpleNamespace(use_fabric=lambda _: None, leave_machines_of=lambda _: None, run_native=run_native)
    study.measure(testbed, Combination.of(test="netpipe", how=how), tmp_path)
    waits = native_mpirun.waiting_as_on_nodes("openmpi")
    assert (run[0][: len(waits)] == waits) == (how == "native-tcp") and "/usr/bin/NPopenmpi" in run[0]


def test_netpipe_repeats_as_often_on_vms_with_kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xen_migration, "installed", lambda name, package: name)
    for reopened, repeats in (({}, "300"), (NO_KVM, "10")):
        testbed, study = RecordingTestbed(), XenMigration(False, reopened)
        with pytest.raises(RunFailed):
            study.measure(testbed, Combination.of(test="netpipe", how="vm-one-host"), tmp_path)
        argv = testbed.requests[0][1]
        assert argv[argv.index("-n") + 1] == repeats
        remarks = study.page(Results.create(tmp_path / repeats, study, 1)).remarks
        assert any(f"between VM nodes {repeats};" in remark for remark in remarks)


# shared by all studies


def test_native_mpich_has_the_same_settings_as_on_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP: a barrier in MPI_Finalize, and no connection timeout for a paused peer."""
    monkeypatch.setattr(native_mpirun, "native_library", lambda name: Path("/lib") / name)
    monkeypatch.setenv("LD_PRELOAD", "theirs.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    loaded = ["-genv", "LD_PRELOAD", "libwherry-finalize.so theirs.so", "-genv", "LD_LIBRARY_PATH", "/lib:/theirs"]
    assert native_mpirun.options("mpich", "tcp") == loaded
    assert native_mpirun.options("mpich", "shm") == [] and native_mpirun.environment("mpich", "shm") == {}
    assert native_mpirun.environment("mpich", "tcp")["UCX_TCP_KEEPIDLE"] == "inf"
    assert "LD_PRELOAD" not in native_mpirun.options("openmpi", "tcp")


def test_difference_and_ratio_have_intervals() -> None:
    few_samples = difference([3.0, 4.0], [1.0, 2.0])
    assert (few_samples.value, few_samples.low, few_samples.high, few_samples.method) == (2.0, 1.0, 3.0, "range")
    many_samples = difference([10.0 + i / 10 for i in range(10)], [1.0 + i / 10 for i in range(10)])
    assert many_samples.value == pytest.approx(9.0) and 8.0 < many_samples.low < 9.0 < many_samples.high < 10.0
    assert (ratio([4.0, 8.0], [2.0, 4.0]).low, ratio([4.0, 8.0], [2.0, 4.0]).high) == (1.0, 4.0)
    assert (median([1.0, 2.0]).low, median([1.0, 2.0]).high) == (1.0, 2.0)


def test_hpl_problem_is_described() -> None:
    small = hpcc.Problem(n=7, p=1, q=3, pfacts=1, rfacts=1, bcasts=3, depths=1)
    assert small.description == "n = 7, 1 x 3 ranks, 3 factorisations"
