"""The netns fabric on this machine: frames between sites, move of a port under a TCP stream, clean-up."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fabricports import INSTANCE, connect, left, listen, ping, plugged, port_of

from wherry.base.errors import Failed, Refused
from wherry.fabric import named_netns, vpn_catalog
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.fabric.nft import nft
from wherry.fabric.traffic_matrix import _RULES, TrafficMatrix
from wherry.model.network import ClusterNetwork, Port, network_of
from wherry.model.spec.fabric import LinkSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")


def test_ports_at_two_sites_reach_each_other(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    near, far = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b2")
    fabric.update_paths()
    for source, other in ((near, far), (far, near)):
        assert ping(fabric, source, other.address, "-M", "do", "-s", "1472"), "frames of 1500 bytes pass unfragmented"
        assert not ping(fabric, source, other.address, "-M", "do", "-s", "1473"), "larger ones do not"
    with listen(fabric, far) as server, connect(fabric, near, far) as client, server.accept()[0] as accepted:
        client.sendall(b"over the sites")
        assert accepted.recv(100) == b"over the sites"


def test_sites_reach_each_other_at_once_when_a_link_was_made_anew(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """The MAC at which a site takes VXLAN packets stays, whatever links end there."""
    near, far = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b2")
    for latency in ("1ms", None, "1ms", None, "1ms"):
        fabric.set_link(LinkSpec(between=("a", "b"), latency=latency))
        assert ping(fabric, near, far.address)


@pytest.mark.smoke
def test_clusters_are_isolated_from_each_other(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    second = network_of(fabric.spec.pool, 2)
    fabric.network_up(second)
    alien = plugged(fabric, second.model_copy(update={"subnet": network.subnet}), 2, "a2")
    assert ping(fabric, one, other.address)
    assert not ping(fabric, one, alien.address)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
@pytest.mark.parametrize(("host", "address"), [("a1", "10.76.1.1"), ("b1", "10.76.2.1"), ("site-a", "10.76.1.0")])
def test_frames_of_a_node_do_not_reach_the_stack_of_hosts_and_sites(
    fabric: NetnsFabric, network: ClusterNetwork, host: str, address: str
) -> None:
    """Broadcast frames with a datagram to an underlay address, with a forged source address."""
    victim = named_netns.path(f"{INSTANCE.prefix}-{host}")
    port = port_of(network, 0, "a1").model_copy(update={"tap": True})
    netns = fabric.host_netns("a1")
    assert fabric.port_up(port) == netns

    def opened() -> int:
        tap = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", fabric.port_device(port).encode(), 0x1002))
        return tap

    tap = named_netns.inside(netns, opened)
    fabric.port_plug(port)
    listening = named_netns.inside(victim, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    source, target = socket.inet_aton(fabric.host_address("a2")), socket.inet_aton(address)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + 8 + 4, 0, 0, 64, 17, 0, source, target)
    words = sum(struct.unpack("!10H", ip))
    words = (words & 0xFFFF) + (words >> 16)
    ip = ip[:10] + struct.pack("!H", ~(words + (words >> 16)) & 0xFFFF) + ip[12:]
    frame = b"\xff" * 6 + bytes.fromhex(port.mac.replace(":", "")) + b"\x08\x00" + ip
    frame += struct.pack("!HHHH4s", 4444, 4444, 12, 0, b"evil")

    def arrives() -> bool:
        listening.settimeout(0.5)
        for _ in range(4):
            os.write(tap, frame)
            with contextlib.suppress(TimeoutError):
                return listening.recv(100) == b"evil"
        return False

    with listening:
        listening.bind(("0.0.0.0", 4444))  # noqa: S104 - in a namespace
        assert not arrives()
        nft(victim, "delete", "table", "bridge", "guard")
        assert arrives(), "without the guard it would"
    os.close(tap)


def test_an_unplugged_port_is_silent_and_comes_back(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b1")
    assert ping(fabric, one, other.address)
    for _ in range(2):
        fabric.port_unplug(one)
    assert not ping(fabric, other, one.address)
    fabric.port_plug(one)
    assert ping(fabric, other, one.address)
    for _ in range(2):
        fabric.port_down(one)
    assert not os.path.exists(fabric.port_netns(one))


def test_new_driver_finds_everything_by_name(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b1")
    later = NetnsFabric(fabric.spec, INSTANCE)
    assert later.is_up()
    later.up()
    later.network_up(network)
    later.port_up(one)
    assert ping(later, one, other.address), "the present devices are left as they were"
    later.port_unplug(one)
    later.port_plug(one)
    assert ping(later, other, one.address)
    later.port_down(other)
    later.network_down(network)
    assert later.is_up()
    with pytest.raises(Failed, match="no bridge c1"):
        fabric.port_plug(one)


def test_a_host_that_is_set_down_is_lost(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    one, other = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b1")
    assert fabric.reachable("b1")
    fabric.set_down("b1", True)
    assert not fabric.reachable("b1")
    assert not ping(fabric, one, other.address)
    assert [host.name for host in fabric.hosts() if not fabric.reachable(host.name)] == ["b1"]
    fabric.set_down("b1", False)
    assert fabric.reachable("b1")
    assert ping(fabric, one, other.address, "-c3", "-i0.3")


def test_hosts_are_limited_to_their_cores_and_memory(fabric: NetnsFabric) -> None:
    assert fabric.cgroup("a1") == f"{INSTANCE.prefix}/a1"
    assert Cgroup(fabric.cgroup("a1")).exists()
    facts = fabric.facts("a1")
    assert facts.kernel == os.uname().release and facts.cpu_features
    with pytest.raises(Refused, match="no host"):
        fabric.facts("c9")


def test_unsupported_link_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vpn_catalog, "missing_programs", lambda kind: [kind])
    before = left()
    spec = default_fabric().model_copy(update={"links": (LinkSpec(between=("a", "b"), overlay="wireguard"),)})
    with pytest.raises(Refused, match="wireguard"):
        NetnsFabric(spec, INSTANCE).up()
    assert left() == before


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
def test_frames_are_counted_once_with_several_counters(fabric: NetnsFabric) -> None:
    """Each profile request, and the daemon's balancing, has counters of its own."""
    place = fabric.host_netns("a1")
    readers = [TrafficMatrix(fabric.take_bridges) for _ in range(8)]
    with ThreadPoolExecutor(len(readers)) as pool:
        list(pool.map(lambda counters: counters.read({place: frozenset()}), readers))

    def rules() -> str:
        return nft(place, "list", "ruleset", "bridge").partition("table bridge wherry ")[2]

    once = rules()
    assert once.count("jump data") == once.count("update @pairs") == once.count("update @turns") == 1
    nft(place, "-f", "-", text=_RULES)
    assert rules() == once, "nor when another daemon adds them"

    one, other = readers[:2]
    for counters, mac in ((one, "02:00:00:00:00:01"), (other, "02:00:00:00:00:02"), (one, "02:00:00:00:00:01")):
        counters.read({place: frozenset({mac})})
        assert mac in rules(), "far nodes are those of the last reader, for any reader before it"
    one.read({place: frozenset()})
    assert "02:00:00:00:00:01" not in rules()
    for counters in readers[1:]:
        counters.close()
        counters.close()
    assert "jump data" in rules(), "one still reads"
    one.close()
    assert not rules(), "frames without a counter cost nothing"
    one.read({place: frozenset()})
    assert "jump data" in rules()
    one.close()


