"""wherry-tls: data of programs is nowhere in clear, and only data of the other end is accepted."""

from __future__ import annotations

import os
import random
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import waiting
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.node.container.tunnel import readable

KEY = bytes(range(32))
MARK = b"a word that nobody on the wire may read. "
TEXT = MARK * 40_000
LOST, UNTRUSTED = 3, 4
_BLOCK = 1 << 16
Damage = Callable[[bytes], bytes]


@pytest.fixture(params=["as built", "sanitized"])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "sanitized":
        return sanitized("wherry-tls") / "bin" / "wherry-tls"
    return native_program("wherry-tls")


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


class End:
    """One end: `plain` is the socket of its program."""

    def __init__(
        self, program: Path, act: str, wire: socket.socket, key: bytes = KEY, compressed: bool = False
    ) -> None:
        self.plain, theirs = socket.socketpair()
        self.plain.settimeout(waiting.bound())
        with wire, theirs, readable(key) as keys:
            ends = [wire.fileno(), theirs.fileno(), *keys]
            words = [str(program), act, *map(str, ends), *(["--compress"] if compressed else [])]
            self.process = subprocess.Popen(words, pass_fds=ends, stderr=subprocess.PIPE)

    def all(self) -> bytes:
        """All that comes until the end, a good one or not."""
        data = b""
        with suppress(ConnectionResetError):
            while more := self.plain.recv(_BLOCK):
                data += more
        return data

    def ended(self) -> tuple[int, str]:
        """Its exit code, and its messages."""
        _, said = self.process.communicate(timeout=waiting.bound())
        return self.process.returncode, said.decode()

    def close(self) -> None:
        self.plain.close()
        self.process.kill()
        self.process.communicate()


class Wire:
    """Between the two ends: records all, and does `damage` to the first block of the source's behind so many bytes."""

    def __init__(self, near: socket.socket, far: socket.socket, behind: int = 1 << 62, damage: Damage = bytes) -> None:
        self.said, self.answered, self.struck = bytearray(), bytearray(), False
        self._behind, self._damage = behind, damage
        for words in ((near, far, self.said), (far, near, self.answered)):
            threading.Thread(target=self._pass, args=words, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, heard: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(_BLOCK):
                if heard is self.said and len(heard) > self._behind and len(data) > 1000 and not self.struck:
                    self.struck, data = True, self._damage(data)
                heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
            return
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Pair:
    """Both ends, and the wire between them."""

    def __init__(
        self, program: Path, keys: tuple[bytes, bytes] = (KEY, KEY), compressed: bool = False,
        behind: int = 1 << 62, damage: Damage = bytes,
    ) -> None:  # fmt: skip
        (near, one), (other, far) = connected(), connected()
        self.wire = Wire(one, other, behind, damage)
        self.source = End(program, "connect", near, keys[0], compressed)
        self.sink = End(program, "accept", far, keys[1])

    def close(self) -> None:
        self.source.close()
        self.sink.close()


@pytest.fixture
def made() -> Iterator[list[Pair | End]]:
    """Objects that are closed at the end."""
    ends: list[Pair | End] = []
    yield ends
    for end in ends:
        end.close()


def given(end: End, data: bytes) -> threading.Thread:
    """Gives it all, and then the end, in the background."""

    def give() -> None:
        with suppress(OSError):
            end.plain.sendall(data)
            end.plain.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=give)
    thread.start()
    return thread


@pytest.mark.parametrize("compressed", [False, True], ids=["as it is", "compressed"])
def test_both_directions_come_whole_and_in_no_clear(program: Path, made: list[Pair | End], compressed: bool) -> None:
    pair = Pair(program, compressed=compressed)
    made.append(pair)
    noise = os.urandom(3 << 20)
    for _ in range(20):  # each is answered before the next one: nothing is held back
        pair.source.plain.sendall(b"asked")
        assert pair.sink.plain.recv(100) == b"asked"
        pair.sink.plain.sendall(MARK)
        assert pair.source.plain.recv(1000) == MARK
    there, back = given(pair.source, TEXT + noise), given(pair.sink, noise[::-1])
    answered = list[bytes]()
    reader = threading.Thread(target=lambda: answered.append(pair.source.all()))
    reader.start()
    assert pair.sink.all() == TEXT + noise
    for thread in (there, back, reader):
        thread.join(waiting.bound())
    assert answered == [noise[::-1]]
    assert pair.source.ended() == pair.sink.ended() == (0, "")
    assert MARK[:16] not in pair.wire.said and MARK[:16] not in pair.wire.answered
    assert noise[:16] not in pair.wire.said and noise[::-1][:16] not in pair.wire.answered
    sent, least = len(pair.wire.said), len(noise) + (0 if compressed else len(TEXT))
    assert least < sent < least + len(TEXT) // 10


def test_one_direction_ends_before_the_other(program: Path, made: list[Pair | End]) -> None:
    pair = Pair(program)
    made.append(pair)
    pair.source.plain.sendall(b"all")
    pair.source.plain.shutdown(socket.SHUT_WR)
    assert pair.sink.all() == b"all"
    pair.sink.plain.sendall(TEXT[:100_000])
    pair.sink.plain.close()
    assert pair.source.all() == TEXT[:100_000]
    assert pair.source.ended() == pair.sink.ended() == (0, "")


