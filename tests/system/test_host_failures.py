"""Hosts that fail, as the table of docs/design/0026 has it: one copy of a node runs, or it is frozen, as reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from realworld import HeldMove, RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, LAB, SshLab, rows
from test_hosts_by_ssh import down, elsewhere, lab, states, world  # noqa: F401 - fixtures

from wherry.fabric.cgroup import Cgroup

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(900),
]
NODE = "trio-1"


def running(world: RealInstance) -> list[str]:  # noqa: F811
    """Hosts at which the node's processes may run."""
    groups = {host: Cgroup(f"{world.instance.prefix}/{host}/{NODE}") for host in ADDRESSES}
    return [host for host, group in groups.items() if group.exists() and group.pids() and not group.frozen()]


def state(world: RealInstance) -> str:  # noqa: F811
    """The node's own; another node of a host that is lost may be lost before it."""
    return next(node["state"] for node in world.json("status", "trio")["nodes"] if node["name"] == NODE)


def events(world: RealInstance) -> str:  # noqa: F811
    """The texts of all events."""
    return "\n".join(event["text"] for event in world.json("event", "list")["events"])


def copies(world: RealInstance, lab: SshLab) -> list[str]:  # noqa: F811
    """Hosts that have anything of the node."""
    return [host for host in ADDRESSES if any(f"/{NODE}@" in line for line in lab.left(host, ""))]


@contextmanager
def held(world: RealInstance, phase: str) -> Iterator[tuple[HeldMove, str, str]]:  # noqa: F811
    """A move that is held at the end of a phase, and both hosts."""
    began, to = world.hosts_of("trio")[NODE], elsewhere(world, NODE)
    with world.held_move(NODE, to, phase) as move:
        yield move, began, to


def ended(world: RealInstance, move: HeldMove) -> dict[str, object]:  # noqa: F811
    """The operation of a move that is released now, once it has ended."""
    move.release()
    shown = lambda: world.json("op", "show", move.operation)  # noqa: E731
    assert eventually(lambda: shown()["state"] == "running", False, seconds=120) is False
    return shown()


def settle(world: RealInstance, lab: SshLab, where: str) -> None:  # noqa: F811
    """All is as it should be, with the node at a host."""
    assert eventually(lambda: down(world), []) == []
    assert eventually(lambda: states(world), {"running"}) == {"running"}
    assert world.hosts_of("trio")[NODE] == where
    assert eventually(lambda: (running(world), copies(world, lab)), ([where], [where])) == ([where], [where])
    assert eventually(lambda: refusal(world), "") == ""


def refusal(world: RealInstance) -> str:  # noqa: F811
    """Why the node cannot be moved; empty when it was."""
    done = world("move", NODE, "--to", elsewhere(world, NODE))
    return done.stderr if done.returncode else ""


@contextmanager
def cut_off(lab: SshLab, host: str) -> Iterator[None]:  # noqa: F811
    """Nobody reaches the host, and it reaches nobody."""
    lab.namespaces.run("ip", "link", "set", host, "down")
    try:
        yield
    finally:
        lab.namespaces.run("ip", "link", "set", host, "up")


SILENT = [(phase, end) for phase in ("prepare", "freeze", "commit") for end in ("from", "to")]
QUICK = [("freeze", "to"), ("commit", "from")]
"""Each takes half a minute; `make test-hosts` has all."""


@pytest.mark.parametrize(("phase", "end"), SILENT if "WHERRY_LONG_TESTS" in os.environ else QUICK)
def test_host_that_falls_silent_in_a_move(world: RealInstance, lab: SshLab, phase: str, end: str) -> None:  # noqa: F811
    """Its agent, whose connection is only cut, ends by itself."""
    with held(world, phase) as (move, began, to):
        silent = began if end == "from" else to
        expected = [began] if phase == "prepare" or (phase, end) == ("freeze", "to") else []
        with cut_off(lab, silent):
            told = ended(world, move)
            assert told["state"] == "failed" and silent in str(told["error"]), told
            assert eventually(lambda: running(world), expected) == expected
            assert eventually(lambda: lab.agents(silent), [], seconds=60) == []
            assert running(world) == expected
            assert expected or state(world) == "moving"
        settle(world, lab, to if phase == "commit" else began)


def test_job_runs_on_when_the_destination_falls_silent(world: RealInstance, lab: SshLab) -> None:  # noqa: F811
    """Before it answers again; the next daemon does the same."""

    def strike() -> None:
        with held(world, "freeze") as (move, began, to):
            with cut_off(lab, to):
                ended(world, move)
                assert running(world) == [began]
                world.kill_daemon()
                world.start_daemon()
                assert eventually(lambda: running(world), [began]) == [began]
            settle(world, lab, began)

    world.run_under_ring("trio", "mpich", strike, ranks=3, pause=2)


@pytest.mark.parametrize("phase", ["prepare", "freeze"])
def test_cut_between_the_hosts_takes_the_move_back(world: RealInstance, lab: SshLab, phase: str) -> None:  # noqa: F811
    with held(world, phase) as (move, began, to):
        ends = (began, to)
        try:
            for host in ends:
                lab.namespaces.run("bridge", "link", "set", "dev", host, "isolated", "on")
            assert ended(world, move)["state"] == "failed"
            assert down(world) == []
            assert eventually(lambda: (running(world), copies(world, lab)), ([began], [began])) == ([began], [began])
        finally:
            for host in ends:
                lab.namespaces.run("bridge", "link", "set", "dev", host, "isolated", "off")
        settle(world, lab, began)


