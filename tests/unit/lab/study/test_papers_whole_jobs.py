"""Studies of whole jobs: their combinations, their omissions, and the order in which jobs of a mix are served."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wherry.base.errors import Code, Refused
from wherry.lab.study import execution, npb_counts, render, workloads
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, RunFailed, Value
from wherry.lab.study.papers import mixed
from wherry.lab.study.papers.cloud_overhead import CloudOverhead
from wherry.lab.study.papers.colocated import Colocated
from wherry.lab.study.papers.migration_cost import MigrationCost
from wherry.lab.study.papers.mixed import EMULATED_JOBS, Mixed
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.papers.packing import Packing
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.papers.xen_migration_design import SHALLOW_DURATION
from wherry.lab.study.results import Results, Run
from wherry.lab.study.sites import machine_cpus
from wherry.lab.study.testbed import ProgramResult, Testbed
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse

TWO_CPUS = machine_cpus(2)
NO_KVM = {"kvm": "no KVM here"}


def test_all_programs_run_with_both_mpis_and_vms_need_kvm() -> None:
    study = CloudOverhead(False)
    assert {one["program"] for one in study.combinations()} == {
        *("queens", "queens-dynamic", "ep", "mg", "cg", "ft", "is", "lu", "sp", "bt")
    }
    assert {(one["mpi"], one["how"]) for one in study.combinations()} == {
        *((mpi, how) for mpi in ("openmpi", "mpich") for how in ("native", "nodes", "vm")),
        ("openmpi", "native-by-hand"),
    }
    slow = CloudOverhead(False, NO_KVM)
    left = {level.name: level.left_out for factor in slow.factors() for level in factor.levels}
    assert "hours" in left["vm"] and all("vm" not in str(one) for one in slow.combinations())


def test_programs_that_take_no_time_have_no_ratio(tmp_path: Path) -> None:
    """N-Queens on a small board is measured in milliseconds."""
    results = Results.create(tmp_path, CloudOverhead(True, given={"programs": "queens"}), 1)
    for number, how in enumerate(("native", "nodes"), 1):
        combination = Combination.of(program="queens", mpi="openmpi", how=how)
        results.add(Run(number, 0, False, True, combination, 0.0, values=[Value("seconds", 0.0, "s")]))
    page = results.study.page(results)
    assert page.figures == [] and [row[5] for row in page.tables[1].rows] == ["", ""]


def test_emulated_machines_pack_two_small_programs() -> None:
    """With KVM all programs of the containers' sizes."""
    slow, fast = Packing(False, NO_KVM), Packing(False)
    programs = {one["program"] for one in slow.combinations() if one["kind"] == "vm"}
    assert programs == {"cg", "ep"} and "emulated: CG S, EP W, 2 nodes" in slow.factors()[1].label("vm")
    assert len(slow._fabric("vm")["hosts"]) == 2 and len(slow._fabric("container")["hosts"]) == 4
    assert len(fast._fabric("vm")["hosts"]) == 4 and fast.factors()[1].label("vm") == "VM nodes"
    assert {one["program"] for one in fast.combinations() if one["kind"] == "vm"} == {"cg", "lu", "ep", "is", "bt"}
    assert all(one["kind"] == "container" for one in Packing(True, NO_KVM).combinations())


def test_a_class_gets_no_more_ranks_than_it_has_work_for() -> None:
    """As the programs refused it: BT, SP and LU of class S on 25 and 32, FT of class W on 64."""
    study = CloudOverhead(True, given={"ranks": "128"})
    ranks = {name: study._ranks(name) for name in ("bt", "sp", "lu", "ft", "cg", "ep", "queens")}
    assert ranks == {"bt": 16, "sp": 16, "lu": 16, "ft": 32, "cg": 128, "ep": 128, "queens": 128}
    takes = [("bt", 64, "W"), ("bt", 81, "W"), ("sp", 144, "W"), ("sp", 169, "W"), ("lu", 121, "W"), ("lu", 120, "W")]
    assert [npb_counts.takes(*one) for one in takes] == [True, False] * 3
    assert npb_counts.at_least("bt", 65, "W") is None


