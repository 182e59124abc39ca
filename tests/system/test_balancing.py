"""Balancing of real jobs: communication-bound jobs are packed when capacity appears, compute-bound ones stay spread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from realworld import RealInstance, eventually, real_instance

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.client import Client
from wherry.fabric.cgroup import Cgroup, machine_layout

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.measures(
        "verdicts compare times at the CPU, in wait and in MPI over 2 to 4 s: programs beside them take CPU from a job "
        "that computes and delay a job that waits for the link, so a look may see the other kind"
    ),
]
FABRIC = """\
kind: fabric
version: 1
name: far
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 0.25, memory: 1GiB}
  - {name: a2, site: a, cores: 0.25, memory: 1GiB}
  - {name: b1, site: b, cores: 0.25, memory: 1GiB}
  - {name: b2, site: b, cores: 0.25, memory: 1GiB}
links:
  - {between: [a, b], latency: 50ms}
"""


@pytest.fixture(scope="module")
def far() -> Iterator[RealInstance]:
    """Two sites of two hosts with capacity for one node each."""
    with real_instance("tbal") as created:
        before = created.all_resources()
        created.json("fabric", "up", created.file("far.yaml", FABRIC))
        yield created
        assert created("down", "--all", "--yes").returncode == 0
        assert eventually(created.all_resources, before) == before


@contextmanager
def apart(far: RealInstance) -> Iterator[None]:
    """Makes a cluster with one node at each site, and another that occupies the rest of the fabric."""
    far.up("job", 2, more="placement: spread\n")
    far.up("other", 2, memory="32MiB", more="placement: spread\n")
    try:
        yield
    finally:
        far.json("balance", "--auto", "off")
        for name in ("job", "other"):
            far("down", name)


def run_under_ring(far: RealInstance, action: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Runs `action` with a dict for observations while a ring runs, whose result must be correct; returns the dict."""
    observations = dict[str, Any]()
    with apart(far):
        far.run_under_ring("job", "openmpi", lambda: action(observations), ranks=2)
        far.assert_one_copy("job")
    return observations


def verdict(far: RealInstance, *words: str) -> dict[str, Any]:
    """The verdict of `wherry balance` on the job."""
    (verdict_found,) = far.json("balance", "job", "--remaining", "10m", "--seconds", "2s", *words)["plan"]["verdicts"]
    assert verdict_found["text"]
    return dict(verdict_found)


def packed(far: RealInstance) -> bool:
    with Client(far.instance) as client:
        return len({node.host[0] for node in client.nodes("job")}) == 1


def moves(far: RealInstance) -> int:
    """Moves of this job's cluster; earlier clusters had the same name."""
    with Client(far.instance) as client:
        return sum(move.cluster == "job" for move in client.moves())


def gains(far: RealInstance) -> list[dict[str, Any]]:
    """The gains of the plans for this job."""
    with Client(far.instance) as client:
        return [move.gain.model_dump() for move in client.moves() if move.cluster == "job" and move.gain]


def all_ended(far: RealInstance) -> bool:
    with Client(far.instance) as client:
        return all(move.ended for move in client.moves())


def test_communication_bound_job_is_packed_when_capacity_appears(far: RealInstance) -> None:
    def action(observations: dict[str, Any]) -> None:
        observations["full"] = verdict(far, "--apply")
        far.json("down", "other")
        observations["room"], observations["dry"] = verdict(far), packed(far)
        far.json("balance", "--auto", "on")
        observations["packed"] = eventually(lambda: packed(far) and all_ended(far), True, seconds=40)
        observations["again"] = verdict(far)
        eventually(lambda: [gain for gain in gains(far) if gain["measured"] or gain["unmeasured"]] != [], True)
        (observations["gain"],) = gains(far)

    observations = run_under_ring(far, action)
    assert observations["full"]["kind"] == "network-bound" and observations["full"]["moves"] == []
    assert "has room for 0 of the 1 nodes" in observations["full"]["text"]
    assert len(observations["room"]["moves"]) == 1 and observations["room"]["after"] < observations["room"]["before"]
    assert not observations["dry"], "without --apply nothing moves"
    assert observations["packed"] and observations["again"]["moves"] == [], "a plan that was done plans nothing"
    assert "are left alone" not in observations["again"]["text"], "there is nothing to gain; not: it was only just done"
    gain = observations["gain"]
    assert gain["measured"] is not None and gain["measured"] < 1, gain
    with Client(far.instance) as client:
        decisions_made = [event.data for event in client.events() if event.kind == "balance.decision"]
    assert any(data["moves"] for data in decisions_made) and any(not data["moves"] for data in decisions_made)