def test_cut_between_daemon_and_host_stops_nothing(world: RealInstance, lab: SshLab) -> None:  # noqa: F811
    """The cut is in one direction: the daemon's packets arrive."""
    host = world.hosts_of("trio")[NODE]
    lab.hosts[host].run("ip", "route", "add", "blackhole", f"{LAB}/32")
    try:
        assert eventually(lambda: down(world), [host]) == [host]
        assert eventually(lambda: lab.agents(host), [], seconds=60) == []
        assert running(world) == [host] and states(world) == {"running"}
    finally:
        lab.hosts[host].run("ip", "route", "del", "blackhole", f"{LAB}/32")
    settle(world, lab, host)


@pytest.mark.parametrize("phase", ["prepare", "freeze", "commit"])
def test_one_copy_runs_when_sshds_are_killed_in_a_move(world: RealInstance, lab: SshLab, phase: str) -> None:  # noqa: F811
    def strike() -> None:
        with held(world, phase) as (move, began, to):
            for host in (began, to):
                lab.hosts[host].run("pkill", "-9", "-f", "sshd: root@notty")
            ended(world, move)
            settle(world, lab, to if phase == "commit" else began)

    world.run_under_ring("trio", "mpich", strike, ranks=3, pause=2)


def test_lost_host_that_comes_back_is_cleared_before_it_is_restored(world: RealInstance, lab: SshLab) -> None:  # noqa: F811
    host = world.hosts_of("trio")[NODE]
    with cut_off(lab, host):
        assert eventually(lambda: down(world), [host]) == [host]
        assert world("host", "lost", host).returncode == 0
        assert lab.agents(host) == [], "it could still have carried out earlier commands"
        assert eventually(lambda: "lost" in states(world), True)
        world.json("up", "trio.yaml")
        now = world.hosts_of("trio")[NODE]
        assert now != host and sorted(running(world)) == sorted([now, host]), "nobody could reach the old copy"
    assert eventually(lambda: (running(world), copies(world, lab)), ([now], [now])) == ([now], [now])
    assert eventually(lambda: lab.left(host, world.instance.name), []) == []
    told = f"{host}, which is declared lost, answers"
    assert eventually(lambda: told in events(world), True)
    assert down(world) == [host]
    assert eventually(lambda: world("host", "restore", host).returncode, 0) == 0
    settle(world, lab, now)


@pytest.mark.parametrize("end", ["from", "to"])
def test_host_that_is_lost_in_a_committed_move(world: RealInstance, lab: SshLab, end: str) -> None:  # noqa: F811
    """Without its source the node runs at the destination; without its destination it is lost, and made anew."""
    with held(world, "commit") as (move, began, to):
        silent = began if end == "from" else to
        with cut_off(lab, silent):
            ended(world, move)
            assert running(world) == [] and eventually(lambda: down(world), [silent]) == [silent]
            assert world("host", "lost", silent).returncode == 0
            if end == "from":
                assert eventually(lambda: running(world), [to]) == [to]
            else:
                assert eventually(lambda: state(world), "lost") == "lost"
                world.json("up", "trio.yaml")
            assert eventually(lambda: state(world), "running") == "running"  # its processes may run before
            where = world.hosts_of("trio")[NODE]
            assert eventually(lambda: running(world), [where]) == [where]
        assert eventually(lambda: copies(world, lab), [where]) == [where]
        assert eventually(lambda: world("host", "restore", silent).returncode, 0) == 0
        settle(world, lab, where)


def test_nodes_of_a_host_without_a_lease_stand_before_it_is_lost(lab: SshLab) -> None:  # noqa: F811
    """The host is cut from the daemon only. They run again when it answers first; else the new copy is the only one."""
    with real_instance("tsl", lab.namespaces.enter, below=lab.shared) as other:
        leased = FABRIC.replace("hosts:", "lease: 30s\nhosts:") + rows("h1", "h2", cores=1, memory="256MiB")
        other.json("fabric", "up", other.file("leased.yaml", leased))
        other.up("one", 1)
        (host,) = other.hosts_of("one").values()
        group = Cgroup(f"{other.instance.prefix}/{host}")
        for declared in (False, True):
            lab.hosts[host].run("ip", "route", "add", "blackhole", f"{LAB}/32")
            try:
                assert eventually(lambda: down(other), [host]) == [host]
                assert not group.frozen()
                if declared:
                    assert other("host", "lost", host).returncode == 0
                    assert group.frozen()
                    assert eventually(
                        lambda: {node["state"] for node in other.json("status", "one")["nodes"]}, {"lost"}
                    )
                    other.json("up", "one.yaml")
                else:
                    assert eventually(group.frozen, True)
            finally:
                lab.hosts[host].run("ip", "route", "del", "blackhole", f"{LAB}/32")
            if not declared:
                assert eventually(lambda: (down(other), group.frozen()), ([], False)) == ([], False)
                assert other("exec", "one-0", "--", "true").returncode == 0
                assert eventually(lambda: "had no lease any more" in events(other), True)
        assert eventually(group.exists, False) is False
        assert other.hosts_of("one")["one-0"] != host
