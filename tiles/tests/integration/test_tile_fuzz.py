"""The parsers of tiles: data from other tiles and boards, and from users."""

from __future__ import annotations

from tile_runs import NATIVE

from fuzzing import fuzz
from wherry.base.paths import native_program

_BOARD = sorted(map(str, NATIVE.glob("board/**/*.c")))
_SHARED = sorted(map(str, NATIVE.glob("shared/*.c")))
_KINDS = 28
"""FRAME_KINDS of tiles/native/board/hosts/channel.h."""
_TURN = 8
"""A flag of tiles/native/fuzz/fuzz_board.c: the board has a whole turn after the frame."""


def test_no_user_area_and_no_program_breaks_a_tile() -> None:
    shared = (f"{NATIVE}/shared/user_area.c", f"{NATIVE}/shared/crc32c.c")
    program = (native_program("wherry-tiles").parents[1] / "lib" / "tile" / "count").read_bytes()
    corpus = {"program": b"\0" + program[:16000], "area": b"\1" + bytes(4)}
    fuzz((f"{NATIVE}/fuzz/fuzz_user_area.c", f"{NATIVE}/board/program_loader.c", *shared), corpus, 3000, 16384)


def test_no_bytes_break_the_channel_of_two_boards() -> None:
    head = bytes([3, 0, 0, 0, 2, 0, 1, 0]) + (1).to_bytes(8, "little") + bytes(8)
    corpus = {"frame": b"\xff" + head + b"abc", "halves": b"\x05" + head + b"abc", "ack": b"\xff" + bytes(24)}
    fuzz((f"{NATIVE}/fuzz/fuzz_board_channel.c", f"{NATIVE}/board/hosts/channel.c", *_SHARED), corpus, 5_000, 1024)


def test_no_frame_breaks_a_board() -> None:
    corpus = {
        f"{leads}-{kind}-{turn}": bytes(
            [leads, *(kind, 1, 0, 3 | turn, 0, 0), *(kind, 1, 1, 1 | turn, 0, 0), *(kind, 2, 1, turn, 0, 0)]
        )
        for leads in (0, 1)
        for kind in range(_KINDS)
        for turn in (0, _TURN)
    }
    parts = [file for file in _BOARD if not file.endswith(("/main.c", "/channel.c"))]
    sources = (f"{NATIVE}/fuzz/fuzz_board.c", *parts, f"{NATIVE}/tests/fake_channel.c", *_SHARED)
    fuzz(sources, corpus, 1_000, 4096, ("nettle",))
