"""What a board takes from the network: anything at all, without harm; and nothing from who does not know the secret.

A peer in Python speaks to real boards: a follower with frames that a real leader sent, spoiled; a leader with noise.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wherry.base.paths import native_program
from wherry.manycore.board import Board

HEAD = struct.Struct("<IHBBQQ")  # struct frame_head: size, kind, process, host, number, received
HELLO_SIZE = HEAD.size + 16 + 32
HELLO, START, STATE, KINDS = 0, 6, 9, 21  # of enum frame_kind
SECRET = "0123456789abcdef0123456789abcdef"

Start = Callable[..., "subprocess.Popen[bytes]"]


class Peer:
    """One end of a link: says HELLO when it has one, numbers its frames."""

    def __init__(self, connection: socket.socket, hello: bytes = b"") -> None:
        self.connection, self.number, self.received = connection, 0, 0
        connection.settimeout(30)
        if hello:
            connection.sendall(hello)
        self.hello = self.take(HELLO_SIZE)
        self.number = HEAD.unpack_from(self.hello)[5]

    def take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            some = self.connection.recv(size - len(found))
            if not some:
                raise ConnectionError("closed")
            found += some
        return found

    def frame(self) -> tuple[int, int, bytes]:
        """Kind, process and payload of the next frame that is no acknowledgement."""
        while True:
            size, kind, process, _, number, _ = HEAD.unpack(self.take(HEAD.size))
            payload = self.take(size)
            if number:
                self.received = number
                return kind, process, payload

    def send(self, kind: int, process: int, payload: bytes, host: int = 0) -> None:
        self.number += 1
        head = HEAD.pack(len(payload), kind, process, host, self.number, self.received)
        self.connection.sendall(head + payload)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the board of a host of two with one tile each."""
    boards = []

    def up(host: int, port: int) -> subprocess.Popen[bytes]:
        words = ["--socket", str(tmp_path / f"{host}.sock"), "--tiles", "2", "--cores", "2", "--layout", "1,1"]
        words += ["--host", str(host), "--leader", f"127.0.0.1:{port}"]
        environment = {"WHERRY_TILES_SECRET": SECRET}
        with (tmp_path / f"{host}.log").open("wb") as log:
            boards.append(
                subprocess.Popen(
                    [str(native_program("wherry-tiles")), *words], stdout=subprocess.PIPE, stderr=log, env=environment
                )
            )
        return boards[-1]

    yield up
    for board in boards:
        board.kill()
        board.wait(30)
        assert board.stdout
        board.stdout.close()


@pytest.fixture
def follower(start: Start) -> Iterator[tuple[subprocess.Popen[bytes], Peer, socket.socket]]:
    """A real follower, and us as its leader."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        board = start(1, listener.getsockname()[1])
        connection = listener.accept()[0]
        peer = Peer(connection)
        connection.sendall(peer.hello)  # the same build, the same secret: what it said of itself
        yield board, peer, listener
        peer.connection.close()


def lead(start: Start) -> tuple[subprocess.Popen[bytes], int]:
    board = start(0, 0)
    assert board.stdout
    return board, int(json.loads(board.stdout.readline())["port"])


def test_a_leader_and_noise(
    start: Start, follower: tuple[subprocess.Popen[bytes], Peer, socket.socket], tmp_path: Path
) -> None:
    hello = follower[1].hello
    leader, port = lead(start)
    for words in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, hello[:-1] + b"x", HEAD.pack(2**32 - 1, HELLO, 0, 0, 0, 0) * 4):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(30)
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""  # closed without a word
    chance = random.Random(1)
    peer = Peer(socket.create_connection(("127.0.0.1", port)), hello)
    assert leader.stdout and json.loads(leader.stdout.readline())["event"] == "ready"
    for _ in range(1500):
        kind = chance.randrange(1, KINDS + 1)
        size = chance.choice([0, 1, 24, 24, 128, 152, 216, 224, 248, 4240, 5000])
        payload = bytes(chance.choice([0, 0, 0, 1, 2, 3, chance.randrange(256)]) for _ in range(size))
        try:
            peer.send(kind, chance.randrange(36), payload, chance.randrange(4))
        except OSError:  # it does not talk to who has not spoken as he should
            peer.connection.close()
            peer = Peer(socket.create_connection(("127.0.0.1", port)), hello)
    board = Board(tmp_path / "0.sock")
    assert len(board.ps()["tiles"]) == 2
    peer.connection.close()
    events = list(board.run(native_program("wherry-tiles").parents[1] / "lib" / "tile" / "count", ["3"], 0))
    assert events[-1]["status"] == 0
    board.down()


def test_a_follower_and_spoiled_processes(
    start: Start, follower: tuple[subprocess.Popen[bytes], Peer, socket.socket], tmp_path: Path
) -> None:
    """A process that a real leader sends, with bits flipped or cut off, is refused; as it was sent, it runs."""
    board, peer, listener = follower
    leader, port = lead(start)
    taker = Peer(socket.create_connection(("127.0.0.1", port)), peer.hello)
    assert leader.stdout and json.loads(leader.stdout.readline())["event"] == "ready"
    program = native_program("wherry-tiles").parents[1] / "lib" / "tile" / "count"
    assert Board(tmp_path / "0.sock").start(program, ["7"], 1) == 1
    kind, process, payload = taker.frame()
    while kind != START:
        kind, process, payload = taker.frame()
    taker.connection.close()
    chance = random.Random(2)
    for turn in range(200):
        spoiled = bytearray(payload)
        at = chance.randrange(len(payload) - 20 * 4096 if turn % 2 else 4096)
        spoiled[at] ^= 1 << chance.randrange(8)
        if turn % 5 == 0:
            spoiled = spoiled[: chance.randrange(len(spoiled))]
        peer.send(STATE if turn % 3 else START, process + turn % 31 * (turn % 2), bytes(spoiled))
        assert board.poll() is None
    assert board.poll() is None
    listener.close()
    peer.connection.close()
    assert board.wait(60) == 0  # without its leader it ends by itself
