"""wherry-terminal, as built: keys, size, signals, ends."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import waiting
from fuzzing import fuzz
from wherry.base.paths import native_program


def typed(text: bytes) -> bytes:
    return b"D" + struct.pack(">H", len(text)) + text


@contextmanager
def on_terminal(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(native_program("wherry-terminal")), "24", "80", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def shown(process: subprocess.Popen[bytes], part: bytes) -> bytes:
    text = b""
    while part not in text:
        assert process.stdout
        piece = process.stdout.read1(4096)  # type: ignore[attr-defined]
        assert piece, text
        text += piece
    return text


def press(process: subprocess.Popen[bytes], *frames: bytes) -> None:
    assert process.stdin
    process.stdin.write(b"".join(frames))
    process.stdin.flush()


def test_a_program_has_a_terminal_of_the_users_size() -> None:
    with on_terminal(
        "sh", "-c", "test -t 0 && test -t 2; echo $?; stty size; read w; stty size; echo $w; exit 5"
    ) as one:
        shown(one, b"0\r\n24 80\r\n")
        press(one, b"W" + struct.pack(">HHH", 4, 50, 132), typed(b"wo"), typed(b"rd\n"))
        assert b"50 132\r\nword\r\n" in shown(one, b"word\r\n50 132\r\nword\r\n")
        assert one.wait(waiting.bound()) == 5


def test_keys_are_signals_and_signals_are_ends() -> None:
    with on_terminal("sh", "-c", "echo begun; exec sleep 100") as one:
        shown(one, b"begun")
        time.sleep(0.2)
        press(one, typed(b"\x03"))
        assert one.wait(waiting.bound()) == -2


def test_a_user_who_is_gone_hangs_it_up() -> None:
    script = "trap 'echo hung >/dev/stderr; exit 3' HUP; echo begun; while :; do sleep 0.1; done"
    with on_terminal("sh", "-c", script) as one:
        shown(one, b"begun")
        assert one.stdin
        one.stdin.close()
        assert one.wait(waiting.bound()) == 3
    with on_terminal("sh", "-c", "echo begun; exec sleep 100") as one:
        shown(one, b"begun")
        press(one, b"no frame")
        assert one.wait(waiting.bound()) == -1


def test_much_is_passed_on_whole() -> None:
    with on_terminal("sh", "-c", "stty -echo -onlcr; echo ready; head -c 300000 | wc -c; seq 100000") as one:
        shown(one, b"ready")
        line = b"x" * 999 + b"\n"
        press(one, *(typed(line * 10) for _ in range(30)))
        text = shown(one, b"\n100000\n")
        assert b"300000\n" in text and text.count(b"\n") == 100_001


def test_what_cannot_be_run() -> None:
    with on_terminal("/no/such/program") as one:
        assert one.stdout and b"/no/such/program" in one.stdout.read() and one.wait(waiting.bound()) == 127


@pytest.mark.thorough  # a fuzzer
def test_no_frame_breaks_it() -> None:
    corpus = {"keys": typed(b"abc"), "size": b"W" + struct.pack(">HHH", 4, 24, 80), "none": b"x"}
    fuzz(("fuzz/fuzz_terminal.c", "terminal/frames.c"), corpus, 20_000, 1024)
