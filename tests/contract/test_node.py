"""What every kind of node does, by the words of its protocol; and that its move can be taken back from every step."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from conftest import IMAGE
from wherry.base.errors import Failed
from wherry.fabric.protocol import Fabric, Hold
from wherry.job.agent_client import AgentEndpoint, Ended
from wherry.model.network import HEAD_INDEX, Port, address_of, mac_of, network_of
from wherry.model.owner import Owner
from wherry.model.records import Node
from wherry.node.container import seccomp
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver, NodeMover, Placement
from wherry.node.vm.disk import inspect
from wherry.node.vm.emulated.driver import VmDriver
from wherry.node.vm.qemu_user import QEMU_UID


class Stand:
    """One node with a port at each of two hosts, the network's part of its moves, and the head that reaches it."""

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
        self.here, self.there = self._place("a1"), self._place("b1")
        self.hold: Hold | None = None
        self.plug()

    def plug(self) -> None:
        """The port of where the node is to be."""
        self.fabric.port_up(self.port(self.here))
        self.fabric.port_plug(self.port(self.here))

    def _place(self, host: str) -> Placement:
        node = Node(
            name="c-0", cluster="c", index=0, host=host, cpus=1, memory=(256 if self.vm else 128) * 2**20,
            address=address_of(self.network, 0), mac=mac_of(self.network, 0),
        )  # fmt: skip
        cgroup, key = f"{self.fabric.cgroup(host)}/{node.name}", SecretStr("ab" * 32)
        hosts_file = "127.0.0.1 localhost\n"
        place = Placement(node=node, host=host, netns="", cgroup=cgroup, key=key, user="0:0:", hosts_file=hosts_file)
        place = place.model_copy(update={"image": self.image})
        port = self.port(place)
        netns = self.fabric.port_netns(self.head if self.vm else port)
        return place.model_copy(update={"netns": netns, "device": self.fabric.port_device(port)})

    def port(self, place: Placement) -> Port:
        node = place.node
        return Port(
            owner=node.name, index=0, host=place.host, network=self.network, address=node.address, mac=node.mac,
            tap=self.vm,
        )  # fmt: skip

    def mover(self) -> NodeMover:
        return self.driver.mover(self.here, self.there)

    def steps(self, mover: NodeMover) -> list[Callable[[], object]]:
        """The steps before the commit, the network's with them."""

        def prepare() -> None:
            self.fabric.port_up(self.port(self.there))
            mover.prepare()
            self.hold = self.fabric.hold(self.port(self.there))

        def freeze() -> None:
            mover.freeze()
            assert self.hold
            self.hold.divert()
            self.fabric.port_unplug(self.port(self.here))

        return [prepare, freeze, mover.transfer, mover.restore]

    def finish(self, mover: NodeMover) -> None:
        mover.release()
        if self.hold:
            self.hold.release()
            self.hold.drop()
        else:
            self.fabric.port_plug(self.port(self.there))
        mover.thaw()
        self.fabric.port_down(self.port(self.here))
        mover.close()
        self.hold = None

    def take_back(self, mover: NodeMover) -> bool:
        """False when the engine had switched by itself: then the move goes on."""
        if mover.switched():
            self.fabric.port_unplug(self.port(self.here))
            self.finish(mover)
            return False
        if self.hold:
            self.hold.drop()
        self.fabric.port_plug(self.port(self.here))
        mover.roll_back()
        self.fabric.port_down(self.port(self.there))
        mover.close()
        self.hold = None
        return True

    def assert_runs_at(self, place: Placement) -> None:
        other = self.there if place is self.here else self.here
        assert self.driver.alive(place) and not self.driver.alive(other)
        assert self.driver.usage(place).processes >= 1

    def remove(self) -> None:
        for place in (self.here, self.there):
            self.driver.stop(place)
            self.fabric.port_down(self.port(place))
        self.fabric.port_down(self.head)
        self.fabric.network_down(self.network)