@pytest.mark.parametrize(("ranks", "bt"), [("4", 4), ("8", 4), ("16", 16)])
def test_ranks_of_bt_and_sp_are_a_square(ranks: str, bt: int) -> None:
    study = CloudOverhead(True, given={"ranks": ranks})
    assert (study._ranks("bt"), study._ranks("sp"), study._ranks("cg")) == (bt, bt, int(ranks))


@pytest.mark.parametrize(
    ("kind", "setting", "factor", "named"),
    [
        (CloudOverhead, "programs", "program", {"queens", "ft"}),
        (Packing, "programs", "program", {"cg", "lu"}),
        (MultiSite, "tests", "test", {"netpipe", "bt-mpich"}),
        (MigrationCost, "workloads", "workload", {"ring", "sp"}),
        (MigrationCost, "workloads", "workload", {"hpl"}),
        (NicDegradation, "nics", "nic", {"native", "ne2k_pci"}),
        (NicDegradation, "nics", "nic", {"container"}),
        (NicDegradation, "tools", "tool", {"flood"}),
        (Colocated, "where", "where", {"native-tcp", "vm-one-host"}),
    ],
)
def test_only_the_chosen_programs_run(
    tmp_path: Path, kind: type[Study], setting: str, factor: str, named: set[str]
) -> None:
    study = kind(False, given={setting: ",".join(named)})
    usual = [one for one in kind(False).combinations() if one[factor] in named]
    assert {one[factor] for one in usual} == named and list(study.combinations()) == usual
    assert f"not among `{setting}`" in render.report(Results.create(tmp_path, study, 1)).html()


def test_a_program_that_is_not_chosen_bounds_no_ranks() -> None:
    assert Packing(False, given={"nodes": "4", "programs": "cg,ep"}).nodes("container") == 4, "BT needs a square"


def test_each_program_stays_and_is_packed_in_each_way() -> None:
    whos = {(one["program"], one["who"]) for one in Packing(False, NO_KVM).combinations()}
    assert whos == {(n, w) for n in ("cg", "lu", "ep", "is", "bt") for w in ("stay", "daemon", "hand", "packed")}
    fabric = Packing(False, given={"nodes": "8", "link.mbits": "100"})._fabric("container")
    assert len(fabric["hosts"]) == 16 and sum(host["cores"] for host in fabric["hosts"]) == 32
    assert fabric["links"][0] == {"between": ["a", "b"], "bandwidth": "100Mbit/s", "latency": "10ms"}


class Machine(Testbed):
    """Holds clusters by their hosts, and ends a job when the next event is awaited: starts nothing."""

    def __init__(self) -> None:
        self.held: dict[str, list[str]] = {}
        self.log: list[str] = []
        self._client = cast(Any, SimpleNamespace(nodes=self.nodes, operations=lambda running: []))

    def nodes(self, cluster: str | None = None) -> list[Any]:
        names = [cluster] if cluster else list(self.held)
        return [SimpleNamespace(host=host) for name in names for host in self.held[name]]

    def ensure_cluster(self, cluster: Any) -> None:
        taken = {host for hosts in self.held.values() for host in hosts}
        self.held[cluster.name] = [host for host in cluster.hosts if host not in taken][: cluster.nodes]
        assert len(self.held[cluster.name]) == cluster.nodes, "it was begun before it fitted"

    def start_job(self, cluster: Any, *_: Any, **__: Any) -> Any:
        self.log.append(cluster.name)
        return SimpleNamespace()

    def remove_cluster(self, name: str) -> None:
        self.held.pop(name, None)


