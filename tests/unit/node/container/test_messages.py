"""Descriptors in messages that nobody has received are seen, and nothing changes by the look."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from wherry.node.container import messages

STREAM, DATAGRAM, PACKETS = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
SO_PEEK_OFF = 42


@pytest.fixture(params=[STREAM, DATAGRAM, PACKETS], ids=["stream", "datagram", "packets"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair(socket.AF_UNIX, request.param)
    yield ends
    for end in ends:
        end.close()


def sent(end: socket.socket, text: bytes) -> os.stat_result:
    """A pipe of which only a message has a descriptor."""
    pipe = os.pipe()
    socket.send_fds(end, [text], pipe[:1])
    found = os.fstat(pipe[0])
    for number in pipe:
        os.close(number)
    return found


def seen(end: socket.socket, everything: bool) -> list[int]:
    total = messages.count(os.getpid(), end.fileno())
    return [os.fstat(file).st_ino for file in messages.descriptors(end.fileno(), total, everything)]


def test_the_first_one_is_seen_while_a_program_runs_and_all_while_it_does_not(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    assert messages.count(os.getpid(), there.fileno()) == 0
    before = len(os.listdir("/proc/self/fd"))
    first = sent(here, b"one").st_ino
    here.send(b"two")
    second = sent(here, b"x" * 100_000).st_ino
    assert messages.count(os.getpid(), there.fileno()) == 2
    assert seen(there, everything=False) == [first]
    assert seen(there, everything=True) == [first, second]
    assert next(messages.descriptors(there.fileno(), 2, True)) > 0  # a look that somebody ends
    assert len(os.listdir("/proc/self/fd")) == before
    assert there.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF) == -1
    text, rest = socket.recv_fds(there, 3, 4)[:2]
    assert text == b"one" and len(rest) == 1
    assert there.recv(3) == b"two"
    for number in rest:
        os.close(number)


def test_a_program_that_looks_ahead_itself_is_not_disturbed(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    inode = sent(here, b"one").st_ino
    there.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 2)
    assert seen(there, everything=False) == []
    assert seen(there, everything=True) == [inode]
    assert there.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF) == 2


def test_an_error_of_the_socket_stays_for_its_program() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, PACKETS)
    with there:
        sent(here, b"one")
        there.send(b"unread")
        here.close()
        assert seen(there, everything=True) == []
        with pytest.raises(ConnectionResetError):
            there.recv(9)


def test_messages_at_sockets_in_messages_are_seen() -> None:
    here, there = socket.socketpair()
    inner = socket.socketpair()
    with here, there, inner[0]:
        sent(here, b"one")
        inode = sent(inner[0], b"two").st_ino
        socket.send_fds(here, [b"three"], [inner[1].fileno()])
        inner[1].close()
        found = {place: os.fstat(file).st_ino for place, file in messages.everything_at(os.getpid(), there.fileno())}
        assert list(found) == [(0,), (1,), (1, 0)] and found[1, 0] == inode
