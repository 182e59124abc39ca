"""Studies of whole jobs for real, each with few small runs: programs on a virtual cluster and without it, a job that is
packed while it runs, several jobs at once, and the long program whose results a move does not change."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from realworld import real_instance

from wherry.base.paths import Instance
from wherry.client import daemon_process
from wherry.fabric.cgroup import Cgroup
from wherry.lab.study import render, runner
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import RESULT_CHECKSUM, Combination
from wherry.lab.study.papers.cloud_overhead import CloudOverhead
from wherry.lab.study.papers.mixed import Mixed
from wherry.lab.study.papers.packing import Packing
from wherry.lab.study.papers.topology import Topology
from wherry.lab.study.papers.topology_design import cell
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.requirements import unavailable_features
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed
from wherry.model.records import Move

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Testbed, Path]]:
    """On an instance of its own, as each study makes another fabric."""
    with real_instance("tsjb") as instance, tempfile.TemporaryDirectory(prefix="wherry-tsjb-") as directory:
        monkeypatch.setenv("WHERRY_INSTANCE", instance.instance.name)
        created = Testbed(Path(directory))
        yield created, Path(directory)
        created.close()


def run(
    testbed: tuple[Testbed, Path], kind: type[Study], given: Mapping[str, str] | None = None, quick: bool = True
) -> Results:
    """One turn of a study, all of whose runs must count; its clusters are gone afterwards."""
    bed, directory = testbed
    study = kind(quick, unavailable_features(daemon_process.examine()), given)
    study.warmups = 0
    results = Results.create(directory / "study", study, 1)
    with results.session():
        runner.run(results, bed, lambda *_: None)
    assert len(results.counted()) == len(results.study.combinations()), [one.problem for one in results.runs]
    assert render.write(results)[0].exists()
    return results


class Overhead(CloudOverhead):
    """Both MPIs, natively and on nodes; IS prints no digits of its result."""

    def combinations(self) -> Sequence[Combination]:
        hows = (("queens-dynamic", "openmpi", "nodes"), ("queens", "mpich", "native"), ("is", "mpich", "nodes"))
        return [
            Combination.of(program=name, mpi=mpi, how=how)
            for name, mpi, how in (*hows, ("queens", "openmpi", "native-by-hand"), ("sp", "openmpi", "native"))
        ]


def test_programs_run_with_and_without_a_cluster(testbed: tuple[Testbed, Path]) -> None:
    results = run(testbed, Overhead, {"queens.n": "11", "is.class": "S"})
    commands = {str(one.combination): (results.directory_of(one) / "command").read_text() for one in results.runs}
    assert "libwherry-wait.so libwherry-finalize.so" in commands["program=queens mpi=mpich how=native"]
    assert "LD_PRELOAD" not in commands["program=queens mpi=openmpi how=native-by-hand"]


class Packed(Packing):
    """Combinations that pack without measuring."""

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(program="ep", kind="container", who=who) for who in ("hand", "packed")]


def test_a_running_job_is_packed_when_there_is_room(testbed: tuple[Testbed, Path]) -> None:
    results = run(testbed, Packed, {"room.after": "0.5s", "link.latency": "1ms"})
    hand, packed = results.study.combinations()
    assert results.values(hand, "moves") == [2] and results.values(packed, "moves") == [0]
    after, total = results.values(hand, "packed_after")[0], results.values(hand, "total")[0]
    assert 0.5 < after < total and testbed[0].client.auto_balance() is False


class Decided(Topology):
    """A program that is faster packed, and one with collectives by sites."""

    def combinations(self) -> Sequence[Combination]:
        levels = (("cg", "packed"), ("cg", "brief"), ("ft", "by-sites"))
        return [cell(program, "20", where) for program, where in levels]


def test_the_balancer_packs_what_waits_for_the_link(testbed: tuple[Testbed, Path]) -> None:
    results = run(testbed, Decided, {"programs": "cg,ft", "ft.class": "S", "latencies": "20"})
    _, brief, by_sites = results.study.combinations()
    assert results.values(brief, "packs") == [1] and results.values(brief, "predicted")[0] < 0.8
    assert "--site-collectives" in (results.directory_of(results.counted(by_sites)[0]) / "command").read_text()
    assert testbed[0].client.moves() == [], "the decision is not carried out"


class Served(Mixed):
    """Where first come differs from placed."""

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(policy=policy, nodes="container") for policy in ("first-come", "placed-moved")]


def test_jobs_are_served_in_order_and_differ_by_places(testbed: tuple[Testbed, Path]) -> None:
    """With hosts a1 to b5 first come splits LU and not CG, packing CG and not LU."""
    small = {"ep.class": "W", "lu.class": "S", "cg.class": "S", "is.class": "S", "arrival.gap": "0.1s"}
    results = run(testbed, Served, small | {"host.cpus": "0.25", "link.latency": "1ms"})
    for combination in results.study.combinations():
        mean, worst, waited = (
            results.values(combination, metric)[0] for metric in ("turnaround_mean", "turnaround_worst", "waited")
        )
        assert 0 < waited < mean < worst and results.values(combination, "split")[0] >= 1
        assert all(results.values(combination, f"ran_{name}") for name in ("ep", "lu", "cg", "is"))
    assert results.values(results.study.combinations()[0], "moves") == [0]
    assert testbed[0].client.clusters() == []


class Long(XenMigration):
    """The long program, with a move and without."""

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(test="shallow", how=how) for how in ("nodes", "moved")]


class Machines(Mixed):
    """Jobs on machines that are made for them, where first come splits CG."""

    def combinations(self) -> Sequence[Combination]:
        levels = (("first-come", "vm"), ("placed", "container"), ("placed", "vm"))
        return [Combination.of(policy=policy, nodes=nodes) for policy, nodes in levels]


class PackedMachines(Packing):
    """Machines that are packed by hand beside containers, which have other hosts."""

    def combinations(self) -> Sequence[Combination]:
        levels = (("cg", "vm", "hand"), ("ep", "vm", "hand"), ("ep", "container", "packed"))
        return [Combination.of(program=program, kind=kind, who=who) for program, kind, who in levels]


class Emulated(XenMigration):
    """SP on machines, with a move and without; and HPL, whose run takes minutes."""

    def combinations(self) -> Sequence[Combination]:
        return [
            Combination.of(test=test, how=how)
            for test in ("sp-emulated", "hpl3-emulated")
            for how in ("vms", "vms-moved")
        ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Machines, {"ep.class": "S", "lu.class": "S", "cg.class": "S", "is.class": "S", "rounds": "1"}),
        (Emulated, {"vm.hpl.runs": "24"}),
        (PackedMachines, {"ep.class": "W"}),
    ],
    ids=("mixed", "xen-migration", "packing"),
)
def test_whole_jobs_on_emulated_machines(
    testbed: tuple[Testbed, Path], kind: type[Study], given: Mapping[str, str]
) -> None:
    """At the sizes for emulated processors, all of which end; a move changes no digit."""
    if "WHERRY_LONG_TESTS" not in os.environ:
        pytest.skip("it takes a quarter of an hour: WHERRY_LONG_TESTS=1")
    lacks = unavailable_features(daemon_process.examine())
    if why := lacks.get("vm") or lacks.get("vm-moves"):
        pytest.skip(why)
    if "kvm" not in lacks:
        pytest.skip("machines have KVM here")
    results = run(testbed, kind, given, quick=False)
    for combination in results.study.combinations():
        levels = dict(combination.levels)
        if levels.get("nodes") == "vm":
            split = results.values(combination, "split")
            assert split == ([1] if combination["policy"] == "first-come" else [0])
        elif levels.get("how") == "vms-moved":
            assert results.values(combination, "downtime")[0] > 0
        elif levels.get("who") == "hand":
            assert results.values(combination, "moves") == [1]


class Far(XenMigration):
    """The long program and a short one, with a move and without."""

    def combinations(self) -> Sequence[Combination]:
        return [Combination.of(test=test, how=how) for test in ("sp", "shallow") for how in ("nodes", "moved")]


def test_a_move_changes_no_bit_of_the_model(testbed: tuple[Testbed, Path]) -> None:
    """Its outputs have the checksum of all of its state."""
    results = run(testbed, Long, {"shallow.n": "200", "shallow.steps": "6000"})
    unmoved, moved = results.study.combinations()
    assert results.values(moved, "downtime")[0] > 0
    assert results.values(moved, RESULT_CHECKSUM) == results.values(unmoved, RESULT_CHECKSUM)
    sizes = {(results.directory_of(one) / "heights").stat().st_size for one in results.runs}
    assert sizes == {200 * 200 * 8}


@pytest.fixture
def others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a node moves, the ranks of the others stand: a program ends after the move, however quick it is by then."""
    move = Testbed.move

    def standing(bed: Testbed, node: str, *given: Any) -> Move:
        prefix, nodes = Instance(os.environ["WHERRY_INSTANCE"]).prefix, bed.client.nodes()
        pids = [pid for one in nodes if one.name != node for pid in Cgroup(f"{prefix}/{one.host}/{one.name}").pids()]
        ranks = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith(("npb-sp", "wherry-shallow"))]
        assert len(ranks) == 3
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        try:
            return move(bed, node, *given)
        finally:
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)

    monkeypatch.setattr(Testbed, "move", standing)


