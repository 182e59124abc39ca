"""`multi-site`: its combinations, how a program is started for it, and its report beside the paper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from study_results import made, table

import waiting
from wherry.lab import native_mpirun
from wherry.lab.study import gateways, render, requirements, sites
from wherry.lab.study.gateways import GATEWAY, LINK, SOFTIRQ, GatewayWatch, Sample, Window
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.multi_site_design import KERNELS, combination_of
from wherry.lab.study.results import Results, Run
from wherry.lab.study.testbed import ClusterShape, ProgramResult

TWO_CPUS = sites.machine_cpus(2)
NO_KVM = {"kvm": "no KVM here", **TWO_CPUS}
NPB = "Time in seconds = 2.50\nrelative error 1e-9\nVERIFICATION SUCCESSFUL\n"


def test_one_site_grows_as_far_as_the_cpus_go() -> None:
    """BT has a square number of ranks; a size that is not carried is left out with the numbers."""
    study = MultiSite(False, TWO_CPUS)
    where = study.factors()[2]
    assert where.measured() == ["one", "one-8", "two"], "four are the usual one"
    reasons = {level.name: level.left_out for level in where.levels if level.left_out}
    assert reasons["one-16"] == "hosts of 16 ranks have 3.2 CPUs together, this machine has 2"
    grown = [one for one in study.combinations() if one["where"] == "one-8"]
    assert {(one["test"], one["how"]) for one in grown} == {
        (test, how) for test in ("ep", "lu", "cg", "bt") for how in ("native", "nodes")
    }
    assert {study.ranks(one) for one in grown if one["test"] == "bt"} == {9}
    assert MultiSite(False, sites.machine_cpus(26)).factors()[2].measured()[-2:] == ["one-64", "two"]
    large = MultiSite(False, sites.machine_cpus(64), paper=True)
    assert large.factors()[2].measured() == ["one", "one-4", "one-8", "one-16", "one-64", "one-128", "two"]
    assert large.scaled(4) == "one-4" and large.scaled(32) == "one"
    small = MultiSite(False, sites.machine_cpus(64))
    most = {test: max(small.ranks(one) for one in small.combinations() if one["test"] == test) for test in KERNELS}
    assert most == {"ep": 128, "lu": 64, "cg": 128, "bt": 64}, "LU and BT of class W have no work for more"


def test_ranks_that_the_machine_does_not_carry_are_left_out() -> None:
    """8 at a site are 16 at two; 40 are too many at one; as many machines are too many by their own share."""
    for ranks, measured_wheres in (("4", ["one", "one-8", "two"]), ("8", ["one", "one-4"]), ("40", ["one-4", "one-8"])):
        study = MultiSite(False, NO_KVM, {"ranks": ranks})
        assert sorted(study.factors()[2].measured()) == measured_wheres
        assert {one["where"] for one in study.combinations() if one["how"] == "nodes"} == set(measured_wheres)
        hosts = study.hosts()
        assert (len(hosts.far) > 0) == ("two" in measured_wheres) and len((*hosts.near, *hosts.far)) <= 13
    left = {level.name: level.left_out for level in study.factors()[2].levels}
    assert left["two"] == "hosts of 128 ranks have 25.6 CPUs together, this machine has 2"
    machines = MultiSite(False, NO_KVM, {"vm.ranks": "4"})
    assert "hosts of 9 ranks have 3.6 CPUs" in str(machines.factors()[1].levels)
    assert not any(one["how"] == "vm-npb" for one in machines.combinations())


def test_quick_runs_are_few() -> None:
    combinations = MultiSite(True, {**TWO_CPUS, "wireguard": "none", "softether": "none", "vm": "none"}).combinations()
    assert len(combinations) <= 14
    assert {one["where"] for one in combinations} == {"one", "one-8", "two"}
    assert {one["how"] for one in combinations if one["test"] == "ep" and one["where"] == "two"} == {"native", "nodes"}
    assert not any("mpich" in one["test"] for one in combinations)


def test_mpich_runs_where_open_mpi_does() -> None:
    study = MultiSite(False, TWO_CPUS)
    runs = set(study.combinations())
    mpich = [one for one in runs if one["test"].endswith("-mpich") and not one["test"].startswith("netpipe")]
    assert {(one["how"], one["where"], one["latency"]) for one in mpich} == {
        (how, where, latency)
        for how in ("native", "nodes")
        for where, latency in (("one", "0"), ("two", "0"), ("two", "10"))
    }
    assert all(
        Combination.of(**{**dict(one.levels), "test": one["test"].removesuffix("-mpich")}) in runs for one in mpich
    )
    lacking = MultiSite(False, {**TWO_CPUS, "mpiexec.mpich": "no MPICH"})
    assert not any(one["test"] == "ep-mpich" for one in lacking.combinations())


class FakeTestbed:
    """Records the programs that would run."""

    def __init__(self) -> None:
        self.fabrics: list[Any] = []
        self.ran: list[tuple[Any, ...]] = []

    def use_fabric(self, fabric: Any) -> None:
        self.fabrics.append(fabric)

    def require_memory(self, size: int) -> None:
        pass

    def ensure_cluster(self, cluster: ClusterShape) -> None:
        pass

    def leave_machines_of(self, kept: ClusterShape | None) -> None:
        self.kept = kept

    def make_room(self, cluster: ClusterShape, most: int) -> None:
        assert most == 5

    def run_on_cluster(self, cluster: ClusterShape, argv: Sequence[str], ranks: int, *more: Any) -> ProgramResult:
        self.ran.append((cluster, list(argv), ranks, *more))
        return ProgramResult(0, NPB, "")

    def run_command(self, argv: Sequence[str], directory: Path, seconds: float, env: Any = None) -> ProgramResult:
        self.ran.append((list(argv), env))
        return ProgramResult(0, NPB, "")


def measured(study: MultiSite, combination: Combination, directory: Path) -> FakeTestbed:
    testbed = FakeTestbed()
    study.measure(testbed, combination, directory)  # type: ignore[arg-type]
    return testbed


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherry.lab.study.papers.multi_site.native_program", lambda name: Path("/bin") / name)
    monkeypatch.setattr(sites, "_host_address", lambda host: f"10.0.0.{host[1:]}")
    monkeypatch.setattr(native_mpirun.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sites.native_mpirun, "options", lambda mpi, transport: [])


@pytest.mark.usefixtures("programs")
def test_emulated_machines_run_npb_at_a_size_for_them(tmp_path: Path) -> None:
    """Two ranks of class S at a site, on hosts with more of a CPU, and every label has that."""
    study = MultiSite(False, NO_KVM)
    on_vms = [one for one in study.combinations() if one["how"] == "vm-npb"]
    assert {one["test"] for one in on_vms} == {"ep", "lu", "cg", "bt"} and {one["where"] for one in on_vms} == {
        "one",
        "two",
    }
    testbed = measured(study, combination_of("ep", "vm-npb", "two", "none", "10"), tmp_path)
    cluster, argv, ranks = testbed.ran[0][:3]
    assert (cluster.nic, cluster.hosts, ranks, cluster.cpus) == ("virtio", ("av1", "av2", "bv1", "bv2"), 4, 1.0)
    assert argv == ["/bin/npb-ep-openmpi", "S"] and testbed.kept == cluster, "other machines are removed"
    assert testbed.ran[0][-1]["NPB_NODE_MEMORY"] == str(256 << 20)
    hosts = {host["name"]: host for host in testbed.fabrics[0]["hosts"]}
    assert hosts["bv2"]["site"] == "b" and hosts["bv2"]["speed"] == 0.4 and hosts["a1"]["speed"] == 0.2
    assert "emulated, class S" in study.factors()[1].label("vm-npb")
    assert set(on_vms) <= set(requirements.emulated_combinations(study)), "so the report remarks on it"
    bt = [study.ranks(combination_of("bt", "vm-npb", where)) for where in ("one", "two")]
    assert bt == [1, 4]
    results = made(study, tmp_path / "made", {combination_of("ep", "vm-npb", "two"): {"seconds": [1.0]}})
    assert [row[0] for row in table(study, results, "NPB on limited hosts").rows] == ["NPB EP, class S"]


@pytest.mark.usefixtures("programs")
def test_machines_with_kvm_run_what_containers_run(tmp_path: Path) -> None:
    study = MultiSite(False, TWO_CPUS)
    testbed = measured(study, combination_of("ep", "vm-npb", "two", "none", "10"), tmp_path)
    cluster, argv, ranks = testbed.ran[0][:3]
    assert (cluster.cpus, ranks, argv[1], len(cluster.hosts)) == (0.2, 8, "A", 8)
    assert not any("v" in host["name"] for host in testbed.fabrics[0]["hosts"])
    without = MultiSite(False, {**NO_KVM, "vm": "no libvirt"})
    assert not any(one["how"] == "vm-npb" for one in without.combinations())
    assert "no libvirt" in {level.left_out for level in without.factors()[1].levels}


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("test", "launcher", "option"),
    [
        ("ep", "mpirun.openmpi", "--host a1:1,10.0.0.2:1,10.0.0.3:1,10.0.0.4:1"),
        ("ep-mpich", "mpiexec.mpich", "-hosts 10.0.0.1:1,"),
    ],
)
def test_native_ranks_have_a_host_each_by_both_mpis(tmp_path: Path, test: str, launcher: str, option: str) -> None:
    argv, environment = measured(MultiSite(False, TWO_CPUS), combination_of(test, "native"), tmp_path).ran[0]
    assert argv[:2] == [str(tmp_path / "agent"), "10.0.0.1"] and f"/usr/bin/{launcher} " in argv[2]
    assert option in argv[2] and f"npb-ep-{'mpich' if 'mpich' in test else 'openmpi'} A" in argv[2]
    assert "LD_PRELOAD=libwherry-wait.so" in argv[2] and not any("yield" in name for name in environment)
    assert environment.get("UCX_NET_DEVICES") == (None if test == "ep" else "up0")


def test_nodes_cost_little_on_two_sites(tmp_path: Path) -> None:
    """The paper's 0 to 10 %, at both latencies, beside ours."""
    study = MultiSite(False, TWO_CPUS)
    values = {
        combination_of("lu", how, "two", "none", ms): {"seconds": [times * y for y in (1.0, 1.01, 1.02, 1.03)]}
        for how, ms, times in (("native", "0", 10), ("nodes", "0", 10.5), ("native", "10", 20), ("nodes", "10", 20))
    }
    page = table(study, made(study, tmp_path, values), "Beside the published values")
    row = next(row for row in page.rows if row[0] == "LU on two sites: nodes over native, times")
    assert row[1] == "0 to 10 %" and row[3].startswith("0 ms: 1.05 [") and "; 10 ms: 1 [" in row[3]
    assert "differs, p = 0.029" in row[3] and "no difference shown" in row[3]
    assert "not measured" in str(page.rows[-1])


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("unavailable", [TWO_CPUS, NO_KVM], ids=["KVM", "emulated"])
def test_machines_are_beside_native_runs_of_their_size(tmp_path: Path, unavailable: dict[str, str]) -> None:
    """With KVM that of the containers; emulated that of the machines, and the ratio is a direction."""
    study, emulated = MultiSite(False, unavailable), "kvm" in unavailable
    how = "native-small" if emulated else "native"
    pair = [combination_of("cg", one, "two", "none", "10") for one in ("vm-npb", how)]
    assert set(pair) <= set(study.combinations())
    assert len({(study.ranks(one), study.npb_class("cg", one["how"])) for one in pair}) == 1
    assert any(one["how"] == "native-small" for one in study.combinations()) == emulated
    testbed = measured(study, pair[1], tmp_path)
    argv = testbed.ran[0][0][2]
    assert argv.endswith(f"npb-cg-openmpi {'S' if emulated else 'A'}") and testbed.kept is None
    assert ("--host a1:1,10.0.0.2:1,10.0.0.1:1,10.0.0.2:1 " in argv) == emulated, "two of the containers' at a site"
    at_one = combination_of("cg", "vm-npb"), combination_of("cg", how)
    values = {
        one: {"seconds": [times * y for y in (1.0, 1.01, 1.02, 1.03)]}
        for one, times in zip((*pair, *at_one), (30, 10, 8, 2), strict=True)
    }
    results = made(study, tmp_path / "made", values)
    rows = {row[0]: row for row in table(study, results, "Beside the published values").rows}
    nodes = "emulated VM nodes, class S," if emulated else "VM nodes"
    two, one = rows[f"CG on two sites: {nodes} over native, times"], rows[f"CG on one site: {nodes} over native, times"]
    assert two[1] == "0 to 10 %" and two[3].startswith("10 ms: 3 [") and one[3].startswith("4 [")
    assert all(("A direction, marked" in row[-1]) == emulated for row in (one, two))
    sizes = {row[0] for row in table(study, results, "NPB on limited hosts").rows}
    assert sizes == {"NPB CG, class S" if emulated else "NPB CG, class A"}


