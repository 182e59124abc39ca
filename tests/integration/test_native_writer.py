"""wherry-writer on this machine alone: it reports how long it was stopped, and which of its pages have changed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waiting
from wherry.base.paths import native_program

PAGE = 4096
MEMORY = 8 << 20
ADDRESS = "127.0.0.1"


class Pair:
    """A writer and its peer."""

    def __init__(self, port: int, rate: float, working_set: int) -> None:
        program, place = str(native_program("wherry-writer")), (ADDRESS, str(port))
        pipe = subprocess.PIPE
        self.peer = subprocess.Popen([program, "peer", *place], stdin=pipe, stdout=pipe, text=True)
        words = [program, "write", *place, str(MEMORY), f"{rate:.0f}", str(working_set)]
        self.writer = subprocess.Popen(words)
        assert self.peer.stdout is not None
        assert self.peer.stdout.readline() == "ready\n"

    def end(self) -> dict[str, Any]:
        output, _ = self.peer.communicate(timeout=waiting.bound())
        assert self.writer.wait(waiting.bound()) == self.peer.returncode
        result: dict[str, Any] = json.loads(output)
        return result


@contextmanager
def pair(port: int, rate: float = 8e6, working_set: int = 1 << 20) -> Iterator[Pair]:
    both = Pair(port, rate, working_set)
    try:
        yield both
    finally:
        for process in (both.peer, both.writer):
            process.kill()
            process.wait()


@pytest.mark.measures("the rate may be a half of the requested one: a busy machine lets the writer run late")
def test_it_writes_at_its_rate_and_finds_all_right() -> None:
    with pair(7421) as both:
        time.sleep(1)
        result = both.end()
    assert both.peer.returncode == 0 and result["wrong"] == result["lost"] == 0
    assert result["steps"] > 100 and result["seconds"] >= 1
    assert 4e6 < result["written_bytes"] / result["seconds"] < 9e6


def test_both_ends_see_the_gap() -> None:
    with pair(7422) as both:
        time.sleep(0.1)
        stopped = time.time()
        both.writer.send_signal(signal.SIGSTOP)
        time.sleep(2)
        both.writer.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        result = both.end()
    assert both.peer.returncode == 0
    for end in ("gap", "peer_gap"):
        assert result[end] >= 1.9 and abs(result[f"{end}_at"] - stopped) < 1


@pytest.mark.parametrize("page", [3, 1000])
def test_a_page_that_is_not_what_was_written_is_found(page: int) -> None:
    """Among pages that are written all the time, and among pages that never are."""
    with pair(7423, rate=1e5) as both:
        both.writer.send_signal(signal.SIGSTOP)
        maps = Path(f"/proc/{both.writer.pid}/maps").read_text()
        spans = [(int(low, 16), int(high, 16)) for low, high in re.findall(r"(?m)^(\w+)-(\w+) rw", maps)]
        start = next(high - MEMORY for low, high in spans if high - low >= MEMORY)
        with open(f"/proc/{both.writer.pid}/mem", "r+b", 0) as memory:
            memory.seek(start + page * PAGE + 2000)
            memory.write(b"wrong")
        both.writer.send_signal(signal.SIGCONT)
        result = both.end()
    assert both.peer.returncode == 1 and result["wrong"] == 1 and result["lost"] == 0


@pytest.mark.parametrize("words", [[], ["peer", ADDRESS], ["write", ADDRESS, "7424", "8192", "0", "16384"]])
def test_what_it_cannot_do_is_refused(words: list[str]) -> None:
    done = subprocess.run(
        [native_program("wherry-writer"), *words], capture_output=True, text=True, timeout=waiting.bound()
    )
    assert done.returncode != 0 and "wherry-writer" in done.stderr
