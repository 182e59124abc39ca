"""wherry-hold for real, between a peer and a node on one bridge: held frames arrive at the release, by themselves.

peer eth0 ---- pp  br0  pn ---- eth0 node        three network namespaces; pn leaves the bridge as in a move
                    |
                   tap (wherry-hold)
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import waiting
from fuzzing import fuzz
from names import own_name
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.fabric import named_netns
from wherry.fabric.cgroup import Cgroup

NAMES = HOST, PEER, NODE = [f"wherry-{own_name('thld')}-{role}" for role in "hpn"]
ADDRESS, MAC = "10.99.99.2", "02:00:0a:63:63:02"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="this kernel has no TAP devices"),
]

SO_RCVBUFFORCE = 33
"""asm-generic/socket.h."""
LAYOUT = f"""
-n {HOST} link add br0 type bridge stp_state 0 forward_delay 0
-n {HOST} link set br0 up
-n {HOST} link add pp type veth peer name eth0 netns {PEER}
-n {HOST} link add pn type veth peer name eth0 address {MAC} netns {NODE}
-n {HOST} link set pp master br0 up
-n {HOST} link set pn master br0 up
-n {PEER} addr add 10.99.99.1/24 dev eth0
-n {NODE} addr add {ADDRESS}/24 dev eth0
-n {PEER} link set eth0 up
-n {NODE} link set eth0 up
-n {PEER} route replace 10.99.99.0/24 dev eth0 src 10.99.99.1 rto_min 60s
"""
"""A retransmission comes after a minute only, so an earlier frame was held and delivered."""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=waiting.bound()).stdout


def remove() -> None:
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=waiting.bound(), check=False)


@pytest.fixture
def network() -> Iterator[None]:
    remove()
    with ExitStack() as cleanup:
        cleanup.callback(remove)
        for name in NAMES:
            ip("netns", "add", name)
        for line in LAYOUT.strip().splitlines():
            ip(*line.split())
        yield


class Hold:
    """The program, in the host's namespace."""

    def __init__(self) -> None:
        words = ["--bridge", "br0", "--tap", "tap", "--mac", MAC, "--address", ADDRESS]
        command = ["ip", "netns", "exec", HOST, str(native_program("wherry-hold")), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear()["event"] == "ready"

    def hear(self) -> dict[str, Any]:
        stream: IO[str] | None = self.process.stdout
        assert stream
        answer: dict[str, Any] = json.loads(stream.readline())
        return answer

    def tell(self, line: str) -> dict[str, Any]:
        stream: IO[str] | None = self.process.stdin
        assert stream
        stream.write(line + "\n")
        stream.flush()
        return self.hear()


@pytest.fixture
def hold(network: None) -> Iterator[Hold]:
    made = Hold()
    with made.process:
        yield made
        made.process.kill()
    gone = lambda: "tap" not in ip("-n", HOST, "-br", "link")  # noqa: E731
    waiting.until(gone, "the TAP goes with the process, however it ends")


def frames() -> int:
    """The frames that have come to the program, which reads its TAP."""
    return int(json.loads(ip("-n", HOST, "-s", "-j", "link", "show", "tap"))[0]["stats64"]["tx"]["packets"])


def send_into_the_gap(client: socket.socket) -> None:
    """Returns when a frame has come to the program."""
    before = frames()
    client.sendall(b"into the gap")
    waiting.until(lambda: frames() != before, "a frame")


def retransmitted() -> int:
    text = ip("netns", "exec", PEER, "cat", "/proc/net/snmp")
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["RetransSegs"])


@pytest.mark.parametrize("is_sanitized", [False, True], ids=["as built", "sanitized"])
def test_a_tap_loses_no_frame_from_the_beginning(is_sanitized: bool) -> None:
    """The kernel activates a TAP in a work of its own, and drops frames before that."""
    directory = sanitized("test_netdev") if is_sanitized else native_program("wherry-hold").parents[1]
    subprocess.run([directory / "tests" / "test_netdev"], check=True, timeout=200)


def test_tcp_goes_on_without_a_retransmission(hold: Hold) -> None:
    early = "/proc/sys/net/ipv4/tcp_early_retrans"  # tail loss probes: they would be retransmissions too
    ip("netns", "exec", PEER, "sh", "-c", f"echo 0 >{early}")
    with (
        named_netns.inside(f"/run/netns/{NODE}", lambda: socket.create_server((ADDRESS, 5000))) as server,
        named_netns.inside(
            f"/run/netns/{PEER}", lambda: socket.create_connection((ADDRESS, 5000), timeout=waiting.bound())
        ) as client,
        server.accept()[0] as accepted,
    ):
        accepted.settimeout(waiting.bound())
        client.sendall(b"before ")
        assert accepted.recv(100) == b"before "
        time.sleep(0.3)
        ip("-n", HOST, "link", "set", "pn", "nomaster")
        assert hold.tell("divert")["event"] == "holding"
        send_into_the_gap(client)
        time.sleep(0.5)
        released = hold.tell("release pn")
        assert released["event"] == "released" and released["frames"] > 0 and released["held_us"] >= 500_000
        assert accepted.recv(100) == b"into the gap"
        accepted.sendall(b"answer")
        assert client.recv(100) == b"answer"
    assert retransmitted() == 0
    assert hold.process.wait(waiting.bound()) == 0


