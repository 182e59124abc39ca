"""What every kind of node does, by the words of its protocol; and that its move can be taken back from every step."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from wherry.base.errors import Failed
from wherry.fabric.protocol import Fabric, Hold
from wherry.job.agent_client import AgentEndpoint
from wherry.model.network import HEAD_INDEX, Port, address_of, mac_of, network_of
from wherry.model.objects import Node
from wherry.model.owner import Owner
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver, NodeMover, Placement


class Stand:
    """One node with a port at each of two hosts, the network's part of its moves, and the head that reaches it."""

    def __init__(self, driver: NodeDriver, fabric: Fabric) -> None:
        self.driver, self.fabric = driver, fabric
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
    stand = kept[0] if kept else Stand(*nodes)
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


def test_start_and_stop(stand: Stand) -> None:
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


def test_saying_whether_it_moves_changes_nothing(stand: Stand) -> None:
    if not stand.driver.alive(stand.here):
        stand.driver.start(stand.here)
    assert isinstance(stand.driver.move_obstacle(stand.here, stand.there), str)
    size, seconds = stand.mover().predict()
    assert size > 0 and seconds >= 0
    stand.assert_runs_at(stand.here)


def test_move(running: Stand) -> None:
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_at(running.there)


def test_rounds(running: Stand) -> None:
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
def test_taken_back_after_each_step(running: Stand, done: int, anew: bool) -> None:
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


def test_finished_by_a_mover_made_anew(running: Stand) -> None:
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


def test_moves_on_after_it_was_taken_back(running: Stand) -> None:
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


def test_a_node_that_ended_is_not_alive(running: Stand) -> None:
    running.driver.stop(running.here)
    deadline = time.monotonic() + 5
    while running.driver.alive(running.here):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory that any user may enter."""
    with tempfile.TemporaryDirectory(prefix="wherry-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_users_process_never_gets_another_file_by_a_move(
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
def test_sockets_of_a_users_process_have_names_of_the_nodes_own(
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
    script = f'setsid {sys.executable} -c "{program}" >/dev/null 2>&1 & '
    script += f"while [ ! -S {directory}/{name} ]; do sleep 0.05; done"
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
