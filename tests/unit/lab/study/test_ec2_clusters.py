"""Clusters of a study through the EC2 Query API: botocore's client against the service in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from accounts_world import Accounts
from ec2_world import Ec2World
from rest_service import Service

from wherry.lab.study import ec2_clusters
from wherry.lab.study.ec2_clusters import Ec2Testbed, Reservations
from wherry.lab.study.levels import RunFailed
from wherry.lab.study.papers.nic_degradation import NicDegradation
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed

SHAPE = ClusterShape("nic", 2, ("a1", "a2"), memory="256MiB")


@pytest.fixture
def world(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ec2World:
    """Without images, whatever this machine has."""
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state-of-all"))
    accounts = Accounts(service)
    accounts.add("ann")
    accounts.allow()
    return Ec2World(accounts)


def clusters(world: Ec2World) -> list[str]:
    return [one.name for one in world.accounts.service.context.store.clusters()]


def test_a_shape_is_a_reservation_with_a_host_for_each_node(world: Ec2World) -> None:
    cloud = Reservations(world.client("ann"))
    name = cloud.launch(SHAPE)
    store = world.accounts.service.context.store
    (cluster,) = store.clusters()
    assert cluster.name == name and cluster.spec.sites == ("a",)
    nodes = store.nodes(name)
    assert len({node.host for node in nodes}) == 2
    assert {(node.cpus, node.memory) for node in nodes} == {(1.0, 512 << 20)}, "the least with a whole CPU"
    other = cloud.launch(ClusterShape("more", 1, ("a1",), memory="600MiB"))
    assert {node.memory for node in store.nodes(other)} == {1 << 30}
    cloud.terminate("nic")
    assert clusters(world) == [other]
    cloud.terminate("nic")
    cloud.terminate()
    assert clusters(world) == []


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (ClusterShape("nic", 2, ("a1", "a2"), memory="64GiB"), "no instance type with 1 CPUs and 65536 MiB"),
        (ClusterShape("nic", 2, ("a1", "a2"), nic="virtio"), "EC2 has no image default"),
        (ClusterShape("nic", 9, ("a1", "a2")), "EC2: An error occurred .InsufficientInstanceCapacity"),
        (ClusterShape("nic", 2, ("x1", "x2")), "EC2: An error occurred .InvalidParameterValue"),
    ],
)
def test_what_ec2_refuses_fails_the_run(world: Ec2World, shape: ClusterShape, why: str) -> None:
    with pytest.raises(RunFailed, match=why):
        Reservations(world.client("ann")).launch(shape)
    assert clusters(world) == []


class Daemon:
    """A client of the daemon as root: accounts, keys and the listener; it has the accounts of the world."""

    def __init__(self, world: Ec2World, users: tuple[str, ...] = ()) -> None:
        self.world, self.listening, self.allowing, self.names = world, "", "off", list(users)

    def listener(self) -> dict[str, str]:
        return {"url": self.listening, "ca": ""}

    def listen(self, setting: dict[str, Any] | None) -> dict[str, str]:
        self.listening = f"https://{setting['address']}:{setting['port']}" if setting else ""
        return self.listener()

    def allowed(self, change: str | None = None) -> str:
        self.allowing = change or self.allowing
        return self.allowing

    def users(self) -> list[dict[str, str]]:
        return [{"name": name} for name in self.names]

    def add_user(self, name: str, _role: str, _quota: Any) -> None:
        self.names.append(name)

    def remove_user(self, name: str) -> None:
        assert clusters(self.world) == [], "an account with clusters is not removed"
        self.names.remove(name)

    def user(self, _name: str) -> dict[str, int]:
        return {"uid": 1_900_000_007}

    def add_key(self, _name: str, _days: int, _user: str) -> dict[str, Any]:
        return {"key": {"id": "WKIA"}, "secret": "s"}

    def operations(self, running: bool = False) -> list[Any]:
        return []

    def clusters(self) -> list[Any]:
        return []


@pytest.fixture
def testbed(
    world: Ec2World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Ec2Testbed, Daemon, list[Any]]]:
    """A testbed on a daemon, and the jobs that it starts: cluster, words and owner."""

    def make(*users: str) -> tuple[Ec2Testbed, Daemon, list[Any]]:
        jobs: list[Any] = []

        def start(
            _bed: Any, shape: ClusterShape, argv: Any, _n: int, _to: Path, _mpi: Any, env: Any, _by: Any, owner: Any
        ) -> RunningJob:
            jobs.append((shape.name, argv, owner.uid, env["HOME"]))
            return cast(Any, None)

        monkeypatch.setattr(Testbed, "start_job", start)
        monkeypatch.setattr(ec2_clusters, "_PROGRAMS", str(tmp_path))
        bed, daemon = Ec2Testbed(tmp_path), Daemon(world, users)
        bed._client = cast(Any, daemon)
        monkeypatch.setattr("botocore.session.Session", lambda: cast(Any, Session(world)))
        return bed, daemon, jobs

    return make


class Session:
    """botocore's, whose clients ask the world."""

    def __init__(self, world: Ec2World) -> None:
        self.world = world

    def create_client(self, name: str, **words: Any) -> Any:
        assert name == "ec2" and words["endpoint_url"].endswith("/ec2") and words["region_name"] == "local"
        return self.world.client("ann")


