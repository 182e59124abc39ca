"""Boards survive any bytes from the network, and accept none from a peer without the secret.

A peer in Python speaks to real boards, with the greeting made anew from its description in tiles/native/board/hosts/
authentication.h: a follower with frames that a real leader sent, spoiled; a leader with noise.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tile_runs import build

import waiting
from wherry.base.paths import native_program
from wherry_tiles.manycore.board import Board

__all__ = ["build"]  # a fixture

HEAD = struct.Struct("<IHBBQQ")  # struct frame_head: size, kind, process, host, number, received
NONCE, PROOF = 32, 32
GREETING = HEAD.size + 16 + NONCE + PROOF  # struct greeting
HELLO, START, OFFER, WANT, PAGES, STATE, READY, REFUSED, ABORT = 0, 6, 9, 10, 11, 13, 14, 15, 19  # of enum frame_kind
KINDS = 27
ORDER, OFFER_, WANT_, PAGES_ = 12 + 120, struct.Struct("<6I"), struct.Struct("<5I"), struct.Struct("<4I8Q")
CHECKSUM = 24  # its offset in struct state
TRACKING, RESERVED = 2, 3  # of enum move_step
DIRECT, PRECOPY = 1, 3  # of the modes
SECRET = "0123456789abcdef0123456789abcdef"

Start = Callable[..., "subprocess.Popen[bytes]"]


def greet(facts: bytes, asked: bytes, name: bytes, secret: str = SECRET, received: int = 0) -> bytes:
    """A struct greeting: the sender's identity (`facts`, 16 bytes) with the proof that it has the secret."""
    said = HEAD.pack(GREETING - HEAD.size, HELLO, 0, 0, 0, received) + facts + os.urandom(NONCE)
    return said + hmac.new(secret.encode(), name + asked + said, hashlib.sha256).digest()


class Peer:
    """One end of a link: greets, numbers its frames. `facts` of a follower; a leader has none of its own."""

    def __init__(self, connection: socket.socket, facts: bytes = b"") -> None:
        self.connection, self.number, self.received = connection, 0, 0
        connection.settimeout(waiting.bound())
        if facts:
            connection.sendall(greet(facts, self.take(NONCE), b"follow"))
            self.greeting = self.take(GREETING)
        else:
            connection.sendall(os.urandom(NONCE))
            self.greeting = self.take(GREETING)
            connection.sendall(greet(self.facts, self.greeting[-NONCE - PROOF : -PROOF], b"leader"))
        self.number = HEAD.unpack_from(self.greeting)[5]

    @property
    def facts(self) -> bytes:
        return self.greeting[HEAD.size : HEAD.size + 16]

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
def start(tmp_path: Path, build: Path) -> Iterator[Start]:
    """Starts the board of a host of two with one tile each."""
    boards = []

    def up(host: int, port: int) -> subprocess.Popen[bytes]:
        words = ["--socket", str(tmp_path / f"{host}.sock"), "--tiles", "2", "--cores", "2", "--layout", "1,1"]
        words += ["--host", str(host), "--leader", f"127.0.0.1:{port}"]
        environment = {"WHERRY_TILES_SECRET": SECRET}
        with (tmp_path / f"{host}.log").open("wb") as log:
            boards.append(
                subprocess.Popen(
                    [str(build / "bin" / "wherry-tiles"), *words], stdout=subprocess.PIPE, stderr=log, env=environment
                )
            )
        return boards[-1]

    yield up
    for board in boards:
        board.kill()
        board.wait(waiting.bound())
        assert board.stdout
        board.stdout.close()