def test_a_host_whose_nft_hangs_does_not_hold_up_the_readers_of_others(
    fabric: NetnsFabric, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck, place = fabric.host_netns("a1"), fabric.host_netns("b1")
    reader = TrafficMatrix(fabric.take_bridges)
    reader.read({stuck: frozenset()})
    real, begun = shutil.which("nft"), tmp_path / "begun"
    slow = tmp_path / "nft"
    inode = os.stat(stuck).st_ino
    slow.write_text(
        f'#!/bin/sh\n[ "$(stat -Lc %i /proc/self/ns/net)" = {inode} ] && touch {begun} && sleep 4\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(reader.close)
        while not begun.exists():
            time.sleep(0.01)
        with contextlib.closing(TrafficMatrix(fabric.take_bridges)) as other:
            other.read({place: frozenset()})
        assert not closing.done(), "a1's rules are being removed meanwhile"
        closing.result()


def test_sweep_removes_half_made_fabrics_and_their_processes(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """A killed daemon may leave a half-made port, a netns name without a namespace, and processes in namespaces."""
    port = plugged(fabric, network, 0, "a1")
    fabric.port_up(port_of(network, 1, "b1"))
    (named_netns.DIRECTORY / f"{INSTANCE.prefix}-a1-half").touch()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    sleeper = named_netns.inside(fabric.port_netns(port), lambda: subprocess.Popen(command))
    Cgroup(f"{fabric.cgroup('a1')}/t-0").create()
    assert named_netns.processes(Path(fabric.port_netns(port)).name) == [sleeper.pid]
    sweep(INSTANCE)
    assert sleeper.wait(20) == -9
    assert named_netns.names(INSTANCE.prefix) == []
    assert not Cgroup(INSTANCE.prefix).exists()
    assert not fabric.is_up()
    sweep(INSTANCE)


class Stream:
    """A client that sends numbered blocks to a server, which returns their digest at the end."""

    def __init__(self, server: socket.socket, client: socket.socket) -> None:
        self._server, self._client = server, client
        self._stop = threading.Event()
        self._sent, self._received = hashlib.sha256(), hashlib.sha256()
        self.sent = self.received = 0
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stop.is_set():
            block = self.sent.to_bytes(8, "big") * 512
            self._client.sendall(block)
            self._sent.update(block)
            self.sent += len(block)
            time.sleep(0.0005)
        self._client.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        connection, _ = self._server.accept()
        with connection:
            while data := connection.recv(65536):
                self._received.update(data)
                self.received += len(data)

    def wait_for(self, count: int) -> None:
        """Waits until the server has received `count` more bytes."""
        expected, deadline = self.received + count, time.monotonic() + 30
        while self.received < expected:
            assert time.monotonic() < deadline, "the stream has stalled"
            time.sleep(0.001)

    def end(self) -> bool:
        """True if the server received exactly the sent bytes."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        return (self.sent, self._sent.digest()) == (self.received, self._received.digest())


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def carry_over(fabric: NetnsFabric, source: Port, destination: Port) -> None:
    """Replaces moving the process by CRIU: the destination's eth0 is moved into the process's namespace."""
    old, new = Path(fabric.port_netns(source)).name, Path(fabric.port_netns(destination)).name
    ip("-n", old, "link", "del", "eth0")
    ip("-n", new, "link", "set", "eth0", "netns", old)
    ip("-n", old, "address", "add", f"{source.address}/24", "dev", "eth0")
    ip("-n", old, "link", "set", "eth0", "up")


def test_tcp_stream_survives_the_move_of_its_port(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    source, peer = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b1")
    destination = port_of(network, 0, "b2")
    with listen(fabric, source) as server, connect(fabric, peer, source) as client:
        stream = Stream(server, client)
        stream.wait_for(100_000)
        fabric.port_up(destination)
        hold = fabric.hold(destination)
        stream.wait_for(100_000)  # a hold has no effect until it diverts frames
        fabric.port_unplug(source)
        hold.divert()
        carry_over(fabric, source, destination)
        before, deadline = stream.sent, time.monotonic() + 2
        time.sleep(0.1)
        while stream.sent == before and time.monotonic() < deadline:  # it sends in the gap, or TCP does so again
            time.sleep(0.01)
        report = hold.release()
        stream.wait_for(1_000_000)
        assert stream.end()
    assert report.frames > 0 and report.bytes > 0 and (report.held or 0) >= 0.1
    assert no_hold_is_left(fabric, "b2")


def no_hold_is_left(fabric: NetnsFabric, host: str) -> bool:
    """True when the host has the interfaces of a cluster with one port; a hold's TAP is removed asynchronously."""
    links: set[str] = set()
    deadline = time.monotonic() + 10
    while links != {"lo", "up0", "c1", "u1", "p1.0"} and time.monotonic() < deadline:
        links = named_netns.inside(fabric.host_netns(host), lambda: {name for _, name in socket.if_nameindex()})
    return links == {"lo", "up0", "c1", "u1", "p1.0"}


def test_held_datagrams_arrive_in_order(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """Datagrams sent during the gap arrive completely and in order, and the new namespace can answer at once."""
    source, peer = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a1")
    destination = port_of(network, 0, "b2")
    assert ping(fabric, peer, source.address)

    def bound(port: Port) -> socket.socket:
        created = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        created.settimeout(10)
        created.bind((port.address, 5001))
        return created

    fabric.port_up(destination)
    with (
        named_netns.inside(fabric.port_netns(peer), lambda: bound(peer)) as peer_socket,
        named_netns.inside(fabric.port_netns(destination), lambda: bound(destination)) as destination_socket,
    ):
        hold = fabric.hold(destination)
        fabric.port_unplug(source)
        hold.divert()
        for number in range(100):
            peer_socket.sendto(str(number).encode(), (destination.address, 5001))
            time.sleep(0.0001)
        report = hold.release()
        assert [int(destination_socket.recv(100)) for _ in range(100)] == list(range(100))
        assert report.frames >= 100
        destination_socket.sendto(b"answer", (peer.address, 5001))
        assert peer_socket.recv(100) == b"answer"


def test_frames_of_the_source_do_not_redirect_traffic_to_it(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    """The kernel of a frozen node still answers frames until its port is unplugged."""
    source, peer = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "a2")
    destination = port_of(network, 0, "b2")
    fabric.port_up(destination)
    with (
        listen(fabric, source) as listening,
        connect(fabric, peer, source) as client,
        listening.accept()[0] as destination_socket,
    ):
        client.sendall(b"before")
        hold = fabric.hold(destination)
        hold.divert()
        destination_socket.sendall(b"late")
        fabric.port_unplug(source)
        assert client.recv(10) == b"late"
        time.sleep(0.1)
        client.sendall(b"held")
        time.sleep(0.1)
        assert hold.release().frames > 0


@pytest.mark.parametrize("diverted", [False, True])
def test_dropped_hold_returns_frames_to_the_source(
    fabric: NetnsFabric, network: ClusterNetwork, diverted: bool
) -> None:
    source, peer = plugged(fabric, network, 0, "a1"), plugged(fabric, network, 1, "b1")
    destination = port_of(network, 0, "b2")
    fabric.port_up(destination)
    hold = fabric.hold(destination)
    fabric.port_unplug(source)
    if diverted:
        hold.divert()
    assert not ping(fabric, peer, source.address)
    for _ in range(2):
        hold.drop()
    fabric.port_plug(source)
    assert ping(fabric, peer, source.address)
    assert no_hold_is_left(fabric, "b2")
    with pytest.raises(Failed, match="the hold for t-0 at b2 failed"):
        hold.release()


def test_hold_without_its_bridge_fails_with_a_reason(fabric: NetnsFabric, network: ClusterNetwork) -> None:
    fabric.network_down(network)
    hold = fabric.hold(port_of(network, 0, "b2"))
    with pytest.raises(Failed, match="cannot attach to the bridge t1.0"):
        hold.divert()
    hold.drop()