def test_jobs_begin_in_the_order_of_their_arrival_when_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed, "_await_end", lambda job, _directory, ended: ended.put(job))
    machine = Machine()
    study = Mixed(True, given={"rounds": "2"})
    jobs = [mixed._Job(f"j{number}", kind, 0.0) for number, kind in enumerate(study.jobs("container"))]
    study._serve(machine, "first-come", jobs, tmp_path, "container")
    assert machine.log == [job.name for job in jobs] and machine.held == {}
    assert [job.split for job in jobs[:3]] == [False, True, False], "EP has a1 to a4, LU a5 and three of b"


def test_without_kvm_machines_have_few_small_jobs_and_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs on two hosts at each site: first come splits CG. With KVM they have the containers' jobs and hosts."""
    study, fast = Mixed(False, NO_KVM), Mixed(False)
    assert {one["nodes"] for one in study.combinations()} == {"container", "vm"} and len(study.combinations()) == 8
    assert "emulated" in study.factors()[1].label("vm") and "emulated" not in fast.factors()[1].label("vm")
    assert study.jobs("vm") == EMULATED_JOBS and fast.jobs("vm") == fast.jobs("container")
    assert study._hosts("vm") == ["av1", "av2", "bv1", "bv2"] and fast._hosts("vm") == fast._hosts("container")
    assert {host["speed"] for host in study._fabric("vm")["hosts"]} == {0.4}
    assert [one["nodes"] for one in Mixed(True).combinations()] == ["container"] * 4
    assert {one["nodes"] for one in Mixed(False, {"vm": "no VMs"}).combinations()} == {"container"}
    monkeypatch.setattr(mixed, "_await_end", lambda job, _directory, ended: ended.put(job))
    jobs, machine = [mixed._Job(f"j{number}", kind, 0.0) for number, kind in enumerate(study.jobs("vm"))], Machine()
    study._serve(machine, "first-come", jobs, tmp_path, "vm")
    assert [job.split for job in jobs] == [False, True, False]
    assert all(job.shape and (job.shape.nic, job.shape.memory) == ("virtio", "256MiB") for job in jobs)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_jobs_are_served_on_as_many_sites_as_are_asked_for(count: int) -> None:
    fabric = parse(FabricSpec, Mixed(True, given={"sites": str(count), "hosts": "6"})._fabric("container"), "the study")
    assert len(fabric.sites) == count and len(fabric.hosts) == 6 * count and len(fabric.links) == count - 1


def test_hosts_that_the_machine_does_not_carry_are_left_out() -> None:
    """As many as have a job at the same time; of emulated machines by their own share."""
    left = {
        level.name: level.left_out for level in Mixed(True, {**NO_KVM, **TWO_CPUS}, {"sites": "3"}).factors()[1].levels
    }
    assert left["container"] == "hosts of 14 ranks have 2.8 CPUs together, this machine has 2"
    usual = Mixed(False, {**NO_KVM, **TWO_CPUS})
    assert usual.factors()[1].measured() == ["container", "vm"]
    more = Mixed(False, {**NO_KVM, **TWO_CPUS}, {"vm.cpus": "0.6"})
    assert more.factors()[1].measured() == ["container"]
    assert Mixed(True, {**NO_KVM, **machine_cpus(3)}, {"sites": "3"}).factors()[1].measured() == ["container"]
    with pytest.raises(Refused, match="nothing of the study mixed can be measured here.*have 2.8 CPUs together"):
        execution._require_runs(Mixed(True, {**NO_KVM, **TWO_CPUS}, {"sites": "3"}))
    execution._require_runs(usual)


