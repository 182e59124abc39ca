"""Where a study's clusters and moves go, and how its clusters are removed."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rest_service import CLUSTER, FABRIC, Service

from wherry.base.errors import Code, Failed, WherryError
from wherry.client import Client
from wherry.lab import native_mpirun
from wherry.lab.study import analysis, workloads
from wherry.lab.study import testbed as testbed_module
from wherry.lab.study.levels import Combination
from wherry.lab.study.papers import xen_migration, xen_migration_nodes
from wherry.lab.study.papers.cloud_overhead import CloudOverhead
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.papers.xen_migration_page import XenPage
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed
from wherry.model.records import JobState


class RecordingService:
    """A client that records its calls: nodes by name are on hosts, one operation runs until it is awaited."""

    interrupted = False

    def __init__(self, hosts: dict[str, str], broken: str = "") -> None:
        self.hosts, self.broken = hosts, broken
        self.log: list[str] = []
        self.running = ["balance"]

    def nodes(self, cluster: str | None = None) -> list[Any]:
        found = [SimpleNamespace(name=n, host=h, cluster=n.rpartition("-")[0]) for n, h in self.hosts.items()]
        return [node for node in found if cluster in (None, node.cluster)]

    def clusters(self) -> list[dict[str, str]]:
        return [{"name": name} for name in dict.fromkeys(node.cluster for node in self.nodes())]

    def operations(self, running: bool) -> list[Any]:
        return [SimpleNamespace(id=kind, kind=kind) for kind in self.running]

    def wait(self, id: str, seconds: float = 0.0) -> Any:
        self.log.append(f"wait {id}")
        self.running = []
        return SimpleNamespace()

    def down(self, name: str, end_jobs: bool) -> Any:
        assert not self.running, "refused while it runs"
        if name == self.broken:
            raise Failed(Code.FAILED, f"{name} stays", "it does", "")
        self.log.append(f"down {name}")
        return SimpleNamespace(id=f"down {name}")

    def begin_move(self, node: str, to: str, *_: Any, **__: Any) -> Any:
        self.log.append(f"move {node} to {to}")
        return SimpleNamespace(id="move")

    def moved(self, _operation: Any) -> None:
        return None


def bed(tmp_path: Path, service: RecordingService) -> Testbed:
    testbed = Testbed(tmp_path)
    testbed._client = cast(Any, service)
    return testbed


def test_nodes_of_a_cluster_are_on_different_hosts() -> None:
    """`spread: host` alone counts the nodes of all clusters. The balancer keeps to the limit, so packing has none."""
    assert ClusterShape("c", 3, ("a1", "a2", "a3")).spec()["placement"] == {"spread": "host", "max_per_host": 1}
    assert ClusterShape("c", 6, ("a1", "a2", "a3")).spec()["placement"]["max_per_host"] == 2
    for spread in ("pack", "site"):
        assert ClusterShape("c", 2, ("a1", "a2"), spread=spread).spec()["placement"] == {"spread": spread}


def test_a_cluster_is_removed_when_nothing_moves_and_forgotten_afterwards(tmp_path: Path) -> None:
    service = RecordingService({"one-0": "a1", "two-0": "a2"}, broken="one")
    testbed = bed(tmp_path, service)
    testbed._clusters = {name: ClusterShape(name, 1, ("a1",)) for name in ("one", "two")}
    with pytest.raises(Failed, match="one stays"):
        testbed.remove_clusters(["one", "two", "none"])
    assert service.log == ["wait balance", "down two", "wait down two"], "the second one is removed all the same"
    assert list(testbed._clusters) == ["one"] and testbed._unchecked == {"one"}


def test_hosts_carry_so_many_clusters(tmp_path: Path) -> None:
    service = RecordingService({f"c{number}-0": "a1" for number in range(5)} | {"far-0": "b1"})
    testbed = bed(tmp_path, service)
    testbed._clusters = {f"c{number}": ClusterShape(f"c{number}", 1, ("a1",)) for number in range(5)}
    testbed._clusters["far"] = ClusterShape("far", 1, ("b1",))
    testbed.make_room(ClusterShape("c4", 1, ("a1",)), 5)
    assert len(testbed._clusters) == 6
    testbed.make_room(ClusterShape("new", 2, ("a1", "a2")), 5)
    assert set(testbed._clusters) == {"c1", "c2", "c3", "c4", "far"}


@pytest.mark.parametrize(("at", "other", "to"), [("b1", "a1", "b2"), ("b2", "a1", "b1"), ("a1", "b1", "b2")])
def test_a_move_goes_to_a_host_without_the_cluster(tmp_path: Path, at: str, other: str, to: str) -> None:
    service = RecordingService({"c-1": at, "c-0": other})
    bed(tmp_path, service).move("c-1", ("b1", "b2"), tmp_path)
    assert f"move c-1 to {to}" in service.log


@pytest.mark.parametrize(("places", "move"), [(("a2", "a1", "a3"), ("a3", "a4")), (("a3", "a4", "a1"), ("a1", "a2"))])
def test_the_node_of_a_measured_move_goes_to_the_free_host(
    tmp_path: Path, places: tuple[str, ...], move: tuple[str, str]
) -> None:
    testbed = bed(tmp_path, RecordingService({f"three-{number}": host for number, host in enumerate(places)}))
    cluster = xen_migration_nodes.shapes(XenMigration(True))["three"]
    testbed._clusters = {"three": cluster}
    schedule = xen_migration._move_to_free(testbed, cluster, 2, 2.0)
    assert (schedule.node, schedule.hosts, schedule.after) == ("three-2", move, 2.0)
    testbed.move(schedule.node, schedule.hosts, tmp_path)
    assert f"move three-2 to {move[1]}" in cast(Any, testbed.client).log


def test_nodes_whose_moves_are_compared_have_the_same_memory() -> None:
    names = ("three", "four", "long", "idle", "vm", "vm-three", "vm-four")
    shapes = xen_migration_nodes.shapes(XenMigration(False, given={"node.memory": "640MiB"}))
    assert {shapes[name].memory for name in names} == {"640MiB"}


@pytest.mark.parametrize("ranks", [None, "1", "7", "64"])
def test_every_test_has_hosts_for_its_ranks_and_one_that_is_free(ranks: str | None) -> None:
    """As many as are asked for; SP's are a square number, and the larger HPL has two nodes on a host."""
    study = XenMigration(False, given={} if ranks is None else dict.fromkeys(("hpl.ranks", "sp.ranks"), ranks))
    fabric, shapes = xen_migration_nodes.fabric(study), xen_migration_nodes.shapes(study)
    names = {host["name"] for host in fabric["hosts"]}
    for test, name in xen_migration_nodes.NODES_OF.items():
        shape = shapes[name]
        assert shape.nodes == study.nodes(test) and len(shape.hosts) == study.hosts(test)
        assert set(xen_migration_nodes.places(shape)) <= names and shapes[f"vm-{name}"].hosts == shape.hosts
    wanted = int(ranks or 3)
    assert (study.nodes("hpl3"), study.problem("hpl3").p * study.problem("hpl3").q) == (wanted, wanted)
    assert study.nodes("sp-emulated") == {None: 4, "1": 1, "7": 4, "64": 64}[ranks]
    assert {study.nodes("hpl6"), study.hosts("hpl6") * 2, len(shapes["six"].hosts) * 2} == {6}
    machines = [xen_migration_nodes.machines(study, test, "vms") for test in xen_migration_nodes.NODES_OF]
    assert all(machine is not None and machine.nic for machine in machines), "each test has machines where there is KVM"