def test_the_long_run_takes_what_its_duration_says(testbed: tuple[Testbed, Path], others_stand: None) -> None:
    """At seconds: the steps are those of the longest trial in that time, found once, so that the state with a move has
    the bits of that without; and the report has the far point beside the law of the others."""
    results = run(testbed, Far, {"shallow.n": "200", "shallow.duration": "4s", "shallow.every": "50"})
    trials = [file.parent for file in results.directory.rglob("trial-*/stdout")]
    tried, trial = max((int(trial.name.removeprefix("trial-")), trial) for trial in trials)
    seconds = re.search(r"Time in seconds\s*=\s*([\d.]+)", (trial / "stdout").read_text())
    assert len({trial.parent for trial in trials}) == 1 and seconds
    shallow = [one for one in results.study.combinations() if one["test"] == "shallow"]
    assert [results.values(one, "steps") for one in shallow] == [[round(tried * 4 / float(seconds[1]))]] * 2
    names = {"sp": "NPB SP, 4 nodes", "shallow": "shallow water, 4 nodes"}
    alone = {
        one["test"]: results.values(one, "seconds")[0] for one in results.study.combinations() if one["how"] == "nodes"
    }
    table = next(one for one in results.study.page(results).tables if one.title.startswith("The far point"))
    assert [row[:2] for row in table.rows] == [(names[max(names, key=alone.__getitem__)], "containers")]
