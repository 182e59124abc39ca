"""A container's mover: how long it waits on a slow link, and what a killed daemon's move leaves to receive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from wherry.base.paths import Instance
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.fake import FakeFabric
from wherry.model.objects import Node, NodeState
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.mover import ContainerMover, _end_receivers
from wherry.node.protocol import Placement

MIB = 2**20


def mover(memory: int) -> ContainerMover:
    fabric = FakeFabric(default_fabric())
    node = Node(
        name="c-0", cluster="c", index=0, host="a1", address="10.0.0.1", mac="02:00:00:00:00:01", cpus=1,
        memory=memory, state=NodeState.RUNNING,
    )  # fmt: skip
    ends = [
        Placement(node=node, host=host, netns="", cgroup="", key=SecretStr(""), user="0:0:") for host in ("a1", "b1")
    ]
    return ContainerMover(ContainerDriver(Instance("test"), fabric), fabric, *ends)


@pytest.mark.parametrize("rate", [None, 9e8, 9e6, 9e5])
def test_a_move_has_time_to_send_all_of_the_node_at_half_its_rate(rate: float | None) -> None:
    made, memory = mover(512 * MIB), 512 * MIB
    made.limit_rate(rate)
    assert made._patience_to_send() > memory * 8 / ((rate or 160e6) / 2)
    assert made._patience_to_send() >= made._patience(), "and for what is done on a host"
    assert made._patience() < 60, "which no link makes slower"


def test_who_waits_for_a_killed_daemons_move_is_ended_and_nobody_else(tmp_path: Path) -> None:
    here, other = tmp_path / "c-0@b1", tmp_path / "c-0@b10"
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"]
    words = [
        ("page-server", "--images-dir", f"{here}/images/0"),
        ("--extract", f"--directory={here}/private"),
        ("--extract", f"--directory={other}/private"),
        ("--create", f"--directory={here}/private"),
    ]
    processes = [subprocess.Popen([*sleep, *more], stdout=subprocess.PIPE) for more in words]
    try:
        for process in processes:  # until it is what its words say
            assert process.stdout and process.stdout.readline()
        _end_receivers(here)
        assert [processes[index].wait(20) for index in (0, 1)] == [-9, -9]
        assert [processes[index].poll() for index in (2, 3)] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