def test_native_ranks_wait_as_on_nodes_over_tcp_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []

    class Native(Testbed):
        def run_native(self, argv: Any, *words: Any, env: Any = None, **__: Any) -> Any:
            ran.append((list(argv), {**env, "over": words[-1]}))

    monkeypatch.delenv("LD_PRELOAD", raising=False)
    for transport in ("tcp", workloads.BY_HAND, "shm"):
        workloads._run_native(Native(tmp_path), ["sp"], 4, tmp_path, 1.0, transport)
    (tcp, tcp_env), (by_hand, hand_env), (shm, shm_env) = ran
    assert tcp == [*native_mpirun.waiting_as_on_nodes("openmpi"), "sp"] and "LD_PRELOAD=libwherry-wait.so" in tcp
    assert by_hand == shm == ["sp"] and [env["over"] for env in (tcp_env, hand_env, shm_env)] == ["tcp", "tcp", "shm"]
    assert not any("yield" in name for env in (tcp_env, hand_env, shm_env) for name in env), "no MPI is set to yield"


@pytest.mark.parametrize("ranks", ["1", "4", "128"])
def test_the_hosts_of_whole_programs_carry_all_ranks(ranks: str) -> None:
    hosts = CloudOverhead(False, given={"ranks": ranks})._fabric()["hosts"]
    assert len(hosts) == 2 and all(host["cores"] >= 2 * int(ranks) for host in hosts)


def test_one_run_has_no_ratio() -> None:
    assert analysis.ratio_of_runs([1.0], [2.0, 2.0]) is None and analysis.ratio_of_runs([1.0, 1.0], [2.0]) is None
    over = analysis.ratio_of_runs([1.0, 1.0], [2.0, 2.0])
    assert over is not None and over.value == 0.5


