"""The guard of a host: it stops nodes once when their time is over, and an agent that may do so has them continue."""

from __future__ import annotations

import threading
import types
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from ssh_world import spec

from wherry.agent import guard
from wherry.agent.__main__ import HostEntrance
from wherry.agent.guard import GuardedNodes
from wherry.agent.lease import Lease, clock
from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.model.spec.fabric import FabricSpec


class Host:
    """A cgroup and the tunnels of a namespace, which record the calls."""

    prefix, name = "wherry-none", "none"

    def __init__(self, run: Path) -> None:
        self.run, self.done, self.stuck = run, list[str](), False

    def exists(self) -> bool:
        return True

    def freeze(self) -> None:
        if self.stuck:
            raise Failed(Code.TIMED_OUT, "it did not freeze")
        self.done.append("freeze")

    def thaw(self) -> None:
        self.done.append("thaw")

    def names(self, prefix: str) -> list[str]:
        return [f"{prefix}1"]

    def up(self, name: str) -> None:
        self.done.append(f"{name} up")

    def down(self, name: str) -> None:
        self.done.append(f"{name} down")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(guard, "Cgroup", lambda _: made)
    monkeypatch.setattr(guard.named_netns, "exists", lambda _: True)
    monkeypatch.setattr(guard.netns_links, "inside", lambda _, act: act(made))
    return made


@pytest.fixture
def nodes(host: Host) -> GuardedNodes:
    return GuardedNodes(cast(Instance, host), "h1", "wherry-none/h1")


STOPPED = ["freeze", "x1 down", "y1 down"]


def test_nodes_run_until_their_time_is_over(nodes: GuardedNodes, host: Host) -> None:
    nodes.stop_in_time()
    nodes.prolong(clock() + 100)
    nodes.stop_in_time()
    assert host.done == []
    nodes.prolong(clock() - 1)
    nodes.stop_in_time()
    nodes.stop_in_time()
    assert host.done == STOPPED


def test_nodes_that_stand_are_not_prolonged_but_go_on(nodes: GuardedNodes, host: Host) -> None:
    nodes.prolong(clock() - 1)
    nodes.stop_in_time()
    nodes.prolong(clock() + 100)  # of an agent for a host that is declared lost
    assert host.done == STOPPED
    assert nodes.go_on(clock() + 100) and host.done == [*STOPPED, "x1 up", "y1 up", "thaw"]
    assert not nodes.go_on(clock() + 100) and host.done == [*STOPPED, "x1 up", "y1 up", "thaw"]
    nodes.stop_in_time()
    assert len(host.done) == 6


def test_what_does_not_stand_is_tried_again(nodes: GuardedNodes, host: Host) -> None:
    nodes.prolong(clock() - 1)
    host.stuck = True
    with pytest.raises(Failed):
        nodes.stop_in_time()
    host.stuck = False
    nodes.stop_in_time()
    assert host.done == STOPPED


def test_one_guard_guards(nodes: GuardedNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[object]()
    monkeypatch.setattr(guard.subprocess, "Popen", lambda words, **_: started.append(words[-4:]))
    lock = guard._lock(nodes)
    guard.start(nodes)
    assert lock is not None and not started
    guard.run(nodes)  # ends at once
    guard.os.close(lock)
    guard.start(nodes)
    assert len(started) == 1


@pytest.mark.parametrize("lease", ["10s", "2d", 60])
def test_lease_that_is_none_is_refused(lease: object) -> None:
    with pytest.raises(ValidationError, match="lease|unit|duration"):
        FabricSpec.model_validate(spec().model_dump(mode="json", exclude_none=True) | {"lease": lease})


def test_lease_is_for_hosts_by_ssh() -> None:
    host = {"name": "h1", "site": "a", "cores": 2, "memory": "1GiB"}
    file = {"kind": "fabric", "version": 1, "name": "f", "sites": [{"name": "a"}], "hosts": [host], "lease": "1m"}
    with pytest.raises(ValidationError, match="only for driver: ssh"):
        FabricSpec.model_validate(file)


def test_an_agent_whose_nodes_stand_makes_room_for_the_next_one(host: Host, nodes: GuardedNodes) -> None:
    assert nodes.prolong(clock() + 100)
    assert nodes.prolong(clock() - 1)
    nodes.stop_in_time()
    assert not nodes.prolong(clock() + 100) and host.done[0] == "freeze" and "thaw" not in host.done
    ended = threading.Event()
    right = Lease(ended.set, 100.0)
    network = types.SimpleNamespace(nodes=nodes, setup=types.SimpleNamespace(lease=30.0, lost=True))
    HostEntrance(cast(Any, {}), right)._guarded(cast(Any, network))
    right.heard(right.stamp())
    assert ended.is_set()