def test_a_study_has_an_account_while_it_runs(testbed: Any, world: Ec2World, tmp_path: Path) -> None:
    bed, daemon, jobs = testbed()
    (tmp_path / "program").write_text("#!/bin/sh\n")
    for _ in range(2):
        bed.start_job(SHAPE, [str(tmp_path / "program"), "1"], 2, tmp_path)
    (cluster,) = clusters(world)
    assert [job[0] for job in jobs] == [cluster, cluster], "a good one is left alone"
    copy = Path(jobs[0][1][0])
    assert copy.stat().st_mode & 0o777 == 0o755 and copy.parent.stat().st_mode & 0o777 == 0o755
    assert jobs[0][1][1:] == ["1"] and jobs[0][2:] == (1_900_000_007, "/")
    assert (daemon.names, daemon.allowing) == (["study"], "nodes") and daemon.listening.startswith("https://127.0.0.1:")
    bed.recheck_clusters()
    bed.start_job(SHAPE, [str(tmp_path / "program")], 2, tmp_path)
    assert clusters(world) == [jobs[-1][0]] != [cluster], "after a failed run it is made anew"
    bed.close()
    assert clusters(world) == [] and not copy.exists()
    assert (daemon.names, daemon.allowing, daemon.listening) == ([], "off", "")


def test_what_a_killed_session_left_is_removed(testbed: Any, world: Ec2World, tmp_path: Path) -> None:
    left = Reservations(world.client("ann")).launch(SHAPE)
    bed, daemon, _ = testbed("study")
    daemon.listening, daemon.allowing = "https://cloud.example:7443", "jobs"
    bed.ensure_cluster(SHAPE)
    assert left not in clusters(world) and len(clusters(world)) == 1
    bed.close()
    assert clusters(world) == [] and daemon.listening, "a listener that was there stays"
    assert daemon.allowing == "jobs"


def test_the_study_asks_for_it(tmp_path: Path) -> None:
    """Instances have the adapter that EC2 gives, and their user is not root."""
    study = NicDegradation(False, {"vhost": "no device"}, {"clusters": "ec2"})
    assert isinstance(study.testbed(tmp_path), Ec2Testbed)
    usual = NicDegradation(False).testbed(tmp_path)
    assert isinstance(usual, Testbed) and not isinstance(usual, Ec2Testbed)
    assert {one["nic"] for one in study.combinations()} == {"native", "container", "virtio"}
    assert {one["tool"] for one in study.combinations()} == {"pingpong"}
    assert {one["nic"] for one in NicDegradation(False, {}, {"clusters": "ec2"}).combinations()} == {
        *("native", "container", "vhost")
    }