def kill_daemon(far: RealInstance) -> None:
    far.kill_daemon()
    far.start_daemon()


def lose_everything(far: RealInstance) -> None:
    far.json("site", "link", "set", "a", "b", "--loss", "100%")
    time.sleep(5)
    far.json("site", "link", "set", "a", "b", "--loss", "0%")


@pytest.mark.parametrize("fail", [kill_daemon, lose_everything])
def test_failed_moves_are_not_retried_in_a_storm(far: RealInstance, fail: Callable[[RealInstance], None]) -> None:
    def action(observations: dict[str, Any]) -> None:
        before = moves(far)
        far.json("down", "other")
        far.json("balance", "--auto", "on")
        far.json("balance", "job", "--remaining", "10m", "--seconds", "2s", "--apply", "--detach")
        observations["began"] = eventually(lambda: moves(far) > before, True, pause=0.05, seconds=30)
        fail(far)
        observations["ended"] = eventually(lambda: all_ended(far), True)
        observations["moves"], observations["auto"], decisions_made = moves(far) - before, auto(far), decisions(far)
        observations["looked"] = eventually(lambda: decisions(far) > decisions_made, True, seconds=60)
        time.sleep(2 * LOOK + 1)  # the daemon acts when two measurements agree
        observations["later"] = moves(far) - before

    observations = run_under_ring(far, action)
    assert observations["began"] and observations["ended"]
    assert observations["auto"], "the setting outlives the daemon"
    assert observations["looked"], "the daemon has measured the job since it was moved"
    assert observations["moves"] == observations["later"] == 1, "no move storm: a node that has just moved stays"


LOOK = 4.0
"""Length of one of the daemon's measurements in seconds."""


def decisions(far: RealInstance) -> int:
    with Client(far.instance) as client:
        return sum(event.kind == "balance.decision" for event in client.events())


def auto(far: RealInstance) -> bool:
    with Client(far.instance) as client:
        return client.auto_balance()


SPEEDS = """\
kind: fabric
version: 1
name: speeds
sites: [{name: a}]
hosts:
  - {name: slow, site: a, cores: 1, memory: 1GiB, speed: 0.5}
  - {name: fast, site: a, cores: 1, memory: 1GiB}
  - {name: free, site: a, cores: 1, memory: 1GiB}
"""


@pytest.fixture
def speeds() -> Iterator[RealInstance]:
    """A site of three hosts, one at half speed."""
    with real_instance("tspd") as created:
        created.json("fabric", "up", created.file("speeds.yaml", SPEEDS))
        yield created


