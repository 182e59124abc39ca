"""Contract of wherry.node.protocol for all kinds of nodes; a move can be rolled back after every step before the
commit."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract_names import IMAGE
from pydantic import SecretStr

import waiting
from wherry.base.errors import Failed
from wherry.fabric.protocol import Fabric, Hold
from wherry.job.agent_client import AgentEndpoint, Ended
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.network import HEAD_INDEX, Port, address_of, mac_of, network_of
from wherry.model.owner import Owner
from wherry.model.records import Node
from wherry.node.container import seccomp, shown_proc
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver, NodeMover, Placement
from wherry.node.vm.disk import inspect
from wherry.node.vm.emulated.driver import VmDriver
from wherry.node.vm.qemu_user import QEMU_UID


class NodeUnderTest:
    """One node with a port on each of two hosts, the network's part of its moves, and the cluster's head."""

    def __init__(self, driver: NodeDriver, fabric: Fabric, image: str = IMAGE) -> None:
        self.driver, self.fabric, self.image = driver, fabric, image
        self.vm = driver.kind == "vm"
        self.network = network_of(fabric.spec.pool, 9)
        address, mac = address_of(self.network, HEAD_INDEX), mac_of(self.network, HEAD_INDEX)
        self.head = Port(
            owner="c-head", index=HEAD_INDEX, host="a2", network=self.network, address=address, mac=mac
        )  # fmt: skip
        fabric.network_up(self.network)
        fabric.port_up(self.head)
        fabric.port_plug(self.head)
        self.source, self.destination = self._placement("a1"), self._placement("b1")
        self.hold: Hold | None = None
        self.plug()

    def plug(self) -> None:
        """Makes and plugs the port at the source."""
        self.fabric.port_up(self.port(self.source))
        self.fabric.port_plug(self.port(self.source))

    def _placement(self, host: str) -> Placement:
        node = Node(
            name="c-0", cluster="c", index=0, host=host, cpus=1, memory=(256 if self.vm else 128) * 2**20,
            address=address_of(self.network, 0), mac=mac_of(self.network, 0),
        )  # fmt: skip
        cgroup, key = f"{self.fabric.cgroup(host)}/{node.name}", SecretStr("ab" * 32)
        hosts_file = "127.0.0.1 localhost\n"
        placement = Placement(
            node=node, host=host, netns="", cgroup=cgroup, key=key, user="0:0:", hosts_file=hosts_file
        )
        placement = placement.model_copy(update={"image": self.image})
        port = self.port(placement)
        netns = self.fabric.port_netns(self.head if self.vm else port)
        return placement.model_copy(update={"netns": netns, "device": self.fabric.port_device(port)})

    def port(self, placement: Placement) -> Port:
        node = placement.node
        return Port(
            owner=node.name, index=0, host=placement.host, network=self.network, address=node.address, mac=node.mac,
            tap=self.vm,
        )  # fmt: skip

    def mover(self, parameters: MigrationParameters | None = None) -> NodeMover:
        return self.driver.mover(self.source, self.destination, parameters)

    def steps(self, mover: NodeMover, post_copy: bool = False) -> list[Callable[[], object]]:
        """The steps of a move before the commit, with those of the network."""

        def prepare() -> None:
            self.fabric.port_up(self.port(self.destination))
            mover.prepare()
            self.hold = self.fabric.hold(self.port(self.destination))

        def freeze() -> None:
            mover.freeze(post_copy)
            assert self.hold
            self.hold.divert()
            self.fabric.port_unplug(self.port(self.source))

        return [prepare, freeze, mover.transfer, mover.restore]

    def finish(self, mover: NodeMover) -> None:
        mover.release()
        if self.hold:
            self.hold.release()
            self.hold.drop()
        else:
            self.fabric.port_plug(self.port(self.destination))
        mover.thaw()
        mover.complete()
        self.fabric.port_down(self.port(self.source))
        mover.close()
        self.hold = None

    def roll_back(self, mover: NodeMover) -> bool:
        """Rolls the move back. Returns False if the engine had already switched; the move is then finished."""
        if mover.switched():
            self.fabric.port_unplug(self.port(self.source))
            self.finish(mover)
            return False
        if self.hold:
            self.hold.drop()
        self.fabric.port_plug(self.port(self.source))
        mover.roll_back()
        self.fabric.port_down(self.port(self.destination))
        mover.close()
        self.hold = None
        return True

    def assert_runs_only_at(self, placement: Placement) -> None:
        other = self.destination if placement is self.source else self.source
        assert self.driver.alive(placement) and not self.driver.alive(other)
        assert self.driver.usage(placement).processes >= 1

    def remove(self) -> None:
        for placement in (self.source, self.destination):
            self.driver.stop(placement)
            self.fabric.port_down(self.port(placement))
        self.fabric.port_down(self.head)
        self.fabric.network_down(self.network)


@contextmanager
def movable_node(driver: NodeDriver, fabric: Fabric) -> Iterator[NodeUnderTest]:
    """A running node that this machine can move; its test is skipped where it cannot."""
    node_under_test = NodeUnderTest(driver, fabric)
    try:
        driver.start(node_under_test.source)
        if reason := driver.move_obstacle(node_under_test.source, node_under_test.destination):
            pytest.skip(reason)
        yield node_under_test
    finally:
        node_under_test.remove()


@pytest.fixture(scope="module")
def shared_nodes(nodes: tuple[NodeDriver, Fabric]) -> Iterator[list[NodeUnderTest]]:
    """VMs boot slowly, so tests share one node, which may be running already."""
    shared_nodes: list[NodeUnderTest] = []
    yield shared_nodes
    for node_under_test in shared_nodes:
        node_under_test.remove()


@pytest.fixture
def node_under_test(nodes: tuple[NodeDriver, Fabric], shared_nodes: list[NodeUnderTest]) -> Iterator[NodeUnderTest]:
    """A node that is stopped, or running at `source`."""
    node_under_test = shared_nodes[0] if shared_nodes else NodeUnderTest(*nodes, IMAGE)
    if not node_under_test.vm:
        try:
            yield node_under_test
        finally:
            node_under_test.remove()
        return
    shared_nodes[:] = [node_under_test]
    if node_under_test.driver.alive(node_under_test.destination):
        node_under_test.source, node_under_test.destination = node_under_test.destination, node_under_test.source
    node_under_test.plug()
    yield node_under_test
    if node_under_test.hold:
        node_under_test.hold.drop()
        node_under_test.hold = None


@pytest.fixture
def running(node_under_test: NodeUnderTest) -> NodeUnderTest:
    """A running node that this machine can move."""
    if not node_under_test.driver.alive(node_under_test.source):
        node_under_test.driver.start(node_under_test.source)
    if reason := node_under_test.driver.move_obstacle(node_under_test.source, node_under_test.destination):
        pytest.skip(reason)
    return node_under_test


def test_node_starts_and_stops(node_under_test: NodeUnderTest) -> None:
    driver, placement = node_under_test.driver, node_under_test.source
    driver.stop(placement)
    assert not driver.alive(placement)
    driver.stop(placement)
    driver.start(placement)
    assert driver.alive(placement)
    usage = driver.usage(placement)
    assert usage.processes >= 1 and usage.memory > 0 and usage.cpu >= 0
    driver.stop(placement)
    assert not driver.alive(placement)
    driver.stop(placement)
    driver.start(placement)
    assert driver.alive(placement)


def test_move_obstacle_changes_nothing(node_under_test: NodeUnderTest) -> None:
    if not node_under_test.driver.alive(node_under_test.source):
        node_under_test.driver.start(node_under_test.source)
    assert isinstance(node_under_test.driver.move_obstacle(node_under_test.source, node_under_test.destination), str)
    measured = node_under_test.mover().predict()
    assert measured.bytes > 0 and measured.overhead >= 0
    node_under_test.assert_runs_only_at(node_under_test.source)


def test_node_moves_with_its_state(running: NodeUnderTest) -> None:
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_only_at(running.destination)


def test_precopy_rounds_send_dirty_memory(running: NodeUnderTest) -> None:
    mover = running.mover()
    if not mover.can_round():
        pytest.skip("CRIU alone sends all memory while the node is frozen")
    prepare, *rest = running.steps(mover)
    prepare()
    assert [mover.round(number).number for number in (1, 2)] == [1, 2]
    for step in rest:
        step()
    running.finish(mover)
    running.assert_runs_only_at(running.destination)


@pytest.mark.parametrize("new_mover", [False, True], ids=["same mover", "new mover"])
@pytest.mark.parametrize("steps_done", range(5))
def test_move_rolls_back_after_each_step(running: NodeUnderTest, steps_done: int, new_mover: bool) -> None:
    first = running.mover()
    for step in running.steps(first)[:steps_done]:
        step()
    mover = running.mover() if new_mover else first
    rolled_back = running.roll_back(mover)
    assert rolled_back != (running.vm and steps_done >= 3)  # libvirt cannot roll back from here
    if rolled_back:
        running.roll_back(mover)
    running.assert_runs_only_at(running.source if rolled_back else running.destination)
    first.close()
    running.assert_runs_only_at(running.source if rolled_back else running.destination)


def test_new_mover_finishes_a_committed_move(running: NodeUnderTest) -> None:
    first = running.mover()
    for step in running.steps(first):
        step()
    assert running.hold
    running.hold.drop()
    running.hold = None
    mover = running.mover()
    running.finish(mover)
    running.finish(mover)
    running.assert_runs_only_at(running.destination)
    first.close()
    running.assert_runs_only_at(running.destination)


def test_node_moves_again_after_a_rollback(running: NodeUnderTest) -> None:
    mover = running.mover()
    for step in running.steps(mover):
        step()
    if not running.roll_back(mover):
        running.source, running.destination = running.destination, running.source
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_only_at(running.destination)


def test_ended_node_is_not_alive(running: NodeUnderTest) -> None:
    running.driver.stop(running.source)
    waiting.until(lambda: not running.driver.alive(running.source), "its end")


def test_container_root_cannot_write_kernel_settings_before_and_after_a_move(running: NodeUnderTest) -> None:
    """Containers have no user namespace, so their root is the machine's root to /proc."""
    if not isinstance(running.driver, ContainerDriver):
        pytest.skip("a virtual machine has a kernel of its own, and the fake has none")
    written = "/proc/sysrq-trigger /proc/sys/kernel/threads-max /proc/sys/kernel/core_pattern /proc/irq/*/smp_affinity"
    script = f"""
for f in {written}; do (: >>$f) 2>/dev/null && echo $f can be written; done
for f in /proc/kcore /proc/keys /proc/timer_list; do head -c1 $f 2>/dev/null | od -An -c; done
for d in /proc/acpi /proc/scsi /sys/firmware; do
ls -A $d 2>/dev/null; (: >$d/x) 2>/dev/null && echo $d can be written; done
awk '$5 ~ "^/(proc|sys)" {{print $5, substr($6, 1, 2)}}' /proc/self/mountinfo | sort >&2
"""
    outputs = [_run_as_root(running.source, script)]
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    outputs.append(_run_as_root(running.destination, script))
    assert [ended.stdout for ended in outputs] == [b"", b""]
    assert b"/proc/sys ro" in outputs[0].stderr and outputs[0].stderr == outputs[1].stderr
    assert not Path("/proc/sysrq-trigger").exists() or b"/proc/sysrq-trigger ro" in outputs[0].stderr


