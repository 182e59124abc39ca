"""The parsers of the wire, and of the bytes before its frames."""

import pytest

from fuzzing import fuzz

WIRE = ("lib/wire.c", "lib/inherited.c", "lib/number.c")
pytestmark = pytest.mark.thorough  # fuzzers


def test_no_input_breaks_the_parser() -> None:
    corpus = {
        "run": b"0\x000\x004,24\x00/\x00umask=18,nice=-5,core=0:unlimited\x002\x00ls\x00-l\x00A=b\x00",
        "frame": bytes.fromhex("500000000132"),
        "kill": b"10 9",
    }
    fuzz(("fuzz/fuzz_wire.c", *WIRE), corpus, 200_000, 4096)


def test_no_input_is_taken_for_the_other_side() -> None:
    hello = bytes([3, *range(64)])
    corpus = {
        "challenge": b"C\0\0\0\x21" + hello[:33],
        "answer": b"H\0\0\0\x41" + hello,
        "proof": b"A\0\0\0\x20" + hello[:32],
        "output": b"O\0\0\0\3abc" + bytes(16),
    }
    sources = ("fuzz/fuzz_handshake.c", *WIRE, "lib/handshake.c", "lib/seal.c")
    fuzz(sources, corpus, 50_000, 4096, ("nettle",))
