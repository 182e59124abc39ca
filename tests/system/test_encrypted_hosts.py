"""The encrypted wire between hosts by SSH: nothing of a cluster can be read there, and nothing be sent into it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, Tap, rows, temporary_lab

import waiting
from wherry.fabric import encrypted_wire, wireguard
from wherry.fabric.netns_links import VXLAN_PORT
from wherry.fabric.ssh_hosts import first_vni, identity
from wherry.model.network import ClusterNetwork, mac_of
from wherry.node.netns_socket import in_netns

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(bool(wireguard.missing()), reason=f"there is no {', no '.join(wireguard.missing())}"),
    pytest.mark.timeout(600),
]
WORD, CLEAR = b"a quiet word 123", b"a word that anybody may read"
"""The first has the 16 bytes of a pattern of ping(8)."""
FORGED, MTU = 5, 1500 - 50 - encrypted_wire.HEADERS
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


def unwanted(world: RealInstance) -> int:
    """Datagrams that have reached a node at ports where nobody listens."""
    text = world("exec", "pair-0", "--", "cat", "/proc/net/snmp").stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    return int(dict(zip(names, values, strict=True))["NoPorts"])


def forge(world: RealInstance, lab: SshLab) -> None:
    """Somebody on the wire sends frames for a node, in packets of the cluster's VXLAN."""
    node = world.json("node", "show", "pair-0")["node"]
    number = ip_address(node["address"]).packed[2]
    network = ClusterNetwork(number=number, subnet=f"10.77.{number}.0/24")
    source = ip_address(f"10.77.{number}.99").packed
    data = b"forged"
    udp = struct.pack("!4H", 4000, _UDP_PORT, 8 + len(data), 0) + data
    head = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, source, ip_address(node["address"]).packed
    )
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    packet = head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[12:] + udp
    mac = bytes.fromhex(mac_of(network, node["index"]).replace(":", ""))
    frame = mac + bytes.fromhex("020000000099") + b"\x08\x00" + packet
    vni = (first_vni(identity(world.instance)) + number) % (1 << 24)
    with in_netns(
        f"/proc/{lab.namespaces.pid}/ns/net", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ) as sender:
        for _ in range(FORGED):
            sender.sendto(struct.pack("!II", 0x08 << 24, vni << 8) + frame, (ADDRESSES[node["host"]], VXLAN_PORT))


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
        before = unwanted(plain)
        forge(plain, lab)
        waiting.until(lambda: unwanted(plain) == before + FORGED, "the forged frames")


@pytest.mark.smoke
def test_nothing_is_read_on_the_wire_and_nothing_sent_into_a_cluster(world: RealInstance, lab: SshLab) -> None:
    tap = Tap(lab.namespaces, (WORD, CLEAR))
    try:
        lab.hosts["h1"].run("bash", "-c", f"echo {CLEAR.decode()} > /dev/udp/{ADDRESSES['h2']}/{_UDP_PORT}")
        ping(world)
    finally:
        tap.close()
    assert tap.heard == {CLEAR}
    before = unwanted(world)
    forge(world, lab)
    ping(world)  # the frames from before would have arrived
    assert unwanted(world) == before
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
    lab.hosts["h2"].run("pkill", "-9", "-x", "wireguard-go")
    assert world("fabric", "up", "machines.yaml").returncode == 0
    ping(world)


def test_each_host_reaches_each(world: RealInstance) -> None:
    for node, host in (("pair-1", "h3"), ("pair-0", "h2"), ("pair-1", "h1")):
        if world.hosts_of("pair")[node] != host:
            assert world.move(node, host)["error"] is None
        ping(world)
