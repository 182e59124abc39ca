"""The daemon is killed at each phase of a container's move; the next one finishes the move or rolls it back. With fakes
this is tested at every call (tests/unit/move/test_state_machine.py); here the real driver must find all parts of a node
by names alone. VMs are not covered, because libvirt connections do not survive the fork that is killed here."""

from __future__ import annotations

import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract_names import INSTANCE

import waiting
from wherry.cluster.clusters import Clusters
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.owner import Owner
from wherry.model.records import CONTROL_PORT
from wherry.model.spec.cluster import ClusterSpec
from wherry.move.moves import Moves
from wherry.node.container.criu import probe as criu_probe
from wherry.node.netns_socket import in_netns
from wherry.node.protocol import NodeDriver
from wherry.store.store import Store

OWNER = Owner(uid=0, gid=0, home="/", cwd="/")


class Daemon:
    """The state of a starting daemon: stored records, and names derived from them."""

    def __init__(self, path: Path, driver: NodeDriver, fabric: Fabric) -> None:
        self.driver, self.fabric = driver, fabric
        self.store = Store(path)
        self.placements = Placements(self.store, fabric)
        self.clusters = Clusters(self.store, fabric, {"container": driver})
        self.moves = Moves(self.store, fabric, {"container": driver}, self.placements)


@pytest.fixture
def daemon(nodes: tuple[NodeDriver, Fabric], tmp_path: Path) -> Iterator[Callable[[], Daemon]]:
    """Makes daemons with the same store; a cluster of two nodes on hosts a1 and a2 is up."""
    driver, fabric = nodes
    if not criu_probe.find().works:
        pytest.skip(criu_probe.find().reason)

    def start() -> Daemon:
        return Daemon(tmp_path / "state.db", driver, fabric)

    first = start()
    first.clusters.apply(first.clusters.plan(ClusterSpec(name="hello", nodes=2, memory="128MiB"), OWNER))
    yield start
    start().clusters.down("hello")


def killed(action: Callable[[], object]) -> bool:
    """Runs `action` in a child process; returns True if it was killed.

    The child has none of this process's threads, so it waits until none holds a lock that the child may need.
    """
    waiting.until(lambda: not any(thread.name == "paths" for thread in threading.enumerate()), "the end of a thread")
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return os.WIFSIGNALED(status := os.waitpid(child, 0)[1]) and os.WTERMSIG(status) == signal.SIGKILL


PHASES = ("prepare", "rounds", "freeze", "transfer", "restore", "commit", "thaw")
POST_COPY = MoveOptions(parameters=MigrationParameters(mode="post-copy"), max_rounds=0, bandwidth=8_000_000)
"""So slow that the node's memory is not there yet when its daemon is killed after the thaw."""


@pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module")
@pytest.mark.parametrize(
    ("phase", "options"),
    [*((phase, MoveOptions()) for phase in PHASES), *((phase, POST_COPY) for phase in PHASES[3:])],
    ids=[*PHASES, *(f"{phase}, post-copy" for phase in PHASES[3:])],
)
def test_new_daemon_recovers_a_move_killed_at_each_step(
    daemon: Callable[[], Daemon], phase: str, options: MoveOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    assert killed(lambda: daemon().moves.run("hello-1", "b1", options, fault=f"{phase}:kill"))
    next_one = daemon()
    assert len(next_one.store.moves(unfinished=True)) == 1
    next_one.moves.recover()
    assert not next_one.store.moves(unfinished=True)

    committed = phase in ("commit", "thaw")
    host, other = ("b1", "a2") if committed else ("a2", "b1")
    node = next_one.store.node("hello-1")
    assert node is not None and (node.host, node.state) == (host, "running")
    assert next_one.driver.alive(next_one.placements.placementmentment(node))
    assert not next_one.driver.alive(next_one.placements.placementmentment(node, other))
    assert not os.path.exists(next_one.placements.placementmentment(node, other).netns)
    assert not (INSTANCE.run / "nodes" / f"hello-1@{other}").exists()

    peer = next_one.store.node("hello-0")
    assert peer is not None
    in_netns(
        next_one.placements.placementmentment(peer).netns,
        lambda: socket.create_connection((node.address, CONTROL_PORT), timeout=waiting.bound()).close(),
    )
