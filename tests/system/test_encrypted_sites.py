"""Encryption between sites alone, on hosts by SSH: plain packets stay inside their site, and no others get in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from forged_frames import FORGED, forge, pretend, unwanted
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, Tap, rows, temporary_lab

import waiting
from wherry.fabric import encrypted_wire, named_netns, wireguard

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(bool(wireguard.missing()), reason=f"there is no {', no '.join(wireguard.missing())}"),
    pytest.mark.timeout(600),
]
NEAR, FAR, HEAD = b"words to a neigh", b"words far away !", b"words from here!"
"""Each has the 16 bytes of a pattern of ping(8)."""
_ALL = "00:00:00:00:00:00"
MTU = 1500 - 50 - encrypted_wire.HEADERS
NODES = "trio-0", "trio-1", "trio-2"
_BROADCAST = """socket(S, PF_INET, SOCK_DGRAM, 17); setsockopt(S, SOL_SOCKET, SO_BROADCAST, 1);
send(S, $ARGV[1], 0, sockaddr_in(9, inet_aton($ARGV[0]))) or die"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    """A node at each host: the first two hosts are at site `a`, the third at `b`."""
    with real_instance("tss", lab.namespaces.enter, below=lab.shared) as created:
        created.json("fabric", "up", created.file("machines.yaml", fabric()))
        created.up("trio", 3, more="placement: {max_per_host: 1}\n")
        yield created
    for host in ADDRESSES:
        assert eventually(lambda h=host: lab.left(h, created.instance.name), []) == []
        assert lab.hosts[host].run("nft", "list", "tables", "ip") == ""


def fabric() -> str:
    sites = "[{name: a}, {name: b}]\nencryption: between-sites"
    return FABRIC.replace("[{name: lab}]", sites) + rows("h1", "h2", site="a") + rows("h3", site="b")


def at(world: RealInstance, host: str) -> str:
    """The node at a host."""
    return next(node for node, there in world.hosts_of("trio").items() if there == host)


def ping(world: RealInstance, one: str, other: str, word: bytes = FAR) -> str:
    """Sends the word from a node to another, which answers with it, in packets that are as large as may be."""
    there = world.json("node", "show", other)["node"]["address"]
    size = ("-M", "do", "-s", str(MTU - 28))
    done = world("exec", one, "--", "ping", "-c", "2", "-i", "0.2", *size, "-p", word.hex(), there)
    assert done.returncode == 0 and "DUP" not in done.stdout, done.stdout
    return there


def all_reach_all(world: RealInstance) -> None:
    for one, other in ((0, 1), (1, 2), (2, 0)):
        ping(world, NODES[one], NODES[other])


def tell_all(world: RealInstance, node: str) -> None:
    """Sends a word from a node to all others at once."""
    network = world.json("node", "show", node)["node"]["address"].rpartition(".")[0]
    done = world("exec", node, "--", "perl", "-MSocket", "-e", _BROADCAST, f"{network}.255", FAR.decode())
    assert done.returncode == 0, done.stderr


def heard(world: RealInstance, lab: SshLab) -> set[bytes]:
    """The words that can be read on the wire, of messages inside a site, to another, and from here."""
    tap = Tap(lab.namespaces, (NEAR, FAR, HEAD))
    try:
        ping(world, at(world, "h1"), at(world, "h2"), NEAR)
        far = ping(world, at(world, "h1"), at(world, "h3"), FAR)
        head = named_netns.path(f"{world.instance.prefix}-gateway-{far.split('.')[2]}")
        lab.namespaces.run("nsenter", f"--net={head}", "ping", "-c", "1", "-p", HEAD.hex(), far)
    finally:
        tap.close()
    return tap.heard


@pytest.mark.smoke
def test_only_packets_inside_a_site_are_plain(world: RealInstance, lab: SshLab) -> None:
    assert heard(world, lab) == {NEAR}
    assert world("exec", "trio-0", "--", "cat", "/sys/class/net/eth0/mtu").stdout.split() == [str(MTU)]


@pytest.mark.smoke
def test_a_cluster_takes_plain_packets_of_its_site_alone(world: RealInstance, lab: SshLab) -> None:
    node, h1 = at(world, "h1"), ADDRESSES["h1"]
    before = unwanted(world, node)
    forge(world, node, lab.namespaces.pid, h1)
    forge(world, node, lab.hosts["h3"].pid, h1)  # of the cluster's, but of the other site
    for cut in (False, True):
        pretend(world, node, lab.namespaces.pid, h1, ADDRESSES["h2"], ttl=254, cut=cut)  # by a router
    alone = at(world, "h3")
    there = unwanted(world, alone)
    pretend(world, alone, lab.namespaces.pid, ADDRESSES["h3"], h1, ttl=255)
    all_reach_all(world)  # the frames from before would have arrived
    assert (unwanted(world, node), unwanted(world, alone)) == (before, there)
    forge(world, node, lab.hosts["h2"].pid, h1)  # inside the site all is as without encryption
    pretend(world, node, lab.namespaces.pid, h1, ADDRESSES["h2"], ttl=255, cut=True)
    waiting.until(lambda: unwanted(world, node) == before + 2 * FORGED, "the frames of a neighbour")


def test_a_frame_for_all_comes_once(world: RealInstance) -> None:
    """Neither of a host's two networks hands on frames of the other."""
    sender = at(world, "h1")
    others = [node for node in NODES if node != sender]
    before = [unwanted(world, node, "IgnoredMulti") for node in others]
    tell_all(world, sender)
    all_reach_all(world)  # a second one would have arrived
    assert [unwanted(world, node, "IgnoredMulti") for node in others] == [count + 1 for count in before]