@pytest.fixture(scope="module")
def kept(nodes: tuple[NodeDriver, Fabric]) -> Iterator[list[Stand]]:
    """Virtual machines take long to boot: they share one stand, with a node that may run already."""
    kept: list[Stand] = []
    yield kept
    for stand in kept:
        stand.remove()


@pytest.fixture
def stand(nodes: tuple[NodeDriver, Fabric], kept: list[Stand]) -> Iterator[Stand]:
    """A node that does not run yet, or runs at `here`."""
    stand = kept[0] if kept else Stand(*nodes, IMAGE)
    if not stand.vm:
        try:
            yield stand
        finally:
            stand.remove()
        return
    kept[:] = [stand]
    if stand.driver.alive(stand.there):
        stand.here, stand.there = stand.there, stand.here
    stand.plug()
    yield stand
    if stand.hold:
        stand.hold.drop()
        stand.hold = None


@pytest.fixture
def running(stand: Stand) -> Stand:
    """A node that runs and that this machine can move."""
    if not stand.driver.alive(stand.here):
        stand.driver.start(stand.here)
    if reason := stand.driver.move_obstacle(stand.here, stand.there):
        pytest.skip(reason)
    return stand


def test_node_starts_and_stops(stand: Stand) -> None:
    driver, place = stand.driver, stand.here
    driver.stop(place)
    assert not driver.alive(place)
    driver.stop(place)
    driver.start(place)
    assert driver.alive(place)
    usage = driver.usage(place)
    assert usage.processes >= 1 and usage.memory > 0 and usage.cpu >= 0
    driver.stop(place)
    assert not driver.alive(place)
    driver.stop(place)
    driver.start(place)
    assert driver.alive(place)


def test_move_obstacle_changes_nothing(stand: Stand) -> None:
    if not stand.driver.alive(stand.here):
        stand.driver.start(stand.here)
    assert isinstance(stand.driver.move_obstacle(stand.here, stand.there), str)
    size, seconds = stand.mover().predict()
    assert size > 0 and seconds >= 0
    stand.assert_runs_at(stand.here)


def test_node_moves_with_its_state(running: Stand) -> None:
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_at(running.there)


def test_precopy_rounds_send_dirty_memory(running: Stand) -> None:
    mover = running.mover()
    if not mover.can_round():
        pytest.skip("this machine cannot tell which memory was written (soft-dirty)")
    prepare, *rest = running.steps(mover)
    prepare()
    assert [mover.round(number).number for number in (1, 2)] == [1, 2]
    for step in rest:
        step()
    running.finish(mover)
    running.assert_runs_at(running.there)


@pytest.mark.parametrize("anew", [False, True], ids=["same mover", "mover made anew"])
@pytest.mark.parametrize("done", range(5))
def test_move_rolls_back_after_each_step(running: Stand, done: int, anew: bool) -> None:
    first = running.mover()
    for step in running.steps(first)[:done]:
        step()
    mover = running.mover() if anew else first
    back = running.take_back(mover)
    assert back != (running.vm and done >= 3)  # libvirt's point of no return
    if back:
        running.take_back(mover)
    running.assert_runs_at(running.here if back else running.there)
    first.close()
    running.assert_runs_at(running.here if back else running.there)


def test_new_mover_finishes_a_committed_move(running: Stand) -> None:
    first = running.mover()
    for step in running.steps(first):
        step()
    assert running.hold
    running.hold.drop()
    running.hold = None
    mover = running.mover()
    running.finish(mover)
    running.finish(mover)
    running.assert_runs_at(running.there)
    first.close()
    running.assert_runs_at(running.there)


def test_node_moves_again_after_a_rollback(running: Stand) -> None:
    mover = running.mover()
    for step in running.steps(mover):
        step()
    if not running.take_back(mover):
        running.here, running.there = running.there, running.here
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_at(running.there)


