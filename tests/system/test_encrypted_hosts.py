"""The encrypted wire between hosts by SSH: nothing of a cluster can be read there, and nothing be sent into it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from forged_frames import FORGED, forge, unwanted
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, Tap, rows, temporary_lab

import waiting
from wherry.fabric import encrypted_wire, wireguard
from wherry.fabric.real_hosts import GATEWAY

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(bool(wireguard.missing()), reason=f"there is no {', no '.join(wireguard.missing())}"),
    pytest.mark.timeout(600),
]
WORD, CLEAR = b"a quiet word 123", b"a word that anybody may read"
"""The first has the 16 bytes of a pattern of ping(8)."""
MTU = 1500 - 50 - encrypted_wire.HEADERS
_UDP_PORT = 9


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    """A node at each of two hosts."""
    with real_instance("tse", lab.namespaces.enter, below=lab.shared) as created:
        up(created, "always")
        yield created
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.left(h, created.instance.name), []) == []
        assert lab.hosts[host].run("sh", "-c", "pgrep -x wireguard-go || true") == ""


def up(world: RealInstance, encryption: str) -> None:
    text = FABRIC.replace("hosts:", f"encryption: {encryption}\nhosts:") + rows(*ADDRESSES)
    world.json("fabric", "up", world.file("machines.yaml", text))
    world.up("pair", 2, more="hosts: [h1, h2]\nplacement: {max_per_host: 1}\n")


def answers(world: RealInstance) -> bool:
    """Sends the word from a node to the other, which answers with it."""
    there = world.json("node", "show", "pair-1")["node"]["address"]
    return world("exec", "pair-0", "--", "ping", "-c", "3", "-i", "0.2", "-p", WORD.hex(), there).returncode == 0


def ping(world: RealInstance) -> None:
    assert answers(world)


def forge_for(world: RealInstance, lab: SshLab) -> None:
    """Somebody on the wire sends frames for a node."""
    forge(world, "pair-0", lab.namespaces.pid, ADDRESSES[world.hosts_of("pair")["pair-0"]])


def test_without_it_the_wire_shows_words_and_takes_frames(lab: SshLab) -> None:
    """The tests below could fail."""
    with real_instance("tsp", lab.namespaces.enter, below=lab.shared) as plain:
        up(plain, "never")
        tap = Tap(lab.namespaces, (WORD,))
        try:
            ping(plain)
        finally:
            tap.close()
        assert tap.heard == {WORD}
        before = unwanted(plain, "pair-0")
        forge_for(plain, lab)
        waiting.until(lambda: unwanted(plain, "pair-0") == before + FORGED, "the forged frames")


@pytest.mark.smoke
def test_nothing_is_read_on_the_wire_and_nothing_sent_into_a_cluster(world: RealInstance, lab: SshLab) -> None:
    tap = Tap(lab.namespaces, (WORD, CLEAR))
    try:
        lab.hosts["h1"].run("bash", "-c", f"echo {CLEAR.decode()} > /dev/udp/{ADDRESSES['h2']}/{_UDP_PORT}")
        ping(world)
    finally:
        tap.close()
    assert tap.heard == {CLEAR}
    before = unwanted(world, "pair-0")
    forge_for(world, lab)
    ping(world)  # the frames from before would have arrived
    assert unwanted(world, "pair-0") == before
    assert world("exec", "pair-0", "--", "cat", "/sys/class/net/eth0/mtu").stdout.split() == [str(MTU)]


def test_a_job_continues_through_moves_and_a_new_daemon(world: RealInstance, lab: SshLab) -> None:
    def act() -> None:
        for _ in range(2):
            home = world.hosts_of("pair")["pair-1"]
            assert world.move("pair-1", "h1" if home == "h2" else "h2")["error"] is None
        world("daemon", "stop")
        assert world("daemon", "start").returncode == 0

    world.run_under_ring("pair", "openmpi", act, ranks=2, pause=2)
    ping(world)


def test_a_wire_whose_program_has_died_is_made_again(world: RealInstance, lab: SshLab) -> None:
    if wireguard.kernel():
        pytest.skip("the kernel has WireGuard, which has no program")
    for dead, name, where in (("h2", "h2", lab.hosts["h2"]), ("this machine", GATEWAY, lab.namespaces)):
        number = encrypted_wire.directory(world.instance) / name / "0.pid"
        where.run("sh", "-c", f"read number _ < {number}; kill -9 $number")
        waiting.until(
            lambda d=dead: f"the encrypted wire of {d} had died" in str(world.json("event", "list")), "repair"
        )
        ping(world)


def test_each_host_reaches_each(world: RealInstance) -> None:
    for node, host in (("pair-1", "h3"), ("pair-0", "h2"), ("pair-1", "h1")):
        if world.hosts_of("pair")[node] != host:
            assert world.move(node, host)["error"] is None
        ping(world)