@pytest.fixture
def follower(start: Start) -> Iterator[tuple[subprocess.Popen[bytes], Peer, socket.socket]]:
    """A real follower, and us as its leader."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(waiting.bound())
        board = start(1, listener.getsockname()[1])
        peer = Peer(listener.accept()[0])  # the same build: its own facts are used
        yield board, peer, listener
        peer.connection.close()


def crc32c(words: bytes) -> int:
    """As RFC 3720 has it: the reflected polynomial of Castagnoli."""
    rest = 0xFFFFFFFF
    for byte in words:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def flip(words: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(words)
    changed[at] ^= 1 << bit
    return bytes(changed)


def answer_to(port: int, say: Callable[[bytes], bytes]) -> bytes:
    """The answer of a leader to a greeting, which `say` makes from the leader's nonce."""
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(waiting.bound())
        asked = stranger.recv(NONCE, socket.MSG_WAITALL)
        try:
            stranger.sendall(say(asked))
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(1)
        except OSError:  # it has closed already
            return b""


def lead(start: Start) -> tuple[subprocess.Popen[bytes], int]:
    board = start(0, 0)
    assert board.stdout
    return board, int(json.loads(board.stdout.readline())["port"])


def test_a_leader_and_noise(
    start: Start, follower: tuple[subprocess.Popen[bytes], Peer, socket.socket], tmp_path: Path
) -> None:
    facts, heard = follower[1].facts, follower[1].greeting
    leader, port = lead(start)
    chance = random.Random(1)
    good = greet(facts, bytes(NONCE), b"follow")
    strangers = [
        b"",
        b"GET / HTTP/1.0\r\n\r\n" * 9,
        HEAD.pack(2**32 - 1, HELLO, 0, 0, 0, 0) * 5,
        heard,
        good,
        good[:-9],
    ]
    for words in strangers:  # a greeting to another board, or overheard, is worth nothing
        assert answer_to(port, lambda asked, words=words: words) == b""
    assert answer_to(port, lambda asked: greet(facts, asked, b"follow", "another secret, as long")) == b""
    assert answer_to(port, lambda asked: greet(facts, asked, b"leader")) == b""
    assert answer_to(port, lambda asked: greet(flip(facts, 4, 0), asked, b"follow")) == b""
    assert "the board of host 1 is of another build" in (tmp_path / "0.log").read_text()
    for _ in range(40):  # each bit of a greeting counts
        place, bit = chance.randrange(GREETING), chance.randrange(8)
        assert answer_to(port, lambda asked, at=place, bit=bit: flip(greet(facts, asked, b"follow"), at, bit)) == b""
    peer = Peer(socket.create_connection(("127.0.0.1", port)), facts)
    assert leader.stdout and json.loads(leader.stdout.readline())["event"] == "ready"
    for _ in range(1500):
        kind = chance.randrange(1, KINDS + 1)
        size = chance.choice([0, 1, 20, 24, 24, 56, 80, ORDER, 152, 216, 224, 248, 4104, 4240, 5000])
        payload = bytes(chance.choice([0, 0, 0, 1, 2, 3, chance.randrange(256)]) for _ in range(size))
        try:
            peer.send(kind, chance.randrange(36), payload, chance.randrange(4))
        except OSError:  # the leader closes the connection after a wrong frame
            peer.connection.close()
            peer = Peer(socket.create_connection(("127.0.0.1", port)), facts)
    board = Board(tmp_path / "0.sock")
    assert len(board.ps()["tiles"]) == 2
    peer.connection.close()
    events = list(board.run(native_program("wherry-tiles").parents[1] / "lib" / "tile" / "count", ["3"], 0))
    assert events[-1]["status"] == 0
    board.down()


def test_strangers_hold_up_nobody(
    start: Start, follower: tuple[subprocess.Popen[bytes], Peer, socket.socket], tmp_path: Path
) -> None:
    """While they are silent, others are served; and however many they are, there is a place for who belongs here."""
    leader, port = lead(start)
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    peer = Peer(socket.create_connection(("127.0.0.1", port)), follower[1].facts)
    assert leader.stdout and json.loads(leader.stdout.readline())["event"] == "ready"
    strangers.append(socket.create_connection(("127.0.0.1", port)))
    assert strangers[-1].recv(NONCE, socket.MSG_WAITALL)
    assert len(Board(tmp_path / "0.sock").ps()["tiles"]) == 2
    strangers[-1].setblocking(False)
    with pytest.raises(BlockingIOError):  # it is still there, and nobody has waited for it
        strangers[-1].recv(1)
    for stranger in strangers:
        stranger.close()
    peer.connection.close()