def test_more_ranks_than_hosts_have_no_native_runs_of_their_size() -> None:
    study = MultiSite(False, {"kvm": "no KVM here", **sites.machine_cpus(16)}, {"ranks": "2", "vm.ranks": "4"})
    left = {level.name: level.left_out for level in study.factors()[1].levels}
    assert left["vm-npb"] == "" and left["native-small"] == "vm.ranks are more than ranks, for which there are hosts"


def test_a_report_tells_the_number_of_sites(tmp_path: Path) -> None:
    """NetPIPE's two ranks are always at two."""
    study = MultiSite(False, sites.machine_cpus(8), {"sites": "3", "latencies": "5,20", "ranks": "4"})
    values = {
        combination_of("lu", how, where, "none", ms): {"seconds": [times * y for y in (1.0, 1.01, 1.02, 1.03)]}
        for how, where, ms, times in (
            *(("nodes", "one", "0", 10), ("nodes", "two", "5", 6), ("native", "two", "5", 5)),
        )
    }
    values[combination_of("netpipe", "nodes", "two", "none", "5")] = {"latency": [1e-3], "bandwidth": [100.0]}
    values[combination_of("netpipe", "nodes", "two", "openvpn", "5")] = {"latency": [3e-3], "bandwidth": [90.0]}
    results = made(study, tmp_path, values)
    page = study.page(results)
    labels = [row[1] for row in table(study, results, "NPB on limited hosts").rows]
    assert "container nodes, 3 sites, 5 ms" in labels and not any("two sites" in label for label in labels)
    assert "container nodes, two sites, 5 ms" in [row[1] for row in table(study, results, "NetPIPE").rows]
    beside = {row[0]: row[3] for row in table(study, results, "Beside the published values").rows}
    assert beside["LU: gain of 3 sites"].startswith("5 ms: 1.67 [")
    assert beside["LU on 3 sites: nodes over native, times"].startswith("5 ms: 1.2 [")
    assert beside["latency, two sites: openvpn over none"].startswith("3 ")
    assert any("Gain of 3 sites over one" in caption for caption, _ in page.figures)
    assert any("at 3 sites with as many ranks at each" in remark for remark in page.remarks)


