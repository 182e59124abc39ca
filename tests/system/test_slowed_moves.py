"""A container that writes faster than is sent is slowed down for its move, and has its whole CPU time again afterwards,
whatever ends the move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from realworld import RealInstance, eventually, real_instance

from wherry.client import Client
from wherry.fabric.cgroup import machine_layout
from wherry.model.records import Round
from wherry.model.throttle import next_share
from wherry.node.container import pager

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(bool(pager.obstacle()), reason="this kernel does not track writes"),
]
NODE = "one-0"
WRITER = """
import mmap, os
size, noise = 48 << 20, os.urandom(1 << 20)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
lap = 0
while True:
    lap += 1
    for at in range(0, size, 4096):
        sum(range(1500))
        start = (at + 4099 * lap) % (len(noise) - 4096)
        memory[at : at + 4096] = noise[start : start + 4096]
    print(lap, flush=True)
"""
"""Writes all of its memory again and again, as fast as its CPU time allows, with incompressible bytes."""
SLOW = "800Mbit/s"
"""At its whole CPU time the writer dirties several times as much, and more than half as much on a busy machine."""


@pytest.fixture(scope="module")
def one() -> Iterator[RealInstance]:
    """A node with the writer."""
    with real_instance("tthr", WHERRY_FAULTS="1") as created:
        file = "kind: container\nversion: 1\nname: one\nnodes: 1\ncpus: 0.5\nmemory: 256MiB\nsites: [a]\n"
        created.json("up", created.file("one.yaml", file))
        created.file("writer.py", WRITER)
        words = ("run", "one", "-n", "1", "--detach", "--", "/usr/bin/python3", str(created.directory / "writer.py"))
        assert created(*words).returncode == 0
        assert eventually(lambda: "2" in created("logs", "one").stdout.splitlines(), True)
        yield created


def group_at(world: RealInstance, host: str) -> Path:
    """The directory of the node's limit of CPU time at a host."""
    root = machine_layout().root("cpu")
    assert root
    return root / f"{world.instance.prefix}/{host}/{NODE}"


def quota(world: RealInstance) -> float:
    """CPUs that the node may use where it is."""
    return read_quota(group_at(world, world.hosts_of("one")[NODE]))


def read_quota(group: Path) -> float:
    if machine_layout().is_v2("cpu"):
        limit, period = (group / "cpu.max").read_text().split()
    else:
        limit, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return int(limit) / int(period)


def other(world: RealInstance) -> str:
    return {"a1": "a2", "a2": "a1"}[world.hosts_of("one")[NODE]]


def begin(world: RealInstance, fault: str) -> str:
    with Client(world.instance, start=False) as client:
        way: dict[str, object] = {"mode": "auto-converge"}
        return client.begin_move(NODE, other(world), fault=fault, bandwidth=SLOW, parameters=way).id


def shares(move: dict[str, Any]) -> list[float]:
    """The share that the node was left in each round, by the policy. Skips the test when that is everything."""
    rounds = [Round.model_validate(round) for round in move["rounds"]]
    told = [round.share for round in rounds]
    assert told == pytest.approx([next_share(rounds[:number]) for number in range(len(rounds))]), move["rounds"]
    if told[-1] == 1:
        pytest.skip("the machine left the writer so little CPU time that the rounds converged by themselves")
    return [share for share in told if share]


def test_it_is_slowed_down_until_the_rounds_converge(one: RealInstance) -> None:
    whole = quota(one)
    told = one.json("move", NODE, "--to", other(one), "--mode", "auto-converge", "--bandwidth", SLOW, "--dry-run")
    assert 0.1 <= told["share"] <= 1 and quota(one) == whole
    done = one("move", NODE, "--to", other(one), "--mode", "auto-converge", "--bandwidth", SLOW)
    assert done.returncode == 0, done.stderr
    assert quota(one) == whole
    (*_, move) = one.json("node", "show", NODE)["moves"]
    left = shares(move)
    assert left[0] == 1.0 and left == sorted(left, reverse=True) and 0.1 <= left[-1] < 1
    shown = one("ledger", "show", move["id"]).stdout
    assert "slowed down to" in done.stdout and "CPU time" in shown and "slowed down to" in shown
    plain = one.json("move", NODE, "--to", other(one), "--mode", "pre-copy", "--bandwidth", SLOW)
    assert all(round["share"] is None for round in plain["rounds"])


@pytest.mark.parametrize("how", ["kill", "fail"])
def test_it_has_its_whole_time_again_when_the_move_is_taken_back(one: RealInstance, how: str) -> None:
    whole, host = quota(one), one.hosts_of("one")[NODE]
    operation = begin(one, f"rounds:{how}")
    assert one("op", "wait", operation).returncode != 0
    assert one.assert_one_copy("one")[NODE] == host
    assert eventually(lambda: quota(one), whole) == whole
    (*_, move) = one.json("node", "show", NODE)["moves"]
    assert move["phase"] == "rolled-back" and shares(move)[-1] < 1


def test_it_is_slowed_down_while_the_rounds_are_sent(one: RealInstance) -> None:
    """The move is held when they are sent, and before the node is frozen."""
    whole, host, file = quota(one), one.hosts_of("one")[NODE], one.directory / "held"
    operation = begin(one, f"rounds:pause:{file}")
    try:
        assert eventually(file.exists, True, pause=0.01)
        slowed = read_quota(group_at(one, host)) / whole
    finally:
        file.unlink(missing_ok=True)
    assert one("op", "wait", operation).returncode == 0
    assert quota(one) == whole
    (*_, move) = one.json("node", "show", NODE)["moves"]
    assert slowed == pytest.approx(shares(move)[-1], rel=0.02)
