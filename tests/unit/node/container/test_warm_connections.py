"""A move's connections: opened wide with nothing left in them, cut ones reported; streams that share a rate."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import waiting
from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container import streams, warm_connections
from wherry.node.container.host import Channel
from wherry.node.container.progress_bounds import ProgressProbe, StallTimeout
from wherry.node.container.rate_limit import RateLimit
from wherry.node.container.streams import Receiver, Sender, receive_tree
from wherry.node.container.warm_connections import OfferedConnections, Underlay, WarmConnections, admit, warm

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    with near, far:
        yield near, far


SECRET = bytes(range(32))


def opened(ends: Ends, limit: RateLimit, trips: float, most: int) -> bool:
    """Opens a connection from both ends; whether the far one admitted it."""
    near, far = ends
    admitted = list[bool]()
    there = threading.Thread(target=lambda: admitted.append(admit(far, SECRET)))
    there.start()
    try:
        warm(near, SECRET, limit, trips, most)
    finally:
        there.join()
    return admitted[0]


def test_a_near_host_needs_no_opening(ends: Ends) -> None:
    sent = streams._sent(ends[0])
    assert opened(ends, RateLimit(None), 1.0, 1 << 20)
    assert streams._sent(ends[0]) - sent == 40, "the secret and a size"


def test_nothing_of_the_opening_is_left(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_MIN_ROUND_TRIP", 0.0)
    near, far = ends
    before = streams._sent(near)
    assert opened(ends, RateLimit(1e12), 1e6, 5 << 20)
    assert streams._sent(near) - before == 40 + (5 << 20)
    near.sendall(b"first")
    assert far.recv(100) == b"first"
    far.sendall(b"back")
    assert near.recv(100) == b"back"


def test_a_connection_that_is_cut_is_told(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_MIN_ROUND_TRIP", 0.0)
    begun = streams._sent(ends[0])

    def cut() -> None:
        waiting.until(lambda: streams._sent(ends[0]) > begun + 40, "the first of it")
        for end in ends:
            end.shutdown(socket.SHUT_RDWR)

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(OSError):
        opened(ends, RateLimit(8e6), 1e9, 64 << 20)  # a megabyte a second
    cutting.join()


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(40), SECRET + bytes(7), SECRET[::-1] + bytes(8)]
)
def test_who_does_not_know_the_secret_is_dropped(ends: Ends, said: bytes) -> None:
    near, far = ends
    near.sendall(said)
    near.shutdown(socket.SHUT_WR)
    assert not admit(far, SECRET)


class Here:
    """This process's own network as that of a host."""

    def host_netns(self, host: str) -> str:
        return "/proc/self/ns/net"

    def host_address(self, host: str) -> str:
        return "127.0.0.1"


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are entered by root")
def test_offers_are_for_one_who_knows_the_secret() -> None:
    here = Underlay(cast(Fabric, Here()), "a1")
    offering, connecting = OfferedConnections(here), WarmConnections(here)
    offers = offering.offer(Channel.PAGES, Channel.SUMS)
    try:
        with socket.create_connection((offers[Channel.PAGES].address, offers[Channel.PAGES].port)) as stranger:
            stranger.sendall(bytes(40))
            assert stranger.recv(1) == b""
        connecting.begin(offers, RateLimit(None))
        for channel, word in ((Channel.SUMS, b"sums"), (Channel.PAGES, b"pages")):
            with connecting.take(channel) as near, offering.take(channel) as far:
                near.sendall(word)
                assert far.recv(100) == word
                assert near.gettimeout() is far.gettimeout() is None
        with pytest.raises(Failed, match="not prepared"):
            offering.take(Channel.PAGES)
    finally:
        connecting.close()
        offering.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are entered by root")
def test_an_offer_that_nobody_takes_ends_at_once_with_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_TIMEOUT", 3600.0)  # or it hangs
    offering = OfferedConnections(Underlay(cast(Fabric, Here()), "a1"))
    (offer,) = offering.offer(Channel.TREE).values()
    offering.close()
    connecting = WarmConnections(Underlay(cast(Fabric, Here()), "a2"))
    connecting.begin({Channel.TREE: offer}, RateLimit(None))
    with pytest.raises(Failed) as refused:
        connecting.take(Channel.TREE)
    assert refused.value.code == Code.UNREACHABLE
    connecting.close()


def test_a_stream_that_takes_too_long_is_given_up(ends: Ends, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    sink.mkdir()
    (source / "file").write_bytes(bytes(range(256)) * (1 << 18))  # more than the kernel keeps on its way
    sender, receiver = Sender("tree", ends[0]), Receiver("tree", ends[1], receive_tree(sink), stdin=True)
    sender.limit_rate(8e3)
    sender.start_tree(source)

    def bound(*probes: ProgressProbe) -> StallTimeout:
        return StallTimeout("the tree", 0.2, 0.4, *probes)

    for act in (lambda: sender.send_tree(bound), lambda: receiver.await_all(bound)):
        with pytest.raises(Failed) as late:
            act()
        assert late.value.code == Code.TIMED_OUT
    sender.close()
    receiver.close()


class Other:
    """Something else of the move that sends."""

    rate = 0.0

    def limit_rate(self, rate: float) -> None:
        self.rate = rate

    def round_trip(self) -> float:
        return 0.0


def test_what_opens_a_window_shares_the_rate_of_the_move(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_MIN_ROUND_TRIP", 0.0)
    rates, pace, other = list[float](), RateLimit(100e6), Other()
    set_pace = warm_connections.set_rate_limit

    def noted(end: socket.socket, rate: float) -> None:
        rates.append(rate)
        set_pace(end, rate)

    monkeypatch.setattr(warm_connections, "set_rate_limit", noted)
    with pace.sending(other):
        assert other.rate == 100e6
        opened(ends, pace, 1e6, 1 << 20)
        assert rates == [50e6, 100e6], "its share meanwhile, and all of it for its later data"
        assert other.rate == 100e6


class Told(Sender):
    """A sender that records its rate limits."""

    rates: list[float]

    def limit_rate(self, rate: float) -> None:
        super().limit_rate(rate)
        self.rates.append(rate)


def test_streams_that_send_at_once_share_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_sent", lambda end: 0)  # only TCP counts, and is paced
    monkeypatch.setattr(streams, "set_rate_limit", lambda end, rate: None)
    tree, pages = (Told(name, socket.socketpair()[0]) for name in ("tree", "pages"))
    tree.rates, pages.rates = [], []
    pace = RateLimit(100.0)
    with pace.sending(tree):
        with pace.sending(pages):
            assert tree.rates[-1] == pages.rates[-1] == 50.0
        assert tree.rates[-1] == pages.rates[-1] == 100.0
    with RateLimit(None).sending(tree):
        assert tree.rates[-1] == 100.0
    for stream in (tree, pages):
        stream.close()