_CGROUPS = """
set -e
cut -d: -f3 /proc/self/cgroup | sort -u >&2
cd /sys/fs/cgroup && find . -maxdepth 1 >&2
memory=$(find . -name memory.limit_in_bytes -o -name memory.max)
cat $memory $(find . -name cpuset.cpus) >&2; head -n1 /proc/meminfo >&2; grep -c ^processor /proc/cpuinfo >&2
for file in $memory cgroup.procs ./new; do (echo 0 >$file) 2>/dev/null && echo $file can be written; done; true
"""


def test_programs_see_their_nodes_limits_and_the_same_ones_after_a_move(running: NodeUnderTest) -> None:
    """Its cgroups, read-only and as the roots of all, and its memory in /proc."""
    if not isinstance(running.driver, ContainerDriver):
        pytest.skip("a virtual machine has a kernel of its own, and the fake has none")
    before = _run_as_root(running.source, _CGROUPS)
    lines = before.stderr.decode().splitlines()
    assert before.stdout == b"" and lines[:2] == ["/", "."], before.stderr
    assert str(running.source.node.memory) in lines, before.stderr
    if not shown_proc.obstacle():
        assert f"{running.source.node.memory // 1024} kB" in before.stderr.decode(), before.stderr
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    assert _run_as_root(running.destination, _CGROUPS) == before