def cpus(created: RealInstance, node: str, host: str) -> float:
    """The node's CPU limit: quota over period, which is 5 ms at most."""
    place = f"{created.instance.prefix}/{host}/{node}"
    root = machine_layout().root("cpu")
    assert root is not None
    if machine_layout().is_v2("cpu"):
        quota, period = map(int, (root / place / "cpu.max").read_text().split())
    else:
        quota, period = (int((root / place / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    assert period <= 5000
    return quota / period


def test_loaded_rank_gets_the_faster_host(speeds: RealInstance) -> None:
    """A slow host has a reduced CPU quota, so all ranks of the program wait for the rank there."""
    try:
        shutil.copy(native_program("npb-lu-openmpi"), speeds.directory)
    except Refused:
        pytest.skip("npb-lu-openmpi is not built: no mpicc of openmpi")
    node = "kind: container\nversion: 1\nname: {}\nnodes: {}\ncpus: {}\nmemory: 256MiB\nhosts: [{}]\n"
    speeds.json("up", speeds.file("guest.yaml", node.format("guest", 1, 1, "free")))
    speeds.json("up", speeds.file("job.yaml", node.format("job", 2, 0.6, "slow, fast, free")))
    where = {host: name for name, host in speeds.hosts_of("job").items()}
    assert set(where) == {"slow", "fast"}
    loaded = where["slow"]
    assert (cpus(speeds, loaded, "slow"), cpus(speeds, where["fast"], "fast")) == (0.3, 0.66)  # head room at speed 1
    speeds.json("down", "guest")
    job = speeds("run", "job", "-n", "2", "--detach", "--", "./npb-lu-openmpi", "B").stdout.strip()

    def planned() -> list[Any]:
        (verdict_found,) = speeds.json("balance", "job", "--remaining", "10m", "--seconds", "3s", "--apply")["plan"][
            "verdicts"
        ]
        return [(move["node"], move["source"], move["destination"]) for move in verdict_found["moves"]]

    assert eventually(planned, [(loaded, "slow", "free")], pause=0) == [(loaded, "slow", "free")]
    assert cpus(speeds, loaded, "free") == 0.66
    held = {load["node"]: load["throttled"] for load in speeds.json("job", "profile", job, "--outside")["nodes"]}
    assert held[loaded] > 0, "its limit holds a rank back that computes or polls, and the profile shows it"
    speeds.json("job", "cancel", job)


def bring_ep(far: RealInstance) -> None:
    """A program that computes and sends almost nothing."""
    try:
        shutil.copy(native_program("npb-ep-openmpi"), far.directory)
    except Refused:
        pytest.skip("npb-ep-openmpi is not built: no mpicc of openmpi")


def test_compute_bound_job_is_not_packed(far: RealInstance) -> None:
    bring_ep(far)
    with apart(far):
        far.json("down", "other")
        job = far("run", "job", "-n", "2", "--detach", "--", "./npb-ep-openmpi", "C").stdout.strip()
        computes = eventually(lambda: verdict(far)["kind"], "CPU-bound", pause=0)
        stays = verdict(far, "--apply")
        profile = far.json("job", "profile", job, "--outside")
        assert computes == "CPU-bound" and stays["moves"] == [] and stays["link"] < 0.1 and not packed(far)
        assert [rank["rank"] for rank in profile["ranks"]] == [0, 1] and profile["uncounted"] == ""
        assert all(load["computing"] > 0.5 for load in profile["nodes"])
        far.json("job", "cancel", job)


@contextmanager
def foreign(far: RealInstance, host: str) -> Iterator[None]:
    """Two busy processes on a host that belong to no node."""
    group = Cgroup(f"{far.instance.prefix}/{host}/others")
    group.create()
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in spinning:
            group.add(process.pid)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
        group.remove()


def test_overloaded_host_is_relieved(far: RealInstance) -> None:
    bring_ep(far)
    with apart(far):
        far.json("down", "other")
        ((node, home),) = ((node, host) for node, host in far.hosts_of("job").items() if host.startswith("a"))
        other = {"a1": "a2", "a2": "a1"}[home]
        job = far("run", "job", "-n", "2", "--detach", "--", "./npb-ep-openmpi", "C").stdout.strip()

        def planned() -> list[tuple[str, str, bool]]:
            return [
                (move["node"], move["destination"], "wait for it" in move["reason"]) for move in verdict(far)["moves"]
            ]

        assert eventually(planned, [], pause=0) == []
        with foreign(far, home):
            relieved = [(node, other, True)]
            assert eventually(planned, relieved, pause=0) == relieved
            verdict(far, "--apply")
            assert far.hosts_of("job")[node] == other
        assert planned() == []
        far.json("job", "cancel", job)
