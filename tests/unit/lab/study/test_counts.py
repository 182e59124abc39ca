"""Ranks, sites and hosts of studies as options of their own, and the sizes behind them that are settings."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wherry.base.errors import Code, Refused
from wherry.base.units import parse_size
from wherry.cli.study import run, show
from wherry.lab import hpcc
from wherry.lab.study import exchanges, sites
from wherry.lab.study.catalog import STUDIES, find
from wherry.lab.study.counts import option_of, with_counts
from wherry.lab.study.execution import describe
from wherry.lab.study.experiment import Study
from wherry.lab.study.papers import xen_migration_nodes
from wherry.lab.study.papers.cloud_overhead import RANKS, CloudOverhead
from wherry.lab.study.papers.colocated import Colocated
from wherry.lab.study.papers.migration_cost import MigrationCost
from wherry.lab.study.papers.mixed import Mixed
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.multi_site_design import HOST_CPUS, NODE_MEMORY, VM_MEMORY, combination_of
from wherry.lab.study.papers.packing import Packing
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.testbed import ClusterShape
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse

LARGE = sites.machine_cpus(64)
OPTIONS = ("ranks", "sites", "hosts")
KINDS = ("container", "vm")


@pytest.mark.parametrize("kind", [kind for kind in STUDIES if kind.options], ids=lambda kind: kind.name)
def test_an_option_stands_for_settings_of_its_study(kind: type[Study]) -> None:
    for name, those in kind.options.items():
        assert name in OPTIONS and those and set(those) <= set(kind.settings)
        given = with_counts(kind, {}, {name: 8})
        assert given == {one.name: "8" for one in those}
        study = kind(False, given=given)
        assert all(study.value(one) == 8 for one in those) and study.combinations()
        assert all(option_of(kind, one.name) == f"--{name}" for one in those)


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_an_option_that_a_study_has_not_is_refused_with_those_that_it_has(kind: type[Study]) -> None:
    for name in set(OPTIONS) - set(kind.options):
        with pytest.raises(Refused) as refused:
            with_counts(kind, {}, {"ranks": None, name: 3})
        assert refused.value.code is Code.USAGE and refused.value.what == f"the study {kind.name} has no --{name}"
        assert all(f"--{other} (" in refused.value.why for other in kind.options) and refused.value.why
        assert refused.value.next == f"wherry study show {kind.name}"


def test_a_count_is_typed_once() -> None:
    with pytest.raises(Refused, match="--ranks and --set ranks are the same"):
        with_counts(MultiSite, {"ranks": "4"}, {"ranks": 8})
    with pytest.raises(Refused, match="ranks=0 is not valid") as refused:
        MultiSite(False, given=with_counts(MultiSite, {}, {"ranks": 0}))
    assert refused.value.next == "wherry study run multi-site --set ranks=1"


def test_the_command_line_takes_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from wherry.client import daemon_process
    from wherry.lab.study import execution

    monkeypatch.setattr(daemon_process, "examine", lambda: [])
    show("multi-site", ranks=3, sites=3)
    shown = capsys.readouterr().out
    assert "ranks (or --ranks) = 3" in shown and "sites (or --sites) = 3" in shown and "two: 3 sites" in shown
    asked: dict[str, Any] = {}

    def noting(name: str, **words: Any) -> Any:
        asked.update(words)
        raise Refused(Code.USAGE, name, "", "")

    monkeypatch.setattr(execution, "run", noting)
    with pytest.raises(Refused):
        run("cloud-overhead", ranks=9, hosts=3, settings=("cg.class=S",))
    assert asked["settings"] == {"cg.class": "S", "ranks": "9", "hosts": "3"}
    with pytest.raises(Refused, match="has no --hosts"):
        run("multi-site", hosts=3)


@pytest.mark.parametrize(("count", "cg", "bt"), [("2", 8, 9), ("3", 16, 16), ("5", 32, 25), ("8", 32, 36)])
def test_a_job_is_spread_over_as_many_sites_as_are_asked_for(count: str, cg: int, bt: int) -> None:
    study = MultiSite(False, LARGE, {"sites": count, "ranks": "4"})
    every = int(count)
    assert study.ranks(combination_of("ep", "nodes", "two")) == 4 * every
    assert study.ranks(combination_of("cg", "nodes", "two")) == cg
    assert study.ranks(combination_of("bt", "nodes", "two")) == bt
    hosts = study.hosts()
    fabric = parse(FabricSpec, study.fabric("openvpn", "5"), "the study")
    names = {host.name for host in fabric.hosts}
    assert len(fabric.sites) == every and [link.between[1] for link in fabric.links] == list(sites.SITES[1:every])
    assert all((link.latency, link.overlay) == (0.005, "openvpn") for link in fabric.links)
    for test in ("ep", "lu", "cg", "bt"):
        ranks = study.ranks(combination_of(test, "nodes", "two"))
        used = hosts.for_ranks(ranks, True)
        assert len(set(used)) == ranks and set(used) <= names
        at = {site: sum(host[0] == site for host in used) for site in sites.SITES[:every]}
        assert all(number == 4 for site, number in at.items() if site != "a") and at["a"] >= 4


def test_latencies_of_vpns_are_some_of_the_links() -> None:
    """A latency that no link has is refused, with the command that has it; usual latencies of no link are left out."""
    with pytest.raises(Refused) as refused:
        MultiSite(False, LARGE, {"vpn.latencies": "0,20"})
    assert refused.value.code is Code.USAGE and "vpn.latencies=0,20 is not valid" in refused.value.what
    assert "0,1,5,10,50" in refused.value.why
    assert refused.value.next.endswith("--set vpn.latencies=0,20 --set latencies=0,1,5,10,20,50")
    for latencies, few in (("5,10,20", ("10",)), ("5,20", ("5",)), ("0,10", ("0", "10"))):
        study = MultiSite(False, LARGE, {"latencies": latencies})
        assert study.few_latencies() == few
        vpns = {one["latency"] for one in study.combinations() if one["overlay"] != "none" and one["test"] == "cg"}
        assert vpns == set(few)


def test_latencies_and_shares_of_multi_site_are_settings() -> None:
    given = {"latencies": "0,2,20", "vpn.latencies": "20", "host.cpus": "0.5", "scales": "4,16"}
    study = MultiSite(False, LARGE, given)
    assert study.factors()[4].measured() == ["0", "2", "20"]
    vpns = {one["latency"] for one in study.combinations() if one["overlay"] != "none" and one["test"] == "cg"}
    assert vpns == {"20"} and study.factors()[2].measured() == ["one", "one-16", "two"]
    few = MultiSite(False, sites.machine_cpus(4), {**given, "ranks": "8"})
    assert few.factors()[2].measured() == ["one", "one-4"], "16 hosts of half a CPU are 8"
    assert [study.exchanges(ms, False) for ms in ("0", "1", "10", "50")] == [100, 50, 9, 4]
    assert study.exchanges("0", True) == 10 and MultiSite(True).exchanges("0", False) == 20


@pytest.mark.parametrize(
    ("runs", "counts"), [(1, (1, 1, 1, 1)), (3, (1, 1, 3, 1)), (8, (1, 1, 4, 2)), (7, (1, 1, 4, 2))]
)
def test_factorisations_are_combined_from_hpls_variants(runs: int, counts: tuple[int, ...]) -> None:
    problem = hpcc.Problem.of(1000, 64, 6, runs)
    assert (problem.pfacts, problem.rfacts, problem.bcasts, problem.depths) == counts
    assert (problem.n, problem.nb, problem.p, problem.q) == (1000, 64, 2, 3) and problem.runs >= runs


@pytest.mark.parametrize("runs", [54, 108])
def test_all_of_hpls_variants_can_be_asked_for(runs: int) -> None:
    assert hpcc.Problem.of(100, 80, 3, runs).runs == runs and hpcc.MOST_RUNS == 108


def test_what_the_ring_rewrites_and_its_links_are_settings() -> None:
    study = MigrationCost(False, given={"ring.memory": "8,32", "ring.pages": "4", "link.slow": "250", "hpl.ranks": "5"})
    rings = [one for one in study.combinations() if one["workload"] == "ring" and one["kind"] == "container"]
    assert {(one["memory"], one["dirty"]) for one in rings} == {("8", "4"), ("32", "4")}
    assert study._fabric("slow")["links"] == [{"between": ["a", "b"], "bandwidth": "250Mbit/s", "latency": "10ms"}]
    assert "250 Mbit/s" in str(study.factors()[5].levels) and "HPL, 5 ranks" in str(study.factors()[1].levels)


@pytest.mark.parametrize(("size", "asked", "ranks"), [("S", "32", 16), ("W", "32", 25), ("S", "15", 9)])
def test_sp_of_a_moving_node_has_as_many_ranks_as_its_class_takes(size: str, asked: str, ranks: int) -> None:
    study = MigrationCost(False, given={"sp.class": size, "sp.ranks": asked})
    assert study._program_cluster("sp").nodes == ranks


@pytest.mark.parametrize(("asked", "left_out"), [("24", ""), ("64", "class S has no work for 64 ranks")])
def test_a_test_of_sp_whose_class_has_no_work_is_left_out(asked: str, left_out: str) -> None:
    """Both of SP's tests have the same nodes."""
    usual = {"sp.class": "S", "sp.ranks": asked}
    for test, given in (("sp", usual), ("sp-emulated", {"sp.ranks": asked})):
        study = XenMigration(False, {"kvm": "no KVM here"}, given)
        assert {level.name: level.left_out for level in study.factors()[0].levels}[test] == left_out
        assert (test in {one["test"] for one in study.combinations()}) == (not left_out)
    assert XenMigration(False, {"kvm": "no KVM here"}, {"sp.ranks": "64"}).nodes("sp") == 64


