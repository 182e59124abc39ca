"""Compressed and sealed streams: `wherry-pager receive` takes only right frames."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stream_codec import PAGE, Seal, crc32c, packed, packed_pages
from test_pager_receive import ADDRESS, Receive, Stream

from sanitized import sanitized
from wherry.base.paths import native_program

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfd with events of forks is root's"),
    pytest.mark.usefixtures("program"),  # some tests ask for it by the name of another
]
KEY = bytes(range(32))
TEXT = b"pages of text. " * (40 * PAGE // 15)
CONTENTS = TEXT[: 8 * PAGE]
PAYLOAD = packed_pages(CONTENTS)


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "sanitized":
        return sanitized("wherry-pager") / "bin" / "wherry-pager"
    return native_program("wherry-pager")


@pytest.fixture
def receive(tmp_path: Path, program: Path) -> Iterator[Receive]:
    made = Receive(tmp_path, program=program)
    yield made
    made.close()


@pytest.fixture
def sealed(tmp_path: Path, program: Path) -> Iterator[Receive]:
    made = Receive(tmp_path, program=program, key=KEY)
    yield made
    made.close()


def put(stream: Stream, payload: bytes = PAYLOAD, pages: int = 8, crc: int | None = None) -> None:
    stream.frame("C", 5, ADDRESS, pages, payload, crc)


@pytest.mark.parametrize("which", ["receive", "sealed"])
def test_rounds_come_compressed_and_as_they_are(which: str, request: pytest.FixtureRequest) -> None:
    made: Receive = request.getfixturevalue(which)
    first, second = made.streams
    put(first)
    first.data(5, ADDRESS + 8 * PAGE, os.urandom(600 * PAGE))  # in several frames and chunks
    second.frame("C", 6, ADDRESS - PAGE, 256, packed_pages(bytes(255 * PAGE) + CONTENTS[:PAGE]))
    for stream in made.streams:
        stream.frame("R", address=1)
    assert first.answer() == (1, 0) and made.line() == "round 1"
    second.data(5, ADDRESS, CONTENTS)
    put(first, packed_pages(CONTENTS[::-1]))
    for stream in made.streams:
        stream.frame("L", address=2)
    assert first.answer() == (2, 1) and made.line() == "last 2"
    made.process.terminate()
    assert made.ended() == (0, "")


def too_few_pages(stream: Stream) -> None:
    put(stream, pages=9)


def too_many_pages(stream: Stream) -> None:
    """A bomb: more than there is room for."""
    put(stream, pages=1)


def much_too_many_pages(stream: Stream) -> None:
    put(stream, packed_pages(bytes(64 << 20))[:4000], pages=1)


def other_contents(stream: Stream) -> None:
    put(stream, packed_pages(CONTENTS, check=crc32c(CONTENTS) ^ 1))


def not_compressed(stream: Stream) -> None:
    put(stream, os.urandom(1000))


def nothing(stream: Stream) -> None:
    put(stream, PAYLOAD[:4])


def longer_than_the_contents(stream: Stream) -> None:
    put(stream, bytes(8 * PAGE))


def another_payload_than_its_checksum(stream: Stream) -> None:
    put(stream, crc=1)


def cut_off(stream: Stream) -> None:
    put(stream, PAYLOAD[:-1])


def with_more_behind_it(stream: Stream) -> None:
    """Another zstd frame, whose contents would lie behind the pages."""
    put(stream, PAYLOAD + packed_pages(CONTENTS)[4:])


WRONG = (too_few_pages, too_many_pages, much_too_many_pages, other_contents, not_compressed, nothing)
WRONG += (longer_than_the_contents, another_payload_than_its_checksum, cut_off, with_more_behind_it)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("which", ["receive", "sealed"])
def test_what_is_compressed_wrong_ends_it(
    which: str, request: pytest.FixtureRequest, wrong: Callable[[Stream], None]
) -> None:
    made: Receive = request.getfixturevalue(which)
    wrong(made.streams[1])
    code, text = made.ended()
    assert code == 4 and text.count("\n") == 1 and "connection 1" in text


def test_no_bit_of_a_compressed_payload_may_change(receive: Receive) -> None:
    """Even when the frame's checksum has been made right again: the contents have their own."""
    changed = bytearray(PAYLOAD)
    changed[random.Random(7).randrange(12, len(PAYLOAD))] ^= 4
    put(receive.streams[0], bytes(changed))
    code, text = receive.ended()
    assert code == 4 and "compressed pages are wrong" in text


