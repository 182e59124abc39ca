"""A node that boots for minutes, a virtual machine from a disk for instance: Ctrl-C at `wherry up` waits for none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakeworld import OWNER, World

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.model.records import ClusterState, NodeState
from wherry.model.spec.cluster import ClusterSpec
from wherry.node.container.local_host import LocalHost
from wherry.node.fake import Copy
from wherry.node.vm import driver_base


def test_up_is_cancelled_while_nodes_start(tmp_path: Path) -> None:
    world, cancelled = World(tmp_path), threading.Event()
    world.driver.on_call = lambda name: cancelled.set() if name == "start" else None
    plan = world.clusters.plan(ClusterSpec(name="hello", nodes=3), OWNER)
    with pytest.raises(Failed) as ended:
        world.clusters.apply(plan, cancelled=cancelled.is_set)
    assert ended.value.code is Code.CANCELLED
    assert Copy.RUNNING not in world.driver.places.values()
    assert {node.state for node in world.store.nodes("hello")} == {NodeState.PLANNED}
    found = world.store.cluster("hello")
    assert found and found.state is ClusterState.PARTLY


class Machine(driver_base.VmDriverBase):
    instance = Instance("test")

    def alive(self, place: Any) -> bool:
        return True


class Cancelled(Exception):
    """The operation raises it."""


def at_the_third_look() -> Callable[[], None]:
    looks = count(1)

    def check() -> None:
        if next(looks) == 3:
            raise Cancelled

    return check


def test_a_machine_that_boots_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_base, "answers", lambda _place, _seconds: False)
    place = cast(Any, SimpleNamespace(node=SimpleNamespace(name="vm-0"), host="a1"))
    with pytest.raises(Cancelled):
        Machine().await_agent(place, 3600.0, at_the_third_look())


def test_a_container_that_does_not_listen_is_not_waited_for() -> None:
    node = SimpleNamespace(name="hello-0", address="127.0.0.1")
    place = cast(Any, SimpleNamespace(node=node, host="a1", netns="/proc/self/ns/net"))
    group = cast(Any, SimpleNamespace(pids=lambda: [1]))
    with pytest.raises(Cancelled):
        LocalHost._await_listening(cast(Any, None), place, group, at_the_third_look())
