"""A link with SoftEther's overlay: admitted gateways, open ports, and TCP connections from before it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import eventually

import waiting
from names import own_name
from wherry.base.paths import Instance
from wherry.fabric import gateway_certificates, named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.fabric.vpn_catalog import missing_programs
from wherry.model.spec.fabric import LinkSpec

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.skipif(bool(missing_programs("softether")), reason="softether-vpnserver is not installed"),
]
INSTANCE = Instance(own_name("tsev"))
DIRECTORY = INSTANCE.run / "links" / "a--b.softether"
LINK = LinkSpec(between=("a", "b"), overlay="softether")
MEBIBYTE = 1 << 20


@pytest.fixture
def fabric() -> Iterator[NetnsFabric]:
    sweep(INSTANCE)
    created = NetnsFabric(default_fabric(), INSTANCE)
    created.up()
    yield created
    created.down()
    assert named_netns.names(INSTANCE.prefix) == [] and not INSTANCE.run.exists()


def gateway(side: int) -> int:
    return int((DIRECTORY / f"{side}.pid").read_text().split()[0])


def local_ends(side: int, protocol: str) -> list[tuple[str, str]]:
    """Address with port (both hexadecimal), and state, of the sockets in the namespace of a gateway."""
    lines = Path(f"/proc/{gateway(side)}/net/{protocol}").read_text().splitlines()[1:]
    return [(line.split()[1], line.split()[3]) for line in lines]


@pytest.mark.smoke
def test_softether_opens_one_port_and_trusts_one_certificate(fabric: NetnsFabric) -> None:
    fabric.set_link(LINK)
    assert fabric.measure_link(LINK, False).latency is not None
    listening = [[end for end, state in local_ends(side, "tcp") if state == "0A"] for side in (0, 1)]
    assert listening == [["01004064:15B3"], []], "100.64.0.1, port 5555"
    assert [local_ends(side, "tcp6") + local_ends(side, "udp6") for side in (0, 1)] == [[], []]
    for side in (0, 1):
        assert all(end.startswith(("01004064:", "02004064:")) for end, _ in local_ends(side, "udp")), "on the link"
        root = {path.name for path in Path(f"/proc/{gateway(side)}/root").iterdir()}
        assert not root & {"etc", "home", "root", "srv"} and not list(Path(f"/proc/{gateway(side)}/root/old").iterdir())
        status = Path(f"/proc/{gateway(side)}/status").read_text()
        assert f"CapEff:\t{1 << 12:016x}\n" in status, "CAP_NET_ADMIN"
    for name in ("1.key", "1.crt"):
        (DIRECTORY / name).unlink()
    gateway_certificates.made(DIRECTORY, 1, "a--b", gateway_certificates.RSA)
    os.kill(gateway(1), 9)  # its next one has a certificate that the other side does not know
    waiting.until(fabric.repair, "the repair of the link")
    waiting.until(lambda: "authentication failed" in (DIRECTORY / "1.log").read_text(), "the refusal")
    assert fabric.measure_link(LINK, False).latency is None
    os.kill(gateway(0), 9)
    waiting.until(fabric.repair, "the repair of the link")
    assert eventually(lambda: fabric.measure_link(LINK, False).latency is not None, True)


def test_tcp_connection_continues_when_its_link_gets_softether(fabric: NetnsFabric) -> None:
    """Its segments were larger than SoftEther's frames when it was made."""
    near, far = (named_netns.path(f"{INSTANCE.prefix}-{host}1") for host in "ab")
    address = fabric.host_address("b1")
    server = named_netns.inside(far, lambda: socket.create_server((address, 7001)))
    sender = named_netns.inside(near, lambda: socket.create_connection((address, 7001)))
    receiver, _ = server.accept()
    received = bytearray()

    def receive() -> None:
        while data := receiver.recv(MEBIBYTE):
            received.extend(data)

    with server, sender, receiver:
        thread = threading.Thread(target=receive)
        thread.start()
        sender.sendall(bytes(MEBIBYTE))
        assert sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 8000
        fabric.set_link(LINK)
        sender.sendall(bytes(4 * MEBIBYTE))
        sender.shutdown(socket.SHUT_WR)
        thread.join(waiting.bound())
        assert len(received) == 5 * MEBIBYTE