def test_one_sites_speedup_is_relative_to_four_ranks(tmp_path: Path) -> None:
    """Whichever of its levels has four."""
    four = [8.0, 8.1, 8.2, 8.3]
    for given, base, eight in (({}, "one", "one-8"), ({"ranks": "8"}, "one-4", "one")):
        study = MultiSite(False, TWO_CPUS, given)
        values = {
            combination_of("cg", "nodes", base): {"seconds": four},
            combination_of("cg", "nodes", eight): {"seconds": [time / 1.6 for time in four]},
        }
        results = made(study, tmp_path / base, values)
        scaling = table(study, results, "Scaling on one site")
        assert [row[1:5] for row in scaling.rows] == [("container nodes", "8", scaling.rows[0][3], "2")]
        assert scaling.rows[0][3].startswith("1.6 [") and scaling.rows[0][5].startswith("differs")
        text = render.report(results).html()
        assert "CG on one site, relative to four ranks" in text and "8 ranks nodes: 1.6 [" in text


def test_both_mpis_are_beside_each_other(tmp_path: Path) -> None:
    study = MultiSite(False, TWO_CPUS)
    values = {
        combination_of(test, "nodes", "two", "none", "10"): {"seconds": [times, times, times]}
        for test, times in (("bt", 4.0), ("bt-mpich", 5.0))
    }
    beside = table(study, made(study, tmp_path, values), "MPICH beside Open MPI")
    assert [row[4].split()[0] for row in beside.rows] == ["1.25"] and "two sites, 10 ms" in beside.rows[0][1]


