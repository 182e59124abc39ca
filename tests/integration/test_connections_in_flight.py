"""Connections that no program has yet are seen, and others are none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from wherry.base.errors import Failed
from wherry.node.container.connections_in_flight import has_connections_in_flight, in_flight
from wherry.node.netns_socket import in_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
LAST_ACK_IS_LOST = """
add table inet t
add chain inet t c { type filter hook input priority 0; }
add rule inet t c tcp dport 7 tcp flags & (syn | ack) == ack drop
"""


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["4", "6"]
)
def test_a_connection_is_in_flight_until_it_is_accepted(netns: str, family: int, address: str) -> None:
    assert not has_connections_in_flight(netns)
    with in_netns(netns, lambda: socket.create_server((address, 7), family=family)) as server:
        assert not has_connections_in_flight(netns)
        with in_netns(netns, lambda: socket.create_connection((address, 7))):
            assert has_connections_in_flight(netns)
            with server.accept()[0]:
                assert not has_connections_in_flight(netns)


@pytest.mark.skipif(not shutil.which("nft"), reason="there is no nft")
def test_a_handshake_is_in_flight(netns: str) -> None:
    subprocess.run(["ip", "netns", "exec", Path(netns).name, "nft", LAST_ACK_IS_LOST], check=True)
    with in_netns(netns, lambda: socket.create_server(("127.0.0.1", 7))):
        with in_netns(netns, lambda: socket.create_connection(("127.0.0.1", 7))):
            assert has_connections_in_flight(netns)


@pytest.mark.parametrize("what", ["data", "closed"])
def test_a_unix_connection_that_cannot_be_dumped_is_in_flight_until_it_is_accepted(
    netns: str, tmp_path: Path, what: str
) -> None:
    with in_netns(netns, lambda: socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        with in_netns(netns, lambda: socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(tmp_path / "socket"))
            assert not has_connections_in_flight(netns)  # CRIU makes it again
            client.send(b"x")
            if what == "closed":
                client.close()
            assert has_connections_in_flight(netns)
            with server.accept()[0]:
                assert not has_connections_in_flight(netns)


def test_unix_sockets_with_something_to_read_are_listed(netns: str) -> None:
    here, there = in_netns(netns, lambda: socket.socketpair(socket.AF_UNIX))
    with here, there:
        assert in_flight(netns).unread == frozenset()
        here.send(b"x")
        found = in_flight(netns)
        assert found.unread == {os.fstat(there.fileno()).st_ino} and not found.connections
        there.recv(1)
        assert in_flight(netns).unread == frozenset()


def test_a_kernel_that_does_not_tell_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="could not be checked"):
        has_connections_in_flight(str(tmp_path / "none"))
