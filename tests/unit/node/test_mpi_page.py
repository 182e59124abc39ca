"""A rank's memory is read with care: forged pages are refused or are numbers; and the period of its calls."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.job import mpi_profile
from wherry.job.mpi_profile import period
from wherry.node import mpi_page
from wherry.node.mpi_page import Page

WORDS = st.integers(0, 2**32 - 1) | st.integers(0, 64)
LONG_WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 4096)


@settings(max_examples=examples(200))
@given(
    st.lists(WORDS, min_size=8, max_size=8), st.lists(LONG_WORDS, min_size=18, max_size=18), st.binary(max_size=2048)
)
def test_a_forged_page_is_refused_or_is_numbers(short: list[int], long: list[int], rest: bytes) -> None:
    short[0] = 1
    long[5] = mpi_page._HEAD.size + len(rest)
    try:
        page = Page(mpi_page._HEAD.pack(b"WHERRYMP", *short, *long) + rest, 0.0)
    except ValueError:
        return
    assert page.time >= 0 and page.in_call >= 0 and isinstance(page.now, str)
    assert all(cell.calls for cell in page.cells())
    assert all(0 <= index <= page.size for index in page.peers())
    assert len(page.latest()) <= len(rest) and len(page.communicators()) <= len(rest)


def forged(name: bytes = b"Send", ring: bytes = b"", /, **words: int) -> bytes:
    """A page of rank 1 of 2 with one operation, with other words in their places."""
    cells = mpi_page._HEAD.size + 24
    places = {
        "version": 1, "operations": 1, "classes": 16, "ring": 4096,
        "rank": 1, "size": 2, "communicators": 64, "flags": 0,
        "names_at": mpi_page._HEAD.size, "cells_at": cells, "ring_at": cells + 768, "communicators_at": cells + 33536,
        "peers_at": cells + 35584, "bytes": cells + 35680, "rate": 1 << 30, **dict.fromkeys("abcdefghijk", 0),
    }  # fmt: skip
    rest = name.ljust(24, b"\0") + bytes(768) + ring.ljust(32768, b"\0") + bytes(2048 + 96)
    return mpi_page._HEAD.pack(b"WHERRYMP", *{**places, **words}.values()) + rest


def test_a_page_of_another_shape_or_with_names_that_are_none_is_refused() -> None:
    page = Page(forged(), 0.0)
    assert (page.rank, page.size, page.operations, page.spawned) == (1, 2, ["Send"], False)
    shapes = [
        {"operations": 0}, {"operations": 257}, {"classes": 15}, {"classes": 2**32 - 1}, {"ring": 1},
        {"ring": 2**32 - 1}, {"communicators": 65}, {"rank": 2}, {"size": 3}, {"size": 0},
        {"bytes": 5}, {"rate": 0}, {"names_at": 2**63},
    ]  # fmt: skip
    for words in shapes:
        with pytest.raises(ValueError):
            Page(forged(**words), 0.0)
    for name in (b"", b"\x1b[2J", b"a b", "\u00e9".encode(), b"\xff", b"1"):
        with pytest.raises(ValueError):
            Page(forged(name), 0.0)


def test_times_of_the_latest_calls_go_on_when_they_wrap_and_stand_when_they_go_back() -> None:
    times = [2**32 - 2**20, 2**20, 2**31, 2**32 - 1, 2**31, 2**31 + 2**20]
    ring = b"".join(struct.pack("<II", index, time) for index, time in enumerate(times))
    page = Page(forged(b"Send", ring, d=len(times)), 0.0)
    assert [seconds for _, seconds in page.latest()] == pytest.approx([0, 2, 2049, 4097, 4097, 4098], abs=1e-3)


def test_readings_by_clocks_that_differ_are_not_compared() -> None:
    def reading(read: float, seconds: float, ended: float = 0.0) -> tuple[str, int, Page]:
        ticks = {"b": int(seconds * 2**30), "c": int(read * 1e9), "j": int(ended * 2**30)}
        return "node", 1, Page(forged(**ticks), read)

    before = reading(100.0, 5.0)
    assert mpi_profile._same(before, reading(102.0, 7.0)) and mpi_profile._same(before, reading(102.0, 7.0, 5.1))
    for later in (reading(102.0, 5.5), reading(102.0, 10.0), reading(102.0, 4.0), reading(99.0, 6.0)):
        assert not mpi_profile._same(before, later)


def test_a_page_that_is_larger_than_the_job_needs_is_not_read(tmp_path: Path) -> None:
    """Its process declares a page of so many bytes, in the writable data of a library of that name."""
    library = tmp_path / "libwherry-mpi.so"
    library.write_bytes(bytes(1 << 19))
    script = (
        "import mmap, os, sys, struct, ctypes\n"
        "data = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 1 << 19, mmap.MAP_PRIVATE)\n"
        "data[64 : 64 + int(sys.argv[2])] = sys.stdin.buffer.read(int(sys.argv[2]))\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(data)) + 64\n"
        "data[:40] = b'wherry: mpi page' + struct.pack('<QQQ', at, int(sys.argv[3]), os.getpid())\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    most = (1 << 18) + 32 * 3
    for size, seen in ((len(forged()), True), (most, True), (most + 1, False)):
        page = forged(bytes=size).ljust(size, b"\0")
        words = [sys.executable, "-c", script, str(library), str(len(page)), str(size)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin and process.stdout
            process.stdin.write(page)
            process.stdin.flush()
            process.stdout.readline()
            assert (mpi_page.read(process.pid, 2) is not None) == seen
            process.stdin.close()
            process.wait(10)


@given(st.binary(max_size=512))
def test_anything_else_is_no_page(data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        Page(data, 0.0)


def test_a_process_without_the_library_has_no_page() -> None:
    assert mpi_page.read(os.getpid(), 4) is None
    assert mpi_page.read(2**22 + 1, 4) is None


def calls(turn: list[int], turns: int, seconds: float) -> list[tuple[int, float]]:
    each = seconds / len(turn)
    return [(call, index * each) for index, call in enumerate(turn * turns)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.floats(0.001, 10))
def test_the_period_is_that_of_the_calls(turn: list[int], seconds: float) -> None:
    turn = [*turn, 9]
    found = period(calls(turn, 25, seconds))
    assert found is not None
    assert found[1] == len(turn) and found[0] == pytest.approx(seconds)


def test_a_call_that_differs_now_and_then_does_not_hide_it() -> None:
    latest = calls([1, 2, 2, 3], 40, 1.0)
    latest[37] = 8, latest[37][1]
    assert period(latest) == (pytest.approx(1.0), 4)


def test_few_calls_and_those_without_order_have_none() -> None:
    assert period(calls([1, 2], 4, 1.0)) is None
    assert period([(index * index % 7919, float(index)) for index in range(500)]) is None