def test_a_peer_that_asks_in_the_gap_is_answered(hold: Hold) -> None:
    ip("-n", HOST, "link", "set", "pn", "nomaster")
    hold.tell("divert")
    with (
        named_netns.inside(f"/run/netns/{PEER}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
        named_netns.inside(f"/run/netns/{NODE}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
    ):
        receiver.settimeout(waiting.bound())
        receiver.bind((ADDRESS, 5001))
        ip("-n", PEER, "neigh", "flush", "all")
        sender.sendto(b"first", (ADDRESS, 5001))
        waiting.until(lambda: MAC in ip("-n", PEER, "neigh"), "the neighbour")
        sender.sendto(b"second", (ADDRESS, 5001))
        assert hold.tell("release pn")["event"] == "released"
        assert [receiver.recv(100), receiver.recv(100)] == [b"first", b"second"]


@contextmanager
def datagrams() -> Iterator[tuple[Hold, socket.socket, socket.socket]]:
    """A hold for a node whose port is out of the bridge; a socket of a peer that has its MAC, and one of the node."""
    ip("-n", PEER, "neigh", "replace", ADDRESS, "lladdr", MAC, "dev", "eth0")
    ip("-n", HOST, "link", "set", "pn", "nomaster")
    hold = Hold()
    with (
        hold.process,
        named_netns.inside(f"/run/netns/{PEER}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
        named_netns.inside(f"/run/netns/{NODE}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as receiver,
    ):
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
        receiver.settimeout(waiting.bound())
        receiver.bind(("", 5001))
        yield hold, sender, receiver


@pytest.mark.parametrize("stays", [False, True], ids=["released", "given back"])
def test_every_frame_comes_once_and_in_order(network: None, stays: bool) -> None:
    """On a network without other frames, so that the first frame is one of ours."""
    count = 200
    for name in NAMES:
        ip("netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    with datagrams() as (hold, sender, receiver):
        hold.tell("divert")
        for number in range(count):
            sender.sendto(b"%d" % number, (ADDRESS, 5001))
        told = hold.tell(f"return /run/netns/{HOST} pn" if stays else "release pn")
        assert (told["frames"], told["lost"]) == (count, 0)
        assert [int(receiver.recv(100)) for _ in range(count)] == list(range(count))
        if stays:
            assert hold.tell("drop")["event"] == "dropped"
        receiver.settimeout(0)
        with pytest.raises(BlockingIOError):
            receiver.recv(100)


@pytest.mark.parametrize("end", ["release pn", f"return /run/netns/{HOST} pn"], ids=["released", "given back"])
@pytest.mark.parametrize("to", [ADDRESS, "10.99.99.255"], ids=["the node", "everyone"])
def test_frames_of_a_peer_that_sends_without_end_come_once(network: None, to: str, end: str) -> None:
    """Also frames that come while the node's port joins the bridge, and after its answer, which shows the bridge its
    port. Frames that were sent before the node was handed all are in order."""
    with datagrams() as (hold, sender, receiver):
        sent, enough = itertools.count(), threading.Event()

        def send() -> None:
            while not enough.wait(0.001):  # or queues of the kernel overflow where this program waits for a processor
                for _ in range(20):
                    sender.sendto(b"%d" % next(sent), (to, 5001))

        hold.tell("divert")
        with ThreadPoolExecutor() as threads:
            sending = threads.submit(send)
            try:
                waiting.until(lambda: frames() > 500, "frames")
                begun = frames()
                told = hold.tell(end)
                receiver.sendto(b"an answer", ("10.99.99.1", 5001))
                heard = [int(receiver.recv(100)) for _ in range(told["frames"] + 1000)]
            finally:
                enough.set()
            sending.result()
        count = next(sent)
        heard += [int(receiver.recv(100)) for _ in range(count - len(heard))]
        assert sorted(heard) == list(range(count)) and told["lost"] == 0
        kept = [number for number in heard if number < begun - 100]  # the count has ARP, too
        assert kept == sorted(kept)
        if "return" in end:
            assert hold.tell("drop")["event"] == "dropped"
        receiver.settimeout(0)
        with pytest.raises(BlockingIOError):
            receiver.recv(100)


def test_what_was_kept_goes_back_to_a_node_that_stays(hold: Hold) -> None:
    """So do frames that come until the drop. Without it a peer would send again after a minute."""
    with (
        named_netns.inside(f"/run/netns/{NODE}", lambda: socket.create_server((ADDRESS, 5000))) as server,
        named_netns.inside(
            f"/run/netns/{PEER}", lambda: socket.create_connection((ADDRESS, 5000), timeout=waiting.bound())
        ) as client,
        server.accept()[0] as accepted,
    ):
        accepted.settimeout(waiting.bound())
        ip("-n", HOST, "link", "set", "pn", "nomaster")
        assert hold.tell("divert")["event"] == "holding"
        send_into_the_gap(client)
        returned = hold.tell(f"return /run/netns/{HOST} pn")
        assert returned["event"] == "returned" and returned["frames"] > 0
        assert accepted.recv(100) == b"into the gap"
        client.sendall(b"late")
        assert accepted.recv(100) == b"late"
        accepted.sendall(b"answer")
        assert client.recv(100) == b"answer"
    assert hold.tell("drop")["event"] == "dropped"


@pytest.mark.parametrize("sends", [True, False])
def test_it_tells_when_the_node_first_sends_data(hold: Hold, sends: bool) -> None:
    """Acknowledgements, which its kernel sends by itself, are none."""
    with (
        named_netns.inside(f"/run/netns/{NODE}", lambda: socket.create_server((ADDRESS, 5000))) as server,
        named_netns.inside(
            f"/run/netns/{PEER}", lambda: socket.create_connection((ADDRESS, 5000), timeout=waiting.bound())
        ) as client,
        server.accept()[0] as accepted,
    ):
        accepted.settimeout(waiting.bound())
        ip("-n", HOST, "link", "set", "pn", "nomaster")
        hold.tell("divert")
        send_into_the_gap(client)
        assert hold.tell("release pn")["frames"] > 0
        assert accepted.recv(100) == b"into the gap"
        time.sleep(0.1)  # the acknowledgement goes
        before = time.monotonic()
        if sends:
            accepted.sendall(b"answer")
            sent = hold.hear()
            assert sent["event"] == "sent" and before <= sent["at_us"] / 1e6 <= time.monotonic()
        else:
            assert hold.hear()["event"] == "silent"


FLOOD = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
    peer.connect(("{ADDRESS}", 9))
    while True:
        peer.send(bytes(1400))
"""


@pytest.fixture
def slowed(hold: Hold) -> Iterator[None]:
    """The program has a twentieth of a processor, as on a host that is busy: senders are faster than it reads."""
    group = Cgroup(own_name("thld"))
    with ExitStack() as cleanup:
        group.create()
        cleanup.callback(group.remove)
        cleanup.callback(lambda: (hold.process.kill(), hold.process.wait()))
        group.limit(cpus=0.05, memory=1 << 30, tasks=None)
        group.add(hold.process.pid)
        yield


@pytest.mark.measures("an answer within two seconds of a program that has a twentieth of a processor")
def test_a_peer_that_sends_without_end_delays_no_command(hold: Hold, slowed: None) -> None:
    """A release comes within a freeze."""
    ip("netns", "exec", PEER, "ping", "-c1", ADDRESS)
    ip("-n", HOST, "link", "set", "pn", "nomaster")
    assert hold.tell("divert")["event"] == "holding"
    with ExitStack() as cleanup:
        for _ in range(2):
            words = ["ip", "netns", "exec", PEER, sys.executable, "-c", FLOOD]
            flood = cleanup.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            cleanup.callback(flood.kill)
        time.sleep(2)
        timer = threading.Timer(8, hold.process.kill)  # else it would wait for ever
        cleanup.callback(timer.cancel)
        timer.start()
        began = time.monotonic()
        assert hold.tell("drop")["event"] == "dropped"
        assert time.monotonic() - began < 2


def test_it_says_what_it_cannot_do(hold: Hold) -> None:
    hold.tell("divert")
    answer = hold.tell("release none")
    assert answer["event"] == "failed" and "none" in answer["error"]


def test_a_killed_hold_leaves_nothing(hold: Hold) -> None:
    hold.tell("divert")
    assert "tap" in ip("-n", HOST, "-br", "link")


@pytest.mark.thorough  # a fuzzer
def test_no_frame_leads_it_astray() -> None:
    ethernet, ip4 = bytes(12) + b"\x08\x00", bytes.fromhex("45000029000040004006") + bytes(10)
    tcp = bytes(12) + b"\x50" + bytes(7)
    corpus = {"tcp": ethernet + ip4 + tcp + b"x", "short": ethernet + ip4, "arp": bytes(12) + b"\x08\x06" + bytes(28)}
    fuzz(("fuzz/fuzz_held_frame.c", "hold/frame_store.c", "lib/buffer.c"), corpus, 100_000, 256)
