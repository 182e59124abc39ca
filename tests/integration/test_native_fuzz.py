"""The native parsers of data from other programs, hosts and users, that no other test of the same name fuzzes."""

from __future__ import annotations

from fuzzing import fuzz

KEY = "0123456789abcdef" * 4


def test_no_job_file_breaks_the_agent() -> None:
    whole = f"user 0 0 4,24\0cwd /\0inherited umask=63\0node t-0 127.0.0.1 7310 {KEY}\0env A=b\nc\0"
    sources = ("fuzz/fuzz_jobfile.c", "rsh/jobfile.c", "lib/wire.c", "lib/inherited.c", "lib/number.c")
    corpus = {"whole": whole.encode(), "empty": b"", "bare": b"user\0"}
    fuzz(sources, corpus, 20_000, 1024)


def test_no_frame_breaks_a_jobs_input() -> None:
    frame = bytes(8) + b"\0\3abc"
    corpus = {"one": b"\x0d" + frame, "again": frame + frame, "end": bytes(10)}
    fuzz(("fuzz/fuzz_job_input.c", "launch/job_input.c"), corpus, 20_000, 1024)


def test_no_command_and_no_frame_breaks_a_link_or_a_hold() -> None:
    corpus = {
        "set": b"set 1000000 0 8000000 0.1 60000000000 5 0 0\n\x01\x02\x7f\x80\x05\x81",
        "fast": b"set 60000000000 0 18446744073709551615 0 0 0 1 1\n\x40\x40\x80\x80",
        "show": b"show\n\x10\x80",
    }
    link = ("link/command.c", "link/shape.c", "link/delay_queue.c")
    sources = ("fuzz/fuzz_link.c", *link, "hold/frame_store.c", "lib/buffer.c")
    fuzz(sources, corpus, 3_000, 512)


def test_no_stream_breaks_the_receiver_of_a_nodes_memory() -> None:
    """Each frame is six bytes of the input: kind, connection, process, page, number of pages."""
    data, zero, gone, turn, damage, packed, hostile = (bytes([kind, 1, 0, 9, 1, 2]) for kind in range(7))
    frame = bytes.fromhex("28b52ffd") + b"\x20\xff" + bytes(16)  # of zstd
    corpus = {
        "rounds": b"\1" + data + turn + data + zero + turn + gone,
        "many": b"\2" + b"".join(bytes([0, number, number, number, 0, 2]) for number in range(40)),
        "damaged": b"\1" + data + damage + data,
        "packed": b"\1" + packed + turn + data + packed + zero,
        "hostile": b"\0" + hostile + bytes(4) + frame,
        "sealed": b"\x0a" + data + packed + turn + zero + gone,
        "sealed-damaged": b"\x09" + data + damage + packed,
        "late": b"\x11" + data + turn + data + zero,
        "late-sealed": b"\x1a" + data + packed + turn + zero + gone,
        "raw": b"\4" + bytes([0, 0, 0, 82]) + bytes(11) + b"\1" + bytes(16),
    }
    names = ("receiver", "cache", "fetch", "stream", "compress", "frame_seal")
    sources = ("fuzz/fuzz_pager_receiver.c", *(f"pager/{name}.c" for name in names))
    fuzz(sources, corpus, 3_000, 512, ("isal", "zstd", "crypto"))


def test_no_bytes_in_a_session_break_who_receives_them() -> None:
    """The third byte is the mark of the stream's beginning; zstd's frames begin with four of their own."""
    frame = bytes.fromhex("28b52ffd") + b"\x04\x48\x29\x00\x00hello"
    corpus = {
        "plain": b"\0\x20=as it is",
        "packed": b"\0\x01z" + frame,
        "wide": b"\0\xffz" + bytes.fromhex("28b52ffd") + b"\x00\xa0" + bytes(9),
        "neither": b"\0\x10?" + frame,
        "given": b"\1\x05" + b"some words, " * 9,
        "compressed": b"\2\xff" + b"some words, " * 99,
    }
    fuzz(("fuzz/fuzz_tls_flow.c", "tls/inflow.c", "tls/outflow.c"), corpus, 2_000, 1024, ("zstd",))
