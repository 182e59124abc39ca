"""Containers on hosts that Slurm allocates: real slurmctld and slurmds on the bare hosts that SSH reaches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from realworld import RealInstance, eventually, real_instance
from slurmhosts import SlurmLab, missing, slurm_lab
from sshhosts import ADDRESSES, rows, temporary_lab
from test_encrypted_sites import NEAR, heard

from wherry.client import Client
from wherry.fabric import wireguard

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(900),
]
FABRIC = """\
kind: fabric
version: 1
name: batch
driver: slurm
sites: [{name: lab}]
slurm: {%s}
"""
_JOINS = 120.0
"""Seconds in which an allocation starts, and the host has its bundle and joins."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    """The hosts and their Slurm."""
    if why := missing():
        pytest.skip(why)
    with temporary_lab() as hosts, slurm_lab(hosts) as created:
        ready = lambda: set(created.states().values())  # noqa: E731
        assert eventually(ready, {"idle"}) == {"idle"}, created.states()
        yield created


@contextmanager
def instance(lab: SlurmLab, role: str, wants: str, hosts: str = "") -> Iterator[RealInstance]:
    """An instance whose fabric is on this allocation, perhaps on the `hosts` of its file alone; nothing of it is left
    at hosts or in Slurm."""
    path = f"{lab.bin}:{os.environ['PATH']}"
    with real_instance(role, lab.lab.namespaces.enter, below=lab.lab.shared, PATH=path) as world:
        world.json("fabric", "up", world.file("batch.yaml", FABRIC % wants + hosts))
        yield world
    assert eventually(lambda: lab.jobs(f"wherry-{world.instance.name}"), []) == []
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.lab.left(h, world.instance.name), []) == []
    assert eventually(lambda: set(lab.states().values()), {"idle"}) == {"idle"}


def joined(world: RealInstance) -> list[str]:
    """The hosts that are there."""
    with Client(world.instance, start=False) as client:
        return [host.name for host in client.hosts() if not host.absent]


def join(world: RealInstance, number: int) -> list[str]:
    """Waits until so many hosts are there."""
    assert eventually(lambda: len(joined(world)), number, _JOINS) == number, events(world)
    return joined(world)


def events(world: RealInstance) -> list[str]:
    with Client(world.instance, start=False) as client:
        return [f"{event.kind}: {event.text}" for event in client.events()]


def test_job_is_carried_from_one_allocation_to_the_next(lab: SlurmLab) -> None:
    """The limit of the first one is lowered, so that it is left 45 seconds after it began, and the job continues; every
    byte that it sends is checked by itself."""
    with instance(lab, "tsc", "nodes: 1, time: 1h, leave: 1695s, ahead: 30m") as world:
        name = f"wherry-{world.instance.name}"
        assert {host["name"] for host in world.json("host", "list")["hosts"]} == ADDRESSES.keys()
        (first,) = join(world, 1)
        assert lab.states()[first] == "allocated"
        assert world("host", "show", first).stdout.count("drained at") == 1
        world.up("carried", 2)
        assert set(world.hosts_of("carried").values()) == {first}

        def wait() -> None:
            (job,) = lab.run("squeue", "--noheader", "--format=%i", f"--name={name}").split()
            lab.run("scontrol", "update", f"jobid={job}", "timelimit=29")
            assert eventually(lambda: first in joined(world), False, 300) is False, events(world)

        world.run_under_ring("carried", "mpich", wait, ranks=2, pause=2)
        (second,) = set(world.hosts_of("carried").values())
        assert second != first and second in joined(world)
        assert eventually(lambda: lab.states()[first], "idle") == "idle"  # it was given back
        assert "RUNNING" in lab.jobs(name)
        said = events(world)
        drains = [text for text in said if text.startswith("host.drain: ")]
        assert any("Slurm's job" in text and f"carried-0 goes to {second}" in text for text in drains), said
        for kind in ("allocation.asked", "allocation.released", "host.drain-announced", "host.left"):
            assert any(text.startswith(kind) for text in said), said
        assert not lab.lab.left(first, "carried")


def test_allocation_is_found_and_cancelled_after_kill_9(lab: SlurmLab) -> None:
    with instance(lab, "tsk", "nodes: 2, time: 1h") as world:
        name = f"wherry-{world.instance.name}"
        join(world, 2)
        world.up("pair", 2)
        world.kill_daemon()
        assert lab.jobs(name) == ["RUNNING"]
        world.start_daemon()
        looks = lab.calls("squeue")
        assert eventually(lambda: lab.calls("squeue") > looks + 1, True)  # the next daemon has looked, and followed
        assert lab.jobs(name) == ["RUNNING"] and len(joined(world)) == 2  # no second one, and nobody left
        assert set(world.hosts_of("pair").values()) <= set(joined(world))
        world.kill_daemon()
        down = world("down", "--all", "--yes")
        assert down.returncode == 0, down.stderr
        assert eventually(lambda: lab.jobs(name), []) == []


def test_nodes_of_a_cancelled_allocation_are_lost_and_removed(lab: SlurmLab) -> None:
    """Somebody else cancels it; its nodes must not run on beside new ones. Slurm would give the first host."""
    uri = f"ssh://root@{ADDRESSES['h3']}"
    hosts = f"hosts: [{{name: h3, site: lab, cores: 2, memory: 1GiB, uri: {uri!r}}}]\n"
    with instance(lab, "tsx", "nodes: 1, time: 1h", hosts) as world:
        (host,) = join(world, 1)
        assert host == "h3"
        world.up("short", 1)
        lab.run("scancel", f"--name=wherry-{world.instance.name}")
        states = lambda: {node["state"] for node in world.json("status", "short")["nodes"]}  # noqa: E731
        assert eventually(states, {"lost"}, 90) == {"lost"}, events(world)
        assert eventually(lambda: lab.lab.left(host, "short"), []) == []
        told = lambda: any("had not moved away" in text for text in events(world))  # noqa: E731
        assert eventually(told, True), events(world)
        assert world("fabric", "up", "batch.yaml").returncode == 0  # asks again
        join(world, 1)
        assert eventually(lambda: world("up", "short.yaml").returncode, 0) == 0
        assert states() == {"running"}
        for words in (("down", "short"), ("fabric", "down")):  # which gives it back
            assert world(*words).returncode == 0
        assert lab.jobs(f"wherry-{world.instance.name}") == []


def test_node_that_slurm_drains_is_drained(lab: SlurmLab) -> None:
    with instance(lab, "tsn", "nodes: 2, time: 1h") as world:
        join(world, 2)
        world.up("pair", 2)
        host = world.hosts_of("pair")["pair-0"]
        lab.run("scontrol", "update", f"nodename={host}", "state=drain", "reason=disk is bad")
        try:
            drained = lambda: any(text.startswith("host.drained") for text in events(world))  # noqa: E731
            assert eventually(drained, True, 90), events(world)
            assert host not in world.hosts_of("pair").values()
            assert any(f"Slurm reports of {host}: DRAIN, disk is bad" in text for text in events(world))
        finally:
            lab.run("scontrol", "update", f"nodename={host}", "state=resume")


def test_allocation_in_which_it_is_started_is_used_and_left(lab: SlurmLab) -> None:
    holder = lab.lab.shared / "holder"
    holder.write_text("#!/bin/sh\nexec sleep infinity\n")
    words = ("--parsable", "--job-name=users", "--nodes=1", "--exclusive", "--time=60", "--output=/dev/null")
    job = lab.run("sbatch", *words, "--chdir=/", str(holder)).strip()
    path = f"{lab.bin}:{os.environ['PATH']}"
    try:
        assert eventually(lambda: lab.jobs("users"), ["RUNNING"]) == ["RUNNING"]
        with real_instance("tsj", lab.lab.namespaces.enter, below=lab.lab.shared, PATH=path, SLURM_JOB_ID=job) as world:
            world.json("fabric", "up", world.file("batch.yaml", FABRIC % ""))
            join(world, 1)
            world.up("solo", 1)
        assert lab.jobs("users") == ["RUNNING"]
    finally:
        lab.run("scancel", job)


@pytest.mark.skipif(bool(wireguard.missing()), reason=f"there is no {', no '.join(wireguard.missing())}")
def test_allocated_hosts_of_one_site_talk_plainly_and_others_do_not(lab: SlurmLab) -> None:
    path, sites = f"{lab.bin}:{os.environ['PATH']}", "[{name: a}, {name: b}]\nencryption: between-sites"
    text = (FABRIC % "nodes: 3, time: 1h").replace("[{name: lab}]", sites)
    hosts = "hosts:\n" + rows("h1", "h2", site="a") + rows("h3", site="b")
    with real_instance("tsw", lab.lab.namespaces.enter, below=lab.lab.shared, PATH=path) as world:
        world.json("fabric", "up", world.file("batch.yaml", text + hosts))
        join(world, 1)
        world.up("early", 1)  # its network is there before the other hosts are
        join(world, 3)
        world.up("trio", 3, more="placement: {max_per_host: 1}\n")
        assert heard(world, lab.lab) == {NEAR}


def test_partition_that_does_not_exist_is_refused(lab: SlurmLab) -> None:
    path = f"{lab.bin}:{os.environ['PATH']}"
    with real_instance("tsp", lab.lab.namespaces.enter, below=lab.lab.shared, PATH=path) as world:
        refused = world("fabric", "up", world.file("x.yaml", FABRIC % "nodes: 1, time: 1h, partition: nix"))
        assert refused.returncode == 3 and "partition nix" in refused.stderr, refused.stderr
        assert "its partitions are batch" in refused.stderr
        refused = world("fabric", "up", world.file("x.yaml", FABRIC % "nodes: 9, time: 1h"))
        assert refused.returncode == 4 and "no allocation of 9 nodes" in refused.stderr, refused.stderr
        assert world("fabric", "show").returncode != 0