def of(kind: str, sequence: int, data: bytes = b"", pages: int = 1) -> bytes:
    return packed(kind, 5, ADDRESS, pages, len(data), crc32c(data) if data else 0, sequence)


def in_clear(made: Receive) -> None:
    made.streams[1].socket.sendall(of("Z", 0) + bytes(16))


def by_another_key(made: Receive) -> None:
    made.streams[1].socket.sendall(Seal(bytes(32), 1).frame(of("Z", 0), b""))


def of_another_connection(made: Receive) -> None:
    made.streams[1].socket.sendall(Seal(KEY, 0).frame(of("Z", 0), b""))


def of_the_other_direction(made: Receive) -> None:
    made.streams[1].socket.sendall(Seal(KEY, 1, to_source=True).frame(of("Z", 0), b""))


def twice(made: Receive) -> None:
    frame = Seal(KEY, 1).frame(of("D", 0, CONTENTS[:PAGE]), CONTENTS[:PAGE])
    made.streams[1].socket.sendall(frame + frame)


def in_another_order(made: Receive) -> None:
    seal = Seal(KEY, 1)
    one, other = (seal.frame(of("Z", number), b"") for number in range(2))
    made.streams[1].socket.sendall(other + one)


def left_out(made: Receive) -> None:
    seal = Seal(KEY, 1)
    seal.frame(of("Z", 0), b"")
    made.streams[1].socket.sendall(seal.frame(of("Z", 1), b""))


def changed(at: int) -> Callable[[Receive], None]:
    def act(made: Receive) -> None:
        frame = bytearray(Seal(KEY, 1).frame(of("D", 0, CONTENTS[:PAGE]), CONTENTS[:PAGE]))
        frame[at] ^= 0x20
        made.streams[1].socket.sendall(frame)

    act.__name__ = f"changed at {at}"
    return act


UNSEALED = (in_clear, by_another_key, of_another_connection, of_the_other_direction, twice, in_another_order, left_out)


@pytest.mark.parametrize("wrong", [*UNSEALED, *map(changed, (0, 11, 31, 32, 47, 48, 63, 64, 3000, 64 + PAGE - 1))])
def test_what_is_not_sealed_for_its_place_ends_it(sealed: Receive, wrong: Callable[[Receive], None]) -> None:
    wrong(sealed)
    code, text = sealed.ended()
    assert code == 4 and text.count("\n") == 1 and "connection 1" in text and "sealed" in text


def test_a_sealed_stream_is_nothing_to_one_without_the_key(receive: Receive) -> None:
    receive.streams[0].socket.sendall(Seal(KEY, 0).frame(of("Z", 0), b""))
    assert receive.ended()[0] == 4


def test_a_sealed_frame_shows_nothing(sealed: Receive) -> None:
    """Neither contents nor addresses go over the wire; equal frames differ."""
    seal, header = Seal(KEY, 0), of("D", 0, CONTENTS[:PAGE])
    one, other = (seal.frame(header, CONTENTS[:PAGE]) for _ in range(2))
    assert CONTENTS[:16] not in one and struct.pack(">Q", ADDRESS) not in one
    assert len(one) == len(header) + 16 + 16 + PAGE
    assert not any(one[at : at + 16] == other[at : at + 16] for at in range(0, len(one), 16))
