"""The clusters that have a server of their user's directories, and its arguments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fakeworld import OWNER, World
from rest_service import Service

import waiting
from names import own_name
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.base.wait import readable
from wherry.cluster.clusters import Clusters
from wherry.cluster.placements import Placements
from wherry.fabric import file_server
from wherry.fabric.cgroup import Cgroup, sweep
from wherry.fabric.file_server import FileServers, _configuration, _has_handle, _type_of, obstacle
from wherry.model.records import ClusterState, Image
from wherry.model.spec.cluster import ClusterSpec, Flavor
from wherry.node.fake import FakeDriver
from wherry.node.file_closure import FileSet


class Machines(FakeDriver):
    """Machines in memory whose image mounts directories, unless `why` not."""

    why = ""

    def files_obstacle(self, flavor: Flavor) -> str:
        return self.why


class Servers:
    """Servers in memory."""

    def __init__(self, why: str = "") -> None:
        self.why, self.bad = why, ""
        self.pause: Callable[[], object] = lambda: None
        self.runs: dict[str, tuple[str, str, str, tuple[str, ...], tuple[int, int]]] = {}

    def obstacle(self) -> str:
        return self.why

    def can_export(self, path: str) -> bool:
        return path != self.bad

    def up(
        self,
        name: str,
        netns: str,
        address: str,
        subnet: str,
        paths: Sequence[str],
        user: tuple[int, int],
        still: Callable[[], bool],
    ) -> None:
        self.pause()
        if still():
            self.runs[name] = (netns, address, subnet, tuple(paths), user)

    def log(self, name: str) -> Path:
        return Path("/nowhere") / name

    def down(self, name: str) -> None:
        self.runs.pop(name, None)


def clusters(world: World, servers: Servers, machines: Machines | None = None) -> Clusters:
    drivers = {"container": world.driver, "vm": machines or Machines("vm")}
    return Clusters(world.store, world.fabric, drivers, servers)


def test_machines_get_a_server_of_what_their_user_sees(tmp_path: Path) -> None:
    world, servers = World(tmp_path), Servers()
    made = clusters(world, servers)
    owner = OWNER.model_copy(update={"home": "/var/tmp", "cwd": "/"})
    plan = made.plan(ClusterSpec(name="m", nodes=2, kind="vm"), owner)
    assert plan.served and plan.served == plan.binds and not plan.unserved
    cluster = made.apply(plan)
    assert cluster.served == plan.served
    netns, address, subnet, paths, user = servers.runs["m"]
    assert (address, subnet, paths) == (cluster.head_address, cluster.subnet, cluster.served)
    assert user == (owner.uid, owner.gid) and "m-head" in netns
    place = Placements(world.store, world.fabric).placement(world.store.nodes("m")[0])
    assert (place.served, place.server) == (cluster.served, cluster.head_address)
    servers.runs.clear()
    made.serve(cluster)
    assert "m" in servers.runs, "a server that has ended is started again"
    servers.runs.clear()
    world.store.put_cluster(cluster.model_copy(update={"state": ClusterState.REMOVING}))
    made.serve(cluster)
    assert not servers.runs, "not while the cluster is changed, whatever its row was before"
    world.store.put_cluster(cluster)
    made.down("m")
    assert not servers.runs


def test_a_server_that_takes_long_delays_no_check(service: Service) -> None:
    context, servers, over, calls = service.context, Servers(), threading.Event(), list[bool]()
    assert context.managers
    made = context.managers.clusters
    made._servers = servers
    made.apply(made.plan(ClusterSpec(name="m", nodes=1), OWNER))
    row = context.store.cluster("m")
    assert row
    context.store.put_cluster(row.model_copy(update={"served": ("/x",)}))

    def pause() -> None:
        calls.append(over.wait(waiting.bound()))

    servers.pause = pause
    service.monitor.check()
    service.monitor.check()
    context.store.put_cluster(row.model_copy(update={"served": ("/x",), "state": ClusterState.REMOVING}))
    over.set()
    service.monitor.close()
    service.monitor._pool.shutdown()
    assert not servers.runs, "it was removed meanwhile"
    assert calls == [True], "one look at a time, which ended after the checks"


def test_what_a_server_cannot_have_is_said(tmp_path: Path) -> None:
    world, servers, told = World(tmp_path), Servers(), list[str]()
    servers.bad = "/opt"
    made = clusters(world, servers)
    owner = OWNER.model_copy(update={"home": "/var/tmp", "cwd": "/opt"})
    plan = made.plan(ClusterSpec(name="m", nodes=1, kind="vm"), owner)
    assert plan.binds == ("/opt", "/var/tmp") and plan.served == ("/var/tmp",)
    made.apply(plan, told.append)
    assert [line for line in told if "do not see all of your directories: /opt cannot be exported" in line]


def test_a_new_machine_sees_what_the_others_see(tmp_path: Path) -> None:
    world, machines = World(tmp_path), Machines("vm")
    made = clusters(world, Servers(), machines)
    owner = OWNER.model_copy(update={"home": "/var/tmp", "cwd": "/"})
    made.apply(made.plan(ClusterSpec(name="m", nodes=1, kind="vm"), owner))
    two = ClusterSpec(name="m", nodes=2, kind="vm")
    machines.why = "an old image"
    with pytest.raises(Refused) as refused:
        made.plan(two, owner)
    assert refused.value.code is Code.UNSUPPORTED and "new machines of m cannot see" in refused.value.what
    assert refused.value.why == "an old image"
    assert made.plan(ClusterSpec(name="m", nodes=1, kind="vm"), owner).empty, "without a new one all is as it was"
    machines.why = ""
    assert made.plan(two, owner).served == ("/var/tmp",)


def test_a_machine_of_a_cluster_without_a_server_gets_none(tmp_path: Path) -> None:
    world, servers = World(tmp_path), Servers("no program")
    made = clusters(world, servers)
    made.apply(made.plan(ClusterSpec(name="m", nodes=1, kind="vm"), OWNER))
    servers.why = ""
    plan = made.plan(ClusterSpec(name="m", nodes=2, kind="vm"), OWNER)
    assert (plan.served, plan.unserved) == ((), "it was made without")
    assert not made.plan(ClusterSpec(name="m", nodes=1, kind="vm"), OWNER).unserved


def test_why_machines_see_no_directories_is_said(tmp_path: Path) -> None:
    world, told = World(tmp_path), list[str]()
    for number, (servers, machines) in enumerate(((Servers("no program"), None), (Servers(), Machines("vm")))):
        if machines:
            machines.why = "an old image"
        made = clusters(world, servers, machines)
        plan = made.plan(ClusterSpec(name=f"m{number}", nodes=1, kind="vm"), OWNER)
        assert made.apply(plan, told.append).served == () and not servers.runs
    assert [line for line in told if "do not see" in line] == [
        "virtual machines of m0 do not see your directories: no program",
        "virtual machines of m1 do not see your directories: an old image",
    ]
    plan = clusters(world, Servers("no program")).plan(ClusterSpec(name="c", nodes=1), OWNER)
    assert not plan.unserved, "containers need none"


@pytest.mark.parametrize(
    "path, good",
    [
        ("/home/me", True),
        ("/tmp/mine", True),
        ("/var/tmp/mine", True),
        ("/root", True),
        ('/home/m"e', False),
        ("/home/m\\e", False),
        ("/usr/sbin", False),
        ("/bin", False),
        ("/etc", False),
        ("/", False),
        ("/run", False),
        ("/user/me", True),
    ],
)
def test_what_can_be_served(path: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_server, "_has_handle", lambda _: True)
    assert FileServers(Instance("x")).can_export(path) is good


MOUNTS = """\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:30 / /home rw - autofs systemd-1 rw,fd=4
22 21 0:31 / /home/me rw - nfs4 server:/me rw,vers=4.2
23 21 0:32 / /home/my\\040own rw - ext4 /dev/sdb rw
24 20 8:2 / /data rw - ext4 /dev/sdc rw
25 24 0:33 / /data rw - nfs server:/data rw
"""


@pytest.mark.parametrize(
    "path, type",
    [
        ("/home/me/run", "nfs4"),
        ("/home/me", "nfs4"),
        ("/home/met", "autofs"),
        ("/home/my own/x", "ext4"),
        ("/homes", "ext4"),
        ("/data/x", "nfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, type: str) -> None:
    assert _type_of(path, MOUNTS) == type


def test_files_without_handles_cannot_be_served() -> None:
    assert not _has_handle("/dev/pts")
    if not obstacle():
        assert _has_handle("/var/tmp")


@pytest.fixture
def loopback() -> Iterator[str]:
    """A network namespace with an address; the server takes none of 127.0.0.0/8 for one."""
    words = [
        "unshare",
        "--net",
        "sh",
        "-c",
        "ip link set lo up && ip address add 10.9.9.1/24 dev lo && echo up && exec sleep 600",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as made:
        assert made.stdout and made.stdout.readline() == b"up\n"
        yield f"/proc/{made.pid}/ns/net"
        made.kill()


@pytest.mark.skipif(os.geteuid() != 0 or bool(obstacle()), reason="needs root and nfs-ganesha")
def test_a_server_is_limited_and_ends_with_its_cgroup(loopback: str, tmp_path: Path) -> None:
    instance = Instance(own_name("fsrv"))
    servers, group = FileServers(instance), Cgroup(f"{instance.prefix}/.files/m")

    def up(wanted: bool) -> None:
        servers.up("m", loopback, "10.9.9.1", "10.9.9.0/24", [str(tmp_path)], (1000, 1000), lambda: wanted)

    try:
        up(False)
        assert not group.pids(), "it is not wanted any more"
        up(True)
        first = group.pids()
        assert len(first) == 1 and group.memory_limit() == 512 << 20
        up(True)
        assert group.pids() == first
        ended = os.pidfd_open(first[0])
        os.kill(first[0], signal.SIGKILL)
        assert readable(ended, 10)
        os.close(ended)
        said = servers.log("m").read_bytes()
        up(True)
        assert group.pids() not in ([], first) and servers.log("m").read_bytes().startswith(said)
    finally:
        servers.down("m")
        sweep(instance.prefix)
        shutil.rmtree(instance.run)
    assert not group.exists()


def test_everybody_has_the_users_rights() -> None:
    text = _configuration(Path("/run/x"), "10.77.1.254", "10.77.1.0/24", ["/home/me", "/data"], (1000, 100))
    assert text.count("EXPORT {") == text.count("Squash = All_Squash; Anonymous_Uid = 1000; Anonymous_Gid = 100;") == 2
    assert text.count("Access_Type = None;") == 2 == text.count("Clients = 10.77.1.0/24; Access_Type = RW;")
    assert 'Path = "/data"; Pseudo = "/data"' in text and "Bind_addr = 10.77.1.254;" in text
    assert "PrivilegedPort = true;" in text


def test_what_machines_see_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("mine/file", "other"):
        (tmp_path / name).write_text("x")
    files = FileSet()
    for name in ("mine", "mine/file", "other"):
        files.add(tmp_path / name)
    rest = files.without(lambda name: name.startswith(f"{tmp_path}/mine"))
    assert list(rest.files) == [str(tmp_path / "other")] and not rest.directories and len(files.files) == 2


def test_images_of_earlier_versions_mount_nothing() -> None:
    old = {"name": "x", "digest": "d", "built": 0, "kernel": "k", "packages": {}, "mpi": (), "bytes": 1}
    assert Image.model_validate(old).files is False
