"""The native parsers of what comes from other programs, hosts and users, that no other test of the same name fuzzes."""

from __future__ import annotations

from fuzzing import fuzz

KEY = "0123456789abcdef" * 4
_BOARD = ("launch", "moves", "client", "names", "clock", "hello", "hosts", "mirror", "relay", "report", "state")
_TILES = ("uarea", "crc", "cpu", "elf", "window", "inbox", "portal", "sync", "movegraph")
_KINDS = 28
"""FRAME_KINDS of native/manycore/board/link.h."""


def test_no_job_file_breaks_the_agent() -> None:
    whole = f"user 0 0 4,24\ncwd /\nnode t-0 127.0.0.1 7310 {KEY}\nenv A=b c\n"
    corpus = {"whole": whole.encode(), "empty": b"", "bare": b"user\n"}
    fuzz(("fuzz/fuzz_jobfile.c", "rsh/jobfile.c", "lib/wire.c"), corpus, 20_000, 1024)


def test_no_frame_breaks_a_jobs_input() -> None:
    frame = bytes(8) + b"\0\3abc"
    corpus = {"one": b"\x0d" + frame, "again": frame + frame, "end": bytes(10)}
    fuzz(("fuzz/fuzz_input.c", "launch/input.c"), corpus, 20_000, 1024)


def test_no_command_and_no_frame_breaks_a_link_or_a_hold() -> None:
    corpus = {
        "set": b"set 1000000 0 8000000 0.1 60000000000 5 0 0\n\x01\x02\x7f\x80\x05\x81",
        "fast": b"set 60000000000 0 18446744073709551615 0 0 0 1 1\n\x40\x40\x80\x80",
        "show": b"show\n\x10\x80",
    }
    sources = ("fuzz/fuzz_link.c", "link/command.c", "link/shape.c", "link/line.c", "hold/frames.c", "lib/buffer.c")
    fuzz(sources, corpus, 3_000, 512)


def test_no_bytes_break_the_link_of_two_boards() -> None:
    head = bytes([3, 0, 0, 0, 2, 0, 1, 0]) + (1).to_bytes(8, "little") + bytes(8)
    corpus = {"frame": b"\xff" + head + b"abc", "halves": b"\x05" + head + b"abc", "ack": b"\xff" + bytes(24)}
    tiles = tuple(f"manycore/{name}.c" for name in ("window", "uarea", "crc", "cpu"))
    fuzz(("fuzz/fuzz_board_link.c", "manycore/board/link.c", *tiles), corpus, 5_000, 1024)


def test_no_frame_breaks_a_board() -> None:
    corpus = {
        f"{leads}-{kind}": bytes([leads, *(kind, 1, 0, 3, 0, 0), *(kind, 1, 1, 1, 0, 0), *(kind, 2, 1, 0, 0, 0)])
        for leads in (0, 1)
        for kind in range(_KINDS)
    }
    boards = tuple(f"manycore/board/{name}.c" for name in (*_BOARD, "transfer"))
    tiles = tuple(f"manycore/{name}.c" for name in _TILES)
    fuzz(("fuzz/fuzz_board.c", *boards, "manycore/tests/unconnected.c", *tiles), corpus, 1_000, 4096, ("nettle", "m"))