def test_a_host_sends_nothing_plain_to_another_site(world: RealInstance, lab: SshLab) -> None:
    """Even if it had learnt that the nodes of its site were there."""
    netns = f"/run/netns/{world.instance.prefix}-h1"
    number = world.json("node", "show", "trio-0")["node"]["address"].split(".")[2]
    inside = ("nsenter", f"--net={netns}", "bridge", "fdb")
    right, wrong = ((_ALL, "dev", f"y{number}", "dst", ADDRESSES[host]) for host in ("h2", "h3"))
    lab.hosts["h1"].run(*inside, "append", *wrong)
    lab.hosts["h1"].run(*inside, "del", *right)
    tap = Tap(lab.namespaces, (FAR,))
    try:
        tell_all(world, at(world, "h1"))
        ping(world, at(world, "h1"), at(world, "h3"))
    finally:
        tap.close()
        lab.hosts["h1"].run(*inside, "append", *right)
        lab.hosts["h1"].run(*inside, "del", *wrong)
    assert not tap.heard


def test_a_job_continues_through_moves_between_sites(world: RealInstance, lab: SshLab) -> None:
    def act() -> None:
        for host in ("h3", "h1", "h2", "h3"):
            assert world.move("trio-0", host)["error"] is None
        world("daemon", "stop")
        assert world("daemon", "start").returncode == 0

    world.run_under_ring("trio", "openmpi", act, ranks=3, pause=2)
    all_reach_all(world)
    alone = next(node for node in NODES[1:] if world.hosts_of("trio")[node] == "h3")
    assert world.move(alone, next(host for host in ("h1", "h2") if host not in world.hosts_of("trio").values()))
    assert heard(world, lab) == {NEAR}


def test_rules_that_a_firewall_has_removed_are_made_again(world: RealInstance, lab: SshLab) -> None:
    lab.hosts["h1"].run("nft", "flush", "ruleset")
    waiting.until(lambda: "the rules at h1" in str(world.json("event", "list")["events"]), "their repair")
    before = unwanted(world, node := at(world, "h1"))
    forge(world, node, lab.namespaces.pid, ADDRESSES["h1"])
    all_reach_all(world)
    assert unwanted(world, node) == before


def test_a_router_inside_a_site_is_refused(world: RealInstance, lab: SshLab) -> None:
    lab.hosts["h1"].run("ip", "route", "add", f"{ADDRESSES['h2']}/32", "via", "10.80.0.1")
    try:
        done = world("fabric", "up", "machines.yaml")
    finally:
        lab.hosts["h1"].run("ip", "route", "del", f"{ADDRESSES['h2']}/32")
    assert done.returncode and "a router is between them, 10.80.0.1" in done.stderr, done.stderr
