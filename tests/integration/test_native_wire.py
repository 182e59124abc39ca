"""The parser of the wire."""

from fuzzing import fuzz


def test_no_input_breaks_the_parser() -> None:
    corpus = {
        "run": b"0\x000\x004,24\x00/\x002\x00ls\x00-l\x00A=b\x00",
        "frame": bytes.fromhex("500000000132"),
        "kill": b"10 9",
    }
    fuzz(("fuzz/fuzz_wire.c", "lib/wire.c"), corpus, 200_000, 4096)
