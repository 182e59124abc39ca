"""A move's connections: opened wide with nothing left in them, cut ones told; streams that share a rate."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed
from wherry.node.container import streams, warm_connections
from wherry.node.container.progress_bounds import Bound, Sign
from wherry.node.container.streams import RateLimit, Stream, receive_tree
from wherry.node.container.warm_connections import _warm

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    with near, far:
        yield near, far


def test_a_near_host_needs_no_opening(ends: Ends) -> None:
    _warm(ends, RateLimit(None), 1.0, 1 << 20)
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[1].recv(1)


def test_nothing_of_the_opening_is_left(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_NEAR", 0.0)
    _warm(ends, RateLimit(1e12), 1e6, 5 << 20)
    near, far = ends
    near.sendall(b"first")
    assert far.recv(100) == b"first" and far.gettimeout() is None


def test_a_connection_that_is_cut_is_told(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_NEAR", 0.0)
    near, far = ends
    cut = threading.Timer(0.2, near.shutdown, (socket.SHUT_RDWR,))
    cut.start()
    with pytest.raises(OSError, match="closed"):
        _warm((near, far), RateLimit(8e6), 1e9, 64 << 20)  # a megabyte a second
    cut.join()


def test_a_stream_that_takes_too_long_is_given_up(ends: Ends, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    sink.mkdir()
    (source / "file").write_bytes(bytes(range(256)) * (1 << 18))  # more than the kernel keeps on its way
    stream = Stream("tree", ends, receive_tree(sink), stdin=True)
    stream.limit_rate(8e3)

    def bound(*signs: Sign) -> Bound:
        return Bound("the tree", 0.2, 0.4, *signs)

    for act in (lambda: stream.send_tree(source, bound), lambda: stream.finish(bound)):
        with pytest.raises(Failed) as late:
            act()
        assert late.value.code == Code.TIMED_OUT
    stream.close()


class Sender:
    """Something else of the move that sends."""

    rate = 0.0

    def limit_rate(self, rate: float) -> None:
        self.rate = rate


def test_what_opens_a_window_shares_the_rate_of_the_move(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_connections, "_NEAR", 0.0)
    rates, pace, other = list[float](), RateLimit(100e6), Sender()
    set_pace = warm_connections.set_rate_limit

    def noted(end: socket.socket, rate: float) -> None:
        rates.append(rate)
        set_pace(end, rate)

    monkeypatch.setattr(warm_connections, "set_rate_limit", noted)
    with pace.sending(other):
        assert other.rate == 100e6
        _warm(ends, pace, 1e6, 1 << 20)
        assert rates == [50e6, 100e6], "its share meanwhile, and all of it for what it sends later by itself"
        assert other.rate == 100e6


class Told(Stream):
    """A stream that remembers the rates that it was told."""

    rates: list[float]

    def limit_rate(self, rate: float) -> None:
        super().limit_rate(rate)
        self.rates.append(rate)


def test_streams_that_send_at_once_share_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_sent", lambda end: 0)  # only TCP counts, and is paced
    monkeypatch.setattr(streams, "set_rate_limit", lambda end, rate: None)
    tree, pages = (Told(name, socket.socketpair(), ["/bin/true"], stdin=True) for name in ("tree", "pages"))
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