def test_a_follower_and_spoiled_processes(
    start: Start, follower: tuple[subprocess.Popen[bytes], Peer, socket.socket], tmp_path: Path
) -> None:
    """A process that a real leader sends, with bits flipped or cut off, is refused; as it was sent, it runs."""
    board, peer, listener = follower
    leader, port = lead(start)
    taker = Peer(socket.create_connection(("127.0.0.1", port)), peer.facts)
    assert leader.stdout and json.loads(leader.stdout.readline())["event"] == "ready"
    program = native_program("wherry-tiles").parents[1] / "lib" / "tile" / "count"
    assert Board(tmp_path / "0.sock").start(program, ["7"], 1) == 1
    kind, process, payload = taker.frame()
    while kind != START:
        kind, process, payload = taker.frame()
    taker.connection.close()
    chance = random.Random(2)
    answers = set()
    for serial in range(1, 60):
        answers.add(move_in(peer, serial, process, payload, chance))
        assert board.poll() is None
        peer.send(ABORT, process, serial.to_bytes(4, "little") + bytes(ORDER - 4))  # if it runs, it ends
    assert answers == {READY, REFUSED}
    for turn in range(100):
        spoiled = flip(payload, chance.randrange(len(payload) if turn % 2 else 4096), chance.randrange(8))
        if turn % 5 == 0:
            spoiled = spoiled[: chance.randrange(len(spoiled))]
        peer.send(STATE if turn % 3 else START, process + turn % 31 * (turn % 2), spoiled)
        assert board.poll() is None
    listener.close()
    peer.connection.close()
    assert board.wait(waiting.bound()) == 0  # without its leader it ends by itself


def move_in(peer: Peer, serial: int, process: int, started: bytes, chance: random.Random) -> int:
    """Offers the follower a process and sends it, spoiled unless it is the first. Returns the kind of the answer."""
    mode = chance.choice([DIRECT, PRECOPY])
    area = started.index(b"userarea")
    peer.send(OFFER, process, OFFER_.pack(serial, 0, 1, mode, *struct.unpack_from("<2I", started, area + 48)))
    while True:
        kind, _, said = peer.frame()
        if kind == REFUSED and said[:4] == serial.to_bytes(4, "little"):
            return kind  # the one before has not ended yet
        if kind != WANT or WANT_.unpack(said)[0] != serial:
            continue
        _, step, wanted, _, _ = WANT_.unpack(said)
        if step == RESERVED:
            break
        written = [chance.getrandbits(64) & chance.getrandbits(64) for _ in range(8)]
        pages = PAGES_.pack(serial, wanted, 2, 0, *written)
        peer.send(PAGES, process, pages + bytes(4096 * sum(word.bit_count() for word in written)))
    state = bytearray(started if mode == DIRECT else started[: area + 2 * 4096])  # the User Area with one thread
    struct.pack_into("<4I", state, 0, serial, 1, mode, 2)
    if serial > 1 and serial % 2:
        state[chance.randrange(area)] ^= 1 << chance.randrange(8)  # and sealed: the checksum does not find it
    struct.pack_into("<I", state, CHECKSUM, 0)
    struct.pack_into("<I", state, CHECKSUM, crc32c(state[:area]))
    if serial % 2 == 0:
        state[chance.randrange(len(state))] ^= 1 << chance.randrange(8)
    peer.send(STATE, process, bytes(state))
    while True:
        kind, _, said = peer.frame()
        if kind in (READY, REFUSED) and said[:4] == serial.to_bytes(4, "little"):
            return kind