def test_gateways_are_in_a_table_a_figure_and_beside_the_paper(tmp_path: Path) -> None:
    study = MultiSite(True, {**TWO_CPUS, "vm": "none"})
    results = Results.create(tmp_path, study, 1)
    run = Run(results.next_number(), 0, False, True, combination_of("netpipe", "nodes", "two", "openvpn"), 0.0, 1.0)
    run.values = [
        Value("latency", 1e-4, "s"),
        Value("bandwidth", 300.0, "Mbit/s"),
        Value("latency_mean", 1e-4, "s", 1.0),
        Value(gateways.GATEWAY, 0.4, "CPUs", 64 << 10),
        Value(gateways.GATEWAY, 0.9, "CPUs", 1 << 20),
        Value(gateways.SOFTIRQ, 0.3, "CPUs"),
    ]
    results.add(run)
    row = table(study, results, "Gateways, link and kernel").rows[0]
    assert row[2] == "-" and row[3].startswith("0.4") and row[4].startswith("0.9") and row[5:7] == ("-", "-")
    published = next(row for row in table(study, results, "Beside").rows if row[1] == "saturated")
    assert published[3].startswith("0.9 ") and published[3].endswith(" of a CPU")
    assert any("busiest gateway" in caption for caption, _ in study.page(results).figures)