def test_ended_node_is_not_alive(running: Stand) -> None:
    running.driver.stop(running.here)
    deadline = time.monotonic() + 5
    while running.driver.alive(running.here):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_container_root_cannot_write_kernel_settings_before_and_after_a_move(running: Stand) -> None:
    """It has no user namespace of its own, so its uid is the machine's root to /proc."""
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
    seen = [_as_root(running.here, script)]
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    seen.append(_as_root(running.there, script))
    assert [ended.stdout for ended in seen] == [b"", b""]
    assert b"/proc/sys ro" in seen[0].stderr and seen[0].stderr == seen[1].stderr
    assert not Path("/proc/sysrq-trigger").exists() or b"/proc/sysrq-trigger ro" in seen[0].stderr


_DENIED_CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
calls = {"keyctl": (250, 0, 0, 0), "io_uring_setup": (425, 1, 0), "perf_event_open": (298, 0, 0, -1, -1, 0)}
for name, call in {**calls, "unshare": (272, 0x10000000)}.items():
    print(name, "denied" if libc.syscall(*call) < 0 and ctypes.get_errno() == 1 else "allowed", file=sys.stderr)
print("processes", "run" if os.fork() == 0 or os.wait()[1] == 0 else "fail", file=sys.stderr)
"""


def test_seccomp_filters_of_a_container_move_with_it(running: Stand) -> None:
    if not isinstance(running.driver, ContainerDriver):
        pytest.skip("only containers share the machine's kernel")
    if seccomp.profile() is None:
        pytest.skip("this process is under a seccomp filter, or the runtime has no libseccomp")
    script = f"{sys.executable} -c '{_DENIED_CALLS}'; grep ^Seccomp: /proc/1/status"
    before = _as_root(running.here, script)
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    after = _as_root(running.there, script)
    assert before == after
    assert before.stdout == b"Seccomp:\t2\n", before.stderr
    assert before.stderr.count(b"denied") == 4 and b"allowed" not in before.stderr


def test_qemu_runs_unprivileged(running: Stand) -> None:
    """A guest that breaks out of it finds itself as a user without rights, at both ends of a move."""
    if not isinstance(running.driver, VmDriver):
        pytest.skip("only virtual machines have a QEMU")
    _assert_harmless(running.driver, running.here)
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    _assert_harmless(running.driver, running.there)


def test_qemu_opens_the_disk_of_a_node(stand: Stand, shown: Path) -> None:
    if not isinstance(stand.driver, VmDriver):
        pytest.skip("only virtual machines have disks")
    if not shutil.which("genisoimage"):
        pytest.skip("there is no genisoimage (make setup-vm)")
    image = shown / "image.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(image), "8M"], check=True)
    driver, place = stand.driver, stand.here.model_copy(update={"image": str(image)})
    try:
        driver.stop(place)
        driver.prepare_host(place)
        driver._make_disk(place, inspect(image))
        driver._define(driver.daemon(place.host).connect(), place, inspect(image))
        _assert_harmless(driver, place)
    finally:
        driver.stop(place)


def _assert_harmless(driver: VmDriver, place: Placement) -> None:
    pid = driver.daemon(place.host).qemu(place.node.name)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"] == status["Gid"] == [str(QEMU_UID)] * 4
    assert not set(status["Groups"]) - {str(QEMU_UID)}
    assert int(status["CapEff"][0], 16) == int(status["CapPrm"][0], 16) == int(status["CapAmb"][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])


def _as_root(place: Placement, script: str) -> Ended:
    node = AgentEndpoint(place.netns, place.node.address, place.key.get_secret_value())
    return node.run(["/bin/sh", "-c", script], Owner(uid=0, gid=0, home="/", cwd="/"), {"PATH": "/usr/bin:/bin"}, 30)


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory that any user may enter."""
    with tempfile.TemporaryDirectory(prefix="wherry-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("exchanged", [False, True])
def test_move_never_substitutes_another_file(
    nodes: tuple[NodeDriver, Fabric], shown: Path, exchanged: bool, request: pytest.FixtureRequest
) -> None:
    if not isinstance(nodes[0], ContainerDriver):
        pytest.skip("only containers hold files of their host")
    running: Stand = request.getfixturevalue("running")
    file, secret = shown / "file", shown / "secret"
    file.write_text("mine")
    secret.write_text("root")
    running.driver.stop(running.here)
    running.here, running.there = (
        place.model_copy(update={"binds": (str(shown),)}) for place in (running.here, running.there)
    )
    running.driver.start(running.here)
    script = "exec 8<file 9<deleted; rm deleted; setsid sleep 300 >/dev/null 2>&1 &"
    (shown / "deleted").write_text("gone")
    node = AgentEndpoint(running.here.netns, running.here.node.address, running.here.key.get_secret_value())
    who = Owner(uid=0, gid=0, home="/", cwd=str(shown))
    assert node.run(["/bin/sh", "-c", script], who, {"PATH": "/usr/bin:/bin"}, 30).code == 0
    # Processes of root's, as not every machine can dump others; the mover believes that the node is a user's.
    theirs = [place.model_copy(update={"user": "65534:65534:"}) for place in (running.here, running.there)]
    mover = running.driver.mover(*theirs)
    *before, restore = running.steps(mover)
    for step in before:
        step()
    if exchanged:
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(Failed, match="replaced during"):
            restore()
        running.take_back(mover)
        running.assert_runs_at(running.here)
    else:
        restore()
        running.finish(mover)
        running.assert_runs_at(running.there)


@pytest.mark.parametrize("shared", ["", "socket", "@socket"])
def test_unix_sockets_are_named_in_the_nodes_namespace(
    nodes: tuple[NodeDriver, Fabric], shown: Path, shared: str, request: pytest.FixtureRequest
) -> None:
    """CRIU makes the names again as root: where others can put a link, they would be given what that leads to. A name
    that begins with @ looks like an abstract one."""
    if not isinstance(nodes[0], ContainerDriver):
        pytest.skip("only containers share directories with their host")
    running: Stand = request.getfixturevalue("running")
    running.driver.stop(running.here)
    running.here, running.there = (
        place.model_copy(update={"binds": (str(shown),)}) for place in (running.here, running.there)
    )
    running.driver.start(running.here)
    directory, name = (str(shown), shared) if shared else ("/tmp/inner", "socket")  # noqa: S108 - the node's own
    program = (
        f"import os, socket, time; os.makedirs({directory!r}, exist_ok=True); os.chdir({directory!r}); "
        f"s = socket.socket(socket.AF_UNIX); s.bind({name!r}); s.listen(); time.sleep(300)"
    )
    # The machine's Python: a node does not see a checkout that lies below /tmp.
    script = f'setsid /usr/bin/python3 -c "{program}" >/dev/null 2>&1 & '
    script += f"while [ ! -S {directory}/{name} ]; do kill -0 $! || exit 9; sleep 0.05; done"
    node = AgentEndpoint(running.here.netns, running.here.node.address, running.here.key.get_secret_value())
    who = Owner(uid=0, gid=0, home="/", cwd="/")
    assert node.run(["/bin/bash", "-c", script], who, {"PATH": "/usr/bin:/bin"}, 60).code == 0
    theirs = [place.model_copy(update={"user": "65534:65534:"}) for place in (running.here, running.there)]
    mover = running.driver.mover(*theirs)
    if shared:
        with pytest.raises(Failed, match="Unix socket"):
            for step in running.steps(mover):
                step()
        running.take_back(mover)
        running.assert_runs_at(running.here)
    else:
        for step in running.steps(mover):
            step()
        running.finish(mover)
        running.assert_runs_at(running.there)
