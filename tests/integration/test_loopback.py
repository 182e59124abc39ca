"""The loopback of a node that is dumped."""

from __future__ import annotations

import os
import socket

import pytest

from wherry.base.errors import Code, Failed
from wherry.node.container.loopback import Loopback
from wherry.node.netns_socket import in_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["4", "6"]
)
def test_nothing_passes_until_it_is_started_again(netns: str, family: int, address: str) -> None:
    def exchange() -> str:
        with socket.socket(family, socket.SOCK_DGRAM) as peer:
            peer.bind((address, 0))
            peer.settimeout(0.2)
            peer.sendto(b"passed", peer.getsockname())
            try:
                return peer.recv(16).decode()
            except TimeoutError:
                return "lost"

    loopback = Loopback(netns)
    loopback.start()
    assert in_netns(netns, exchange) == "passed"
    for _ in range(2):
        loopback.stop()
        loopback.stop()
        assert in_netns(netns, exchange) == "lost"
        loopback.start()
        loopback.start()
        assert in_netns(netns, exchange) == "passed"
    loopback.stop()
    loopback.close()
    Loopback(netns).start()  # as the next daemon does
    assert in_netns(netns, exchange) == "passed"


def test_a_node_that_is_gone_has_none() -> None:
    loopback = Loopback("/run/netns/nowhere")
    loopback.start()
    loopback.close()
    with pytest.raises(Failed, match="loopback") as error:
        loopback.stop()
    assert error.value.code == Code.MOVE_FAILED