@pytest.mark.parametrize(
    "given", [{}, {"ring.pages": "4"}, {"ring.memory": "8"}, {"ring.memory": "8", "ring.pages": "4"}]
)
def test_what_is_not_combined_is_said_where_there_is_any(given: dict[str, str]) -> None:
    dirty = {level.name: level.text for level in MigrationCost(False, given=given).factors()[3].levels}
    assert dirty.get("others") == (None if given else "1, 256 pages with other memory than 64 MiB")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (MigrationCost, {"hpl.ranks": "32", "sp.ranks": "32", "app.ranks": "32"}),
        (MigrationCost, {"ring.ranks": "16", "ring.far.ranks": "16", "ring.memory": "4096"}),
        (XenMigration, {"talk.memory": "8GiB"}),
        (MultiSite, {"node.memory": "4GiB"}),
        (MultiSite, {"vm.memory": "4GiB", "netpipe.largest": "1GiB"}),
        (MultiSite, {"host.cpus": "0.35"}),
        (Mixed, {"sites": "8", "hosts": "64"}),
        (Packing, {"nodes": "32", "node.memory": "8GiB"}),
        (CloudOverhead, {"ranks": "128", "hosts": "3"}),
    ],
)
@pytest.mark.parametrize("machine", [{}, {"kvm": "no KVM here"}], ids=["kvm", "emulated"])
def test_fabrics_carry_what_is_set(kind: type[Study], given: dict[str, str], machine: dict[str, str]) -> None:
    """A fabric is one, and each of its hosts has room for its nodes of the clusters that can be there at once."""
    study: Any = kind(False, {**LARGE, **machine}, given)
    for fabric, clusters in room_of(study):
        parsed = parse(FabricSpec, fabric, "the study")
        hosts = {host.name: [host.cores, float(host.memory)] for host in parsed.hosts}
        for cluster in clusters:
            each = math.ceil(cluster.nodes / len(cluster.hosts))
            for name in cluster.hosts:
                hosts[name][0] -= each * cluster.cpus
                hosts[name][1] -= each * parse_size(cluster.memory)
        assert min(min(left) for left in hosts.values()) >= -1e-9, hosts