@pytest.mark.parametrize(
    ("kind", "quick", "setting", "right"),
    [
        (CloudOverhead, False, "ranks=6", "ranks=4"),
        (CloudOverhead, False, "ranks=100", "ranks=128"),
        (Mixed, False, "cg.nodes=3", "cg.nodes=2"),
        (Mixed, False, "is.nodes=6", "is.nodes=4"),
        (Mixed, False, "lu.nodes=3", "lu.nodes=2"),
        (Packing, False, "nodes=3", "nodes=2"),
        (Packing, False, "nodes=4", "nodes=2"),
        (Packing, False, "nodes=7", "nodes=8"),
        (Packing, True, "nodes=3", "nodes=2"),
        (Packing, False, "vm.nodes=6", "vm.nodes=4"),
    ],
)
def test_ranks_that_a_program_does_not_run_on_are_refused(
    kind: type[Study], quick: bool, setting: str, right: str
) -> None:
    """Before anything starts, with the nearest number that it runs on."""
    with pytest.raises(Refused, match=f"{setting} is not valid.*it is one of 1, 2,|it is one of 2, 8, 32") as refused:
        kind(quick, given=dict([setting.split("=")]))
    assert refused.value.code is Code.USAGE
    assert refused.value.next == f"wherry study run {kind.name} --set {right}"
    kind(quick, given=dict([right.split("=")]))


def test_as_many_nodes_as_the_programs_of_a_quick_study_run_on() -> None:
    """Without BT they need no square."""
    assert Packing(True, given={"nodes": "4"}).nodes("container") == 4


@pytest.mark.parametrize("program", ["ep", "lu", "cg", "bt", "is", "mg", "ft", "sp"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 9, 12, 16])
def test_it_is_known_on_how_many_ranks_npb_runs(program: str, ranks: int) -> None:
    """As the programs themselves say (harness.c, cfd_decomposition.c)."""
    runs = {
        "ep": (1, 2, 3, 4, 6, 8, 9, 12, 16),
        "lu": (1, 2, 4, 6, 8, 9, 12, 16),
        "bt": (1, 4, 9, 16),
        "sp": (1, 4, 9, 16),
    }
    there = runs.get(program, (1, 2, 4, 8, 16))
    assert npb_counts.takes(program, ranks) == (ranks in there)
    assert npb_counts.at_most(program, ranks) == max(number for number in there if number <= ranks)
    assert npb_counts.at_least(program, ranks) == min(number for number in there if number >= ranks)


def test_a_program_that_verified_nothing_does_not_count() -> None:
    text = " Time in seconds = 1.5\n Verification    = SUCCESSFUL\n"
    assert workloads.verified_seconds(ProgramResult(0, text, "")).value == 1.5
    for wrong in (text.replace("SUCC", "UNSUCC"), text.replace("Time", "Tim"), ""):
        with pytest.raises(RunFailed, match="verification"):
            workloads.verified_seconds(ProgramResult(0, wrong, ""))


def test_the_long_run_is_as_long_as_is_said() -> None:
    """An hour with --paper, or the value of one setting."""
    assert XenMigration(False, paper=True).value(SHALLOW_DURATION) == 3600
    assert "steps for 3600 s" in str(XenMigration(False, paper=True).factors()[0].levels)
    assert XenMigration(True, given={"shallow.steps": "7"}).shallow_size()[1] == 7
    moved = next(one for one in XenMigration(True).combinations() if str(one) == "test=shallow how=moved")
    unmoved = XenMigration(True).without_move(moved)
    assert unmoved is not None and unmoved["how"] == "nodes"


def test_the_steps_of_a_duration_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 steps take a second: trials get longer until one takes half of the duration; later runs take its steps."""
    asked: list[int] = []

    def shallow(_bed: Any, _cluster: Any, size: tuple[int, int, int], *_: Any) -> list[Value]:
        asked.append(size[1])
        return [Value("seconds", size[1] / 1000, "s")]

    monkeypatch.setattr(workloads, "shallow", shallow)
    study = XenMigration(True, given={"shallow.duration": "4s"})
    for number in range(2):
        directory = tmp_path / "runs" / str(number)
        directory.mkdir(parents=True)
        values = study._shallow(cast(Any, SimpleNamespace()), "nodes", directory)
        assert asked[-1] == 4000 and values[-1] == Value("steps", 4000, "")
    assert asked == [100, 1000, 2400, 4000, 4000]