def test_netpipe_is_watched_on_nodes_of_two_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at one site, where nothing joins anything."""
    watched: list[str] = []

    class Watch(gateways.GatewayWatch):
        def __enter__(self) -> Watch:
            watched.append("began")
            return super().__enter__()

    monkeypatch.setattr(gateways, "GatewayWatch", Watch)
    monkeypatch.setattr("wherry.lab.study.papers.multi_site.installed", lambda name, package: name)

    class Netpipe(FakeTestbed):
        def run_on_cluster(self, cluster: ClusterShape, argv: Sequence[str], ranks: int, *more: Any) -> ProgramResult:
            (tmp_path / "np.out").write_text("1 0.1 0.0001\n1024 8.0 0.001\n")
            for on_output in more[4:]:
                for moment, size in ((1.0, 1), (2.0, 1024)):
                    text = f"  0: {size} bytes   10 times -->  0.1 Mbps in   9.0 usec\n"
                    on_output(("stderr", moment, text.encode()))
            return super().run_on_cluster(cluster, argv, ranks, *more)

    study = MultiSite(True, TWO_CPUS)
    for where, latency, times in (("one", "0", 0), ("two", "10", 1)):
        values = study.measure(Netpipe(), combination_of("netpipe", "nodes", where, "none", latency), tmp_path)  # type: ignore[arg-type]
        assert len(watched) == times and {value.metric for value in values} >= {"latency", "bandwidth"}
    assert gateways.SOFTIRQ in {value.metric for value in values}


# Throttled time of ranks in the study `multi-site`.


def test_throttling_by_nested_cgroups_counts_once(tmp_path: Path) -> None:
    """Quotas of a node and of its host throttle a rank at the same time; earlier throttling is subtracted."""

    def look(host: dict[str, int]) -> dict[Path, float]:
        for group, nanoseconds in host.items():
            (tmp_path / group).mkdir(parents=True, exist_ok=True)
            (tmp_path / group / "cpu.stat").write_text(f"nr_periods 9\nthrottled_time {nanoseconds}\n")
        return sites._read_host_throttled(tmp_path)

    before = {"a1": look({".": 7 * 10**9, "idle": 0}), "b1": {}}
    after = {"a1": look({".": 10 * 10**9, "node": 2_500_000_000}), "b1": {Path("node"): 1.0}}
    assert sites.throttled_between(before, after) == pytest.approx(3.0 + 1.0)
    assert sites.throttled_between(after, after) == 0.0


# CPU time of the programs that join two sites: which processes are watched, and its parts by size of messages.


BUSY = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME
print("named", flush=True)
while True:
    end = time.process_time() + 0.01
    while time.process_time() < end: pass
    time.sleep(float(sys.argv[2]))
"""


def line(number: int, size: int, microseconds: float = 9.5) -> bytes:
    return f"{number:3}: {size:7} bytes    100 times -->     51.20 Mbps in {microseconds:10.2f} usec\n".encode()


def test_a_size_lasts_from_the_line_before_to_its_own() -> None:
    """A line may arrive in pieces, and other lines in between; the first size begins with the first output."""
    chunks = [
        ("stderr", 10.0, b"0: one\n1: two\nNow starting the main loop\n"),
        ("stderr", 10.5, line(0, 1)),
        ("stderr", 10.6, line(1, 1024)[:20]),
        ("stdout", 10.7, b"something else\n"),
        ("stderr", 11.5, line(1, 1024)[20:] + line(2, 4096)),
        ("stderr", 14.0, line(3, 1 << 20)),
    ]
    assert gateways.windows(chunks) == [
        Window(1, 10.0, 10.5),
        Window(1024, 10.5, 11.5),
        Window(4096, 11.5, 11.5),
        Window(1 << 20, 11.5, 14.0),
    ]
    assert gateways.windows([]) == []