def room_of(study: Any) -> list[tuple[Any, list[ClusterShape]]]:
    """Fabrics of a study, each with clusters that it may have at the same time."""
    if isinstance(study, MigrationCost):
        return [(study._fabric("slow"), study._shapes())]
    if isinstance(study, XenMigration):
        shapes = xen_migration_nodes.shapes(study)
        machine = shapes["vm-one-host"]
        return [(xen_migration_nodes.fabric(study), [*(one for one in shapes.values() if not one.nic), machine])]
    memory = "1GiB"
    if isinstance(study, MultiSite):
        share, small = study.value(HOST_CPUS), f"{study.value(NODE_MEMORY)}B"
        near = study.hosts().near
        limited = [ClusterShape("c", len(near), near, share, small)] * int(1 / share + 1e-9)
        pipe, machine = f"{study.pipe_memory()}B", f"{study.value(VM_MEMORY)}B"
        pipes = [ClusterShape("p", 2, ("q1", "q2"), 1.0, size) for size in (pipe, pipe, machine)]
        emulated = study.hosts("vm-npb").near if study.emulated else ()
        machines = [ClusterShape("m", len(emulated), emulated, 1.0, machine)] if emulated else []
        return [(study.fabric("none", "0"), [*limited, *pipes, *machines])]
    if isinstance(study, Mixed):
        return [(study._fabric(kind), [ClusterShape("j", 8, tuple(study._hosts(kind)), 1.0, memory)]) for kind in KINDS]
    if isinstance(study, Packing):
        at, memory = study._at("a", "container"), "8GiB"
        jobs = [ClusterShape("job", len(at), at, 1.0, memory), ClusterShape("guest", len(at), at, 1.0, "32MiB")]
        return [(study._fabric("container"), jobs)]
    hosts = study._hosts()
    return [(study._fabric(), [ClusterShape("c", study.value(RANKS), hosts, 1.0, "512MiB")] * 2)]


def test_repetitions_of_messages_are_settings() -> None:
    study = Colocated(True, given={"exchanges": "7", "exchanges.warm": "0"})
    assert exchanges.words(study, 4, 3) == ["--repeat", "7", "--warm", "0", "--above", "4", "--few", "3"]
    assert "0 exchanges that do not count, 7 that do" in exchanges.told(study)


def test_nodes_of_whole_programs_have_the_hosts_that_are_asked_for() -> None:
    study = CloudOverhead(True, given={"hosts": "3", "ranks": "8"})
    assert [host["name"] for host in study._fabric()["hosts"]] == ["a1", "a2", "a3"] == list(study._hosts())


def test_paper_says_what_the_paper_did() -> None:
    study = find("xen-migration")(False, paper=True)
    assert isinstance(study, XenMigration)
    assert (study.problem("hpl3").n, study.after("sp"), study.exchanges("native"), study.sp_class()) == (
        8000,
        60,
        300,
        "B",
    )
    assert (study.nodes("hpl3"), study.nodes("hpl6"), study.nodes("sp")) == (3, 6, 4)
    assert str(describe(study)["lasts"]).startswith("days: the shallow-water model alone")
    assert describe(MultiSite(False, paper=True))["lasts"] == Study.paper_duration
    assert describe(MultiSite(True))["lasts"] == MultiSite.duration[1]