def test_only_machines_are_emulated(tmp_path: Path) -> None:
    study = XenMigration(False, {"kvm": "no KVM"})
    page = XenPage(study, Results.create(tmp_path, study, 1))
    assert "emulated" in page._comparable("sp-emulated", "vms") and "emulated" in page._comparable(
        "sp-emulated", "vms-moved"
    )
    assert "class S here, B there" in page._comparable("sp-emulated", "nodes")
    assert "n = 300 here" in page._comparable("hpl3-emulated", "nodes")
    assert "class B, as there" in page._comparable("sp", "nodes")
    assert Combination.of(test="sp-emulated", how="nodes") in study.combinations()


# Time limits and Ctrl-C of studies: every wait is bounded, and everything that was started is ended.


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        yield client


def test_operation_past_its_time_limit_is_cancelled(service: Service, client: Client) -> None:
    driver: Any = service.context.require_managers().drivers["container"]
    go = threading.Event()
    driver.on_call = lambda name: go.wait(60)
    operation = client.up(CLUSTER | {"name": "late", "nodes": 6, "cpus": 0.2})
    with pytest.raises(WherryError, match="within 0.1 s") as caught:
        client.wait(operation.id, seconds=0.1)
    assert caught.value.code == Code.TIMED_OUT and operation.id in caught.value.next
    go.set()
    with pytest.raises(WherryError) as caught:
        client.wait(operation.id)
    assert caught.value.code == Code.CANCELLED


def test_hung_job_is_cancelled_at_its_time_limit(client: Client, tmp_path: Path) -> None:
    for wait in (lambda job: job.await_output(b"never", 0.3), lambda job: job.wait(0.3)):
        job = RunningJob(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            wait(job)
        assert client.job(job.job.id).state == JobState.CANCELLED
    assert (tmp_path / "stdout").read_bytes() == b"out\n", "its output until then is kept"


def test_await_output_returns_when_the_text_appears(client: Client, tmp_path: Path) -> None:
    job = RunningJob(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
    job.await_output(b"out", 60.0)
    assert client.job(job.job.id).state == JobState.RUNNING


class InterruptedClient(Client):
    """A client that receives Ctrl-C once during a wait for an operation."""

    _interrupted = False

    def get(self, path: str, **query: Any) -> Any:
        if path.startswith("/v1/operations/") and not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        return super().get(path, **query)


def test_ctrl_c_ends_a_run_whose_operation_succeeded(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a fabric cannot be cancelled: the operation succeeds, and the study must end nevertheless."""
    monkeypatch.setattr(testbed_module, "Client", lambda: InterruptedClient(service.place))
    testbed = Testbed(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        testbed.use_fabric(FABRIC)
    testbed.close()


def test_remaining_clusters_are_removed_when_one_removal_fails(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed_module, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    with Client(service.place) as client:
        for name in ("aa", "hello"):
            client.wait(client.up(CLUSTER | {"name": name, "nodes": 1}).id)
            testbed._clusters[name] = testbed_module.ClusterShape(name, 1, ())
        down = Client.down

        def down_fails_for_aa(self: Client, name: str, end_jobs: bool) -> Any:
            if name == "aa":
                raise WherryError(Code.FAILED, "the host does not answer")
            return down(self, name, end_jobs)

        monkeypatch.setattr(Client, "down", down_fails_for_aa)
        assert testbed.client
        with pytest.raises(WherryError, match="does not answer"):
            testbed.close()
        assert [cluster["name"] for cluster in client.clusters()] == ["aa"]


def test_fabric_is_recorded_with_every_link_setting(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed_module, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    assert testbed.fabric() == []
    for latency in ("10ms", "50ms", "10ms"):
        testbed.use_fabric({**FABRIC, "links": [{"between": ["a", "b"], "latency": latency}]})
    text = "; ".join(testbed.fabric())
    assert "a1 at a" in text and text.count("hosts") == 1
    assert [text.count(f"there latency {ms} ms") for ms in ("10.0", "50.0")] == [1, 1], text
    testbed.close()


def test_commands_are_recorded_with_their_variables(tmp_path: Path) -> None:
    testbed = Testbed(tmp_path)
    testbed.run_command(["/bin/true", "a b"], tmp_path, 10.0, {"MPIR_CVAR_NOLOCAL": "1"})
    testbed.run_command(["/bin/true"], tmp_path, 10.0)
    assert (tmp_path / "command").read_text() == "MPIR_CVAR_NOLOCAL=1 /bin/true 'a b'\n/bin/true\n"