def sampled(*rows: tuple[float, float, float, float]) -> list[Sample]:
    """Moment, seconds of two gateways and of soft interrupts."""
    return [Sample(at, {(GATEWAY, 7): one, (GATEWAY, 8): two, (SOFTIRQ, 0): soft}) for at, one, two, soft in rows]


def test_the_busiest_gateway_counts_by_size_of_the_messages() -> None:
    samples = sampled((0, 0, 0, 0), (1, 0.1, 0.2, 0.05), (2, 0.2, 1.2, 0.1), (3, 1.2, 2.1, 0.4))
    windows = [Window(1, 0.0, 1.0), Window(1 << 20, 1.0, 2.5), Window(8 << 20, 2.5, 3.0)]
    found = {(value.metric, value.x): value.value for value in gateways.values(samples, windows)}
    assert found == {
        (GATEWAY, 1 << 10): pytest.approx(0.2),
        (GATEWAY, 1 << 20): pytest.approx((1.0 + 0.45) / 1.5),
        (GATEWAY, 1 << 30): pytest.approx(1.0),
        (SOFTIRQ, None): pytest.approx(0.4 / 3),
    }, "the gateway that used most of each class; no emulator ran, and no messages between 1 and 64 KiB"


def test_what_is_shorter_than_two_samples_has_no_share() -> None:
    samples = sampled((0, 0, 0, 0), (1, 0.9, 0, 0))
    assert gateways.values(samples, [Window(1, 0.1, 0.2)]) == []
    assert gateways.values([], [Window(1, 0.0, 1.0)]) == []
    outside = gateways.values(samples, [Window(1, 5.0, 6.0)])
    assert {value.value for value in outside} == {0.0}, "nothing was sampled there"


def test_recorded_processes_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their names, not all that have a file; a process that ends in the middle keeps its CPU time."""
    monkeypatch.setattr(gateways, "_PERIOD", 0.01)
    monkeypatch.setattr(gateways, "_SHORTEST", 1e-9)

    def used(samples: Sequence[Sample], pid: int) -> float:
        (key,) = (key for key in samples[0].used if key[1] == pid)
        return samples[-1].used[key] - samples[0].used[key]

    def start(name: str, pause: str, file: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-c", BUSY, name, pause], stdout=subprocess.PIPE, text=True)
        assert child.stdout and child.stdout.readline() == "named\n"
        (tmp_path / "links" / "a-b").mkdir(parents=True, exist_ok=True)
        (tmp_path / "links" / file).write_text(f"{child.pid} 12345\n")
        return child

    children = [
        start("openvpn", "0", "a-b/0.pid"),
        start("openvpn", "0.2", "a-b/1.pid"),
        start("wherry-link", "0.05", "a-b.sock.pid"),
        start("other", "0", "c.pid"),
    ]
    (tmp_path / "links" / "gone.pid").write_text("999999999 1\n")
    (tmp_path / "links" / "torn.pid").write_text("")
    try:
        with GatewayWatch(tmp_path / "links") as watch:
            waiting.until(lambda: watch.samples, "a sample")
            waiting.until(lambda: all(used(watch.samples, child.pid) for child in children[:3]), "use of the processor")
            children[1].kill()
            children[1].wait()
            killed = len(watch.samples)
            waiting.until(lambda: len(watch.samples) > killed + 1, "samples of the processes left")
    finally:
        for child in children:
            child.kill()
            child.communicate()
    keys = {key for sample in watch.samples for key in sample.used}
    assert keys == {(GATEWAY, children[0].pid), (GATEWAY, children[1].pid), (LINK, children[2].pid), (SOFTIRQ, 0)}
    reaped = [sample.used[GATEWAY, children[1].pid] for sample in watch.samples]
    assert reaped == sorted(reaped) and reaped[-1] > 0, "its last value stays when it is not there any more"
    samples = watch.samples[:killed]
    whole = Window(1, samples[0].moment, samples[-1].moment)
    values = {value.metric: value.value for value in gateways.values(samples, [whole])}
    seconds = whole.end - whole.begin
    assert values[GATEWAY] == pytest.approx(max(used(samples, child.pid) for child in children[:2]) / seconds)
    assert values[LINK] == pytest.approx(used(samples, children[2].pid) / seconds)