_DENIED_CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
calls = {"keyctl": (250, 0, 0, 0), "io_uring_setup": (425, 1, 0), "perf_event_open": (298, 0, 0, -1, -1, 0)}
for name, call in {**calls, "unshare": (272, 0x10000000)}.items():
    print(name, "denied" if libc.syscall(*call) < 0 and ctypes.get_errno() == 1 else "allowed", file=sys.stderr)
print("processes", "run" if os.fork() == 0 or os.wait()[1] == 0 else "fail", file=sys.stderr)
"""


def test_seccomp_filters_of_a_container_move_with_it(running: NodeUnderTest) -> None:
    if not isinstance(running.driver, ContainerDriver):
        pytest.skip("only containers share the machine's kernel")
    if seccomp.profile() is None:
        pytest.skip("this process is under a seccomp filter, or the runtime has no libseccomp")
    script = f"{sys.executable} -c '{_DENIED_CALLS}'; grep ^Seccomp: /proc/1/status"
    before = _run_as_root(running.source, script)
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    after = _run_as_root(running.destination, script)
    assert before == after
    assert before.stdout == b"Seccomp:\t2\n", before.stderr
    assert before.stderr.count(b"denied") == 4 and b"allowed" not in before.stderr


def test_qemu_runs_unprivileged(running: NodeUnderTest) -> None:
    """A guest that escapes from QEMU has no privileges, at both ends of a move."""
    if not isinstance(running.driver, VmDriver):
        pytest.skip("only virtual machines have a QEMU")
    _assert_unprivileged(running.driver, running.source)
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    _assert_unprivileged(running.driver, running.destination)


def test_qemu_opens_the_disk_of_a_node(node_under_test: NodeUnderTest, readable_directory: Path) -> None:
    if not isinstance(node_under_test.driver, VmDriver):
        pytest.skip("only virtual machines have disks")
    if not shutil.which("genisoimage"):
        pytest.skip("there is no genisoimage (make setup-vm)")
    image = readable_directory / "image.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(image), "8M"], check=True)
    driver, placement = node_under_test.driver, node_under_test.source.model_copy(update={"image": str(image)})
    try:
        driver.stop(placement)
        driver.prepare_host(placement)
        driver._make_disk(placement, inspect(image))
        driver._define(driver.daemon(placement.host).connect(), placement, inspect(image))
        _assert_unprivileged(driver, placement)
    finally:
        driver.stop(placement)


def _assert_unprivileged(driver: VmDriver, placement: Placement) -> None:
    pid = driver.daemon(placement.host).qemu(placement.node.name)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"] == status["Gid"] == [str(QEMU_UID)] * 4
    assert not set(status["Groups"]) - {str(QEMU_UID)}
    assert int(status["CapEff"][0], 16) == int(status["CapPrm"][0], 16) == int(status["CapAmb"][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])


def _run_as_root(placement: Placement, script: str) -> Ended:
    node = AgentEndpoint(placement.netns, placement.node.address, placement.key.get_secret_value())
    return node.run(
        ["/bin/sh", "-c", script], Owner(uid=0, gid=0, home="/", cwd="/"), {"PATH": "/usr/bin:/bin"}, waiting.bound()
    )


@pytest.fixture
def readable_directory() -> Iterator[Path]:
    """A directory that all users can read."""
    with tempfile.TemporaryDirectory(prefix="wherry-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("replaced", [False, True])
def test_move_never_substitutes_another_file(
    nodes: tuple[NodeDriver, Fabric], readable_directory: Path, replaced: bool, request: pytest.FixtureRequest
) -> None:
    if not isinstance(nodes[0], ContainerDriver):
        pytest.skip("only containers hold files of their host")
    running: NodeUnderTest = request.getfixturevalue("running")
    file, secret = readable_directory / "file", readable_directory / "secret"
    file.write_text("mine")
    secret.write_text("root")
    running.driver.stop(running.source)
    running.source, running.destination = (
        placement.model_copy(update={"binds": (str(readable_directory),)})
        for placement in (running.source, running.destination)
    )
    running.driver.start(running.source)
    script = "exec 8<file 9<deleted; rm deleted; setsid sleep 300 >/dev/null 2>&1 &"
    (readable_directory / "deleted").write_text("gone")
    node = AgentEndpoint(running.source.netns, running.source.node.address, running.source.key.get_secret_value())
    owner = Owner(uid=0, gid=0, home="/", cwd=str(readable_directory))
    assert node.run(["/bin/sh", "-c", script], owner, {"PATH": "/usr/bin:/bin"}, waiting.bound()).code == 0
    # The processes are root's, because not every machine can dump others; the placements name a user as owner.
    users_placements = [
        placement.model_copy(update={"user": "65534:65534:"}) for placement in (running.source, running.destination)
    ]
    mover = running.driver.mover(*users_placements)
    *before, restore = running.steps(mover)
    for step in before:
        step()
    if replaced:
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(Failed, match="replaced during"):
            restore()
        running.roll_back(mover)
        running.assert_runs_only_at(running.source)
    else:
        restore()
        running.finish(mover)
        running.assert_runs_only_at(running.destination)


@pytest.mark.parametrize("shared", ["", "socket", "@socket"])
def test_unix_sockets_are_named_in_the_nodes_namespace(
    nodes: tuple[NodeDriver, Fabric], readable_directory: Path, shared: str, request: pytest.FixtureRequest
) -> None:
    """CRIU recreates socket names as root, so in a shared directory a user's symbolic link could redirect it. A name
    that begins with @ looks like an abstract one."""
    if not isinstance(nodes[0], ContainerDriver):
        pytest.skip("only containers share directories with their host")
    running: NodeUnderTest = request.getfixturevalue("running")
    running.driver.stop(running.source)
    running.source, running.destination = (
        placement.model_copy(update={"binds": (str(readable_directory),)})
        for placement in (running.source, running.destination)
    )
    running.driver.start(running.source)
    directory, name = (str(readable_directory), shared) if shared else ("/tmp/inner", "socket")  # noqa: S108 - the node's own
    program = (
        f"import os, socket, time; os.makedirs({directory!r}, exist_ok=True); os.chdir({directory!r}); "
        f"s = socket.socket(socket.AF_UNIX); s.bind({name!r}); s.listen(); time.sleep(300)"
    )
    # The machine's Python, because nodes do not see a checkout below /tmp.
    script = f'setsid /usr/bin/python3 -c "{program}" >/dev/null 2>&1 & '
    script += f"while [ ! -S {directory}/{name} ]; do kill -0 $! || exit 9; sleep 0.05; done"
    node = AgentEndpoint(running.source.netns, running.source.node.address, running.source.key.get_secret_value())
    owner = Owner(uid=0, gid=0, home="/", cwd="/")
    assert node.run(["/bin/bash", "-c", script], owner, {"PATH": "/usr/bin:/bin"}, 60).code == 0
    users_placements = [
        placement.model_copy(update={"user": "65534:65534:"}) for placement in (running.source, running.destination)
    ]
    mover = running.driver.mover(*users_placements)
    if shared:
        with pytest.raises(Failed, match="Unix socket"):
            for step in running.steps(mover):
                step()
        running.roll_back(mover)
        running.assert_runs_only_at(running.source)
    else:
        for step in running.steps(mover):
            step()
        running.finish(mover)
        running.assert_runs_only_at(running.destination)