def test_who_has_another_key_is_refused(program: Path, made: list[Pair | End]) -> None:
    pair = Pair(program, keys=(KEY, KEY[::-1]))
    made.append(pair)
    given(pair.source, TEXT).join(waiting.bound())
    assert pair.sink.all() == pair.source.all() == b""
    for end in (pair.source, pair.sink):
        code, said = end.ended()
        assert code == UNTRUSTED and "does not have the key" in said, said
    assert MARK[:16] not in pair.wire.said


def test_a_certificate_is_no_key(program: Path, made: list[Pair | End], tmp_path: Path) -> None:
    """A TLS server in the place of the destination, without the key."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -keyout key -out made"
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True, timeout=waiting.bound())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "made", tmp_path / "key")
    near, far = connected()
    source = End(program, "connect", near)
    made.append(source)
    giving = given(source, TEXT)
    with far, pytest.raises(OSError), context.wrap_socket(far, server_side=True) as server:
        server.recv(1)
    giving.join(waiting.bound())
    assert source.all() == b"" and source.ended()[0] == UNTRUSTED


DAMAGES: dict[str, Damage] = {
    "changed": lambda data: data[:500] + bytes([data[500] ^ 8]) + data[501:],
    "sent twice": lambda data: data + data,
    "left out": lambda data: b"",
    "in clear": lambda data: bytes(len(data)),
    "mixed up": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
}


@pytest.mark.parametrize("compressed", [False, True], ids=["as it is", "compressed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_damaged_on_the_way_is_never_given(
    program: Path, made: list[Pair | End], damage: Damage, compressed: bool
) -> None:
    text = os.urandom(1 << 20)
    pair = Pair(program, compressed=compressed, behind=200_000, damage=damage)
    made.append(pair)
    giving = given(pair.source, text)
    came = pair.sink.all()
    assert pair.wire.struck and len(came) < len(text) and text.startswith(came)
    code, said = pair.sink.ended()
    assert code == UNTRUSTED and "data was changed" in said, said
    assert pair.source.ended()[0] in (LOST, UNTRUSTED)
    giving.join(waiting.bound())


@pytest.mark.parametrize("compressed", [False, True], ids=["as it is", "compressed"])
def test_a_connection_that_is_cut_has_no_good_end(program: Path, made: list[Pair | End], compressed: bool) -> None:
    (near, one), (other, far) = connected(), connected()
    source, sink = End(program, "connect", near, compressed=compressed), End(program, "accept", far)
    made += [source, sink]
    wire = Wire(one, other)
    source.plain.sendall(b"a")
    assert sink.plain.recv(1) == b"a" and wire.said
    other.shutdown(socket.SHUT_WR)  # an attacker between them pretends that this was all
    assert sink.all() == b"" and sink.ended() == (LOST, "wherry-tls: the connection is lost\n")


def test_what_was_recorded_cannot_be_played_again(program: Path, made: list[Pair | End]) -> None:
    pair = Pair(program)
    made.append(pair)
    given(pair.source, TEXT).join(waiting.bound())
    assert pair.sink.all() == TEXT
    pair.sink.plain.close()
    assert pair.sink.ended()[0] == 0
    near, far = connected()
    sink = End(program, "accept", far)  # that has the same key, which no two connections of a move have
    made.append(sink)
    with near, suppress(OSError):
        near.sendall(pair.wire.said)
        near.shutdown(socket.SHUT_WR)
    assert sink.all() == b"" and sink.ended()[0] in (LOST, UNTRUSTED)


def test_no_bytes_of_a_stranger_harm_who_accepts(program: Path, made: list[Pair | End]) -> None:
    pair = Pair(program)
    pair.source.plain.sendall(b"a")
    assert pair.sink.plain.recv(1) == b"a"
    hello = bytes(pair.wire.said)
    pair.close()
    chance = random.Random(1)
    for _ in range(40):
        said = bytearray(hello)
        for _ in range(chance.choice((0, 1, 3))):
            said[chance.randrange(len(said))] ^= 1 << chance.randrange(8)
        said = said[: chance.choice((1, 5, len(said) // 2, len(said), len(said)))]
        if not chance.randrange(4):
            said = bytearray(chance.randbytes(300))
        near, far = connected()
        sink = End(program, "accept", far)
        made.append(sink)
        with near, suppress(OSError):
            near.sendall(said)
            near.shutdown(socket.SHUT_WR)
        assert sink.all() == b""
        code, said_of_it = sink.ended()
        assert code in (LOST, UNTRUSTED), said_of_it


def test_a_program_that_ends_early_ends_the_connection(program: Path, made: list[Pair | End]) -> None:
    pair = Pair(program)
    made.append(pair)
    giving = given(pair.source, TEXT * 10)
    assert pair.sink.plain.recv(10)
    pair.sink.plain.close()
    assert pair.sink.ended()[0] == 1
    assert pair.source.ended()[0] in (LOST, UNTRUSTED)
    giving.join(waiting.bound())


@pytest.mark.parametrize("words", [[], ["connect"], ["other", "3", "4", "5"], ["accept", "3", "4", "x"]])
def test_wrong_usage_is_told(words: list[str]) -> None:
    done = subprocess.run(
        [native_program("wherry-tls"), *words], capture_output=True, text=True, timeout=waiting.bound()
    )
    assert done.returncode == 2 and "usage" in done.stderr
