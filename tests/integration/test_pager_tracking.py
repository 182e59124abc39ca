"""How the pager finds dirty pages on kernels that do not track writes, by comparing; and in which order it sends.

That every page arrives in each way: test_pager_send.py, which this file has its programs from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_pager_send import Sender, differing, freeze, node, programs  # noqa: F401 - fixtures

import waiting
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import tracking
from wherry.node.container.tracking import Tracking
from wherry.service import doctor

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are root's"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the sender and its subject"),
]
PAGES = 2048
SUBJECT = f"""
import ctypes, mmap, random, sys
memory = mmap.mmap(-1, {PAGES} * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
contents = [random.randbytes(4096) for _ in range({PAGES})]
memory[:] = b"".join(contents)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for line in sys.stdin:
    word, *pages = line.split()
    for page in map(int, pages):
        if word == "same":
            memory[page * 4096:page * 4096 + 4096] = contents[page]
        elif word == "zero":
            memory[page * 4096:page * 4096 + 4096] = bytes(4096)
        elif word == "drop":
            memory.madvise(mmap.MADV_DONTNEED, page * 4096, 4096)
        else:
            memory[page * 4096] = (memory[page * 4096] + 1) % 256
    print("done", flush=True)
"""
OWN = 200
"""Pages that Python itself writes between two rounds, at most."""


class Subject:
    """A process that writes pages on demand."""

    def __init__(self, node: Cgroup) -> None:  # noqa: F811
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUBJECT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        node.add(self.process.pid)
        assert self.process.stdout
        self.start = int(self.process.stdout.readline())

    def do(self, word: str, *pages: int) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{word} {' '.join(map(str, pages))}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        assert self.process.communicate()[0] == "" and self.process.returncode == 0


def sent(answer: list[str]) -> tuple[int, int]:
    """Pages with contents, and without, of an answer to `round` or `last`."""
    at = 1 if answer[0] == "last" else 2
    return int(answer[at + 1]), int(answer[at + 2])


def test_only_what_differs_is_sent(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:  # noqa: F811
    subject = Subject(node)
    sender = Sender(programs[0], node, tmp_path, Tracking.COMPARISON)
    assert sender.line()[:2] == ["ready", "1"]
    pages, _ = sent(sender.ask("round"))
    assert PAGES < pages < PAGES + 40_000, "and Python itself"
    subject.do("same", *range(PAGES))
    pages, _ = sent(answer := sender.ask("round"))
    assert pages < OWN and answer[5] == "-1", "written, but as it was; how much is to be sent next is not known"
    subject.do("add", *range(0, PAGES, 4))
    pages, zero = sent(sender.ask("round"))
    assert PAGES / 4 <= pages < PAGES / 4 + OWN and zero < OWN
    subject.do("zero", *range(0, PAGES, 4))
    subject.do("drop", *range(1, PAGES, 4))
    pages, zero = sent(sender.ask("round"))
    assert pages < OWN and PAGES / 2 <= zero < PAGES / 2 + OWN
    subject.do("same", *range(1, PAGES, 4))
    freeze(node)
    sender.ask("last")
    pages, zero = sent(sender.line())
    assert PAGES / 4 <= pages < PAGES / 4 + OWN and zero < OWN
    assert differing(node, sender.receiver)[0] == []
    node.thaw()
    sender.end()
    subject.end()


def test_what_is_written_again_is_sent_last(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:  # noqa: F811
    subject = Subject(node)
    sender = Sender(programs[0], node, tmp_path, count=1)
    sender.line()

    def order(*written: int) -> list[int]:
        """Pages of the subject in the order in which a round sends them."""
        subject.do("add", *written)
        sender.receiver.order.clear()
        sender.ask("round")
        pages = [(at - subject.start) // 4096 for pid, at in sender.receiver.order if pid == subject.process.pid]
        return [page for page in pages if 0 <= page < PAGES]

    assert order() == list(range(PAGES))
    assert order(5) == [5]
    assert order(5, 2000) == [2000, 5]
    assert order(5, 2000, 1000) == [1000, 5, 2000]
    sender.end()
    subject.end()


def test_who_only_the_last_pass_met(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:  # noqa: F811
    """It remembers the pages that it sent of such a process when the node continues."""
    first = Subject(node)
    sender = Sender(programs[0], node, tmp_path, Tracking.COMPARISON)
    sender.line()
    sender.ask("round")
    second = Subject(node)
    for word in ("zero", "add", "drop"):
        freeze(node)
        sender.ask("last")
        sender.line()
        assert differing(node, sender.receiver)[0] == []
        node.thaw()
        second.do(word, *range(PAGES))
    freeze(node)
    sender.ask("last")
    sender.line()
    assert differing(node, sender.receiver)[0] == []
    node.thaw()
    sender.end()
    first.end(), second.end()


@pytest.fixture(params=["as built", "sanitized"])
def build(request: pytest.FixtureRequest) -> Path:
    if request.param == "sanitized":
        return sanitized("test_page_sums")
    return native_program("wherry-pager").parents[1]


def test_unit_tests(build: Path) -> None:
    subprocess.run([build / "tests" / "test_page_sums"], check=True, timeout=100)


def test_the_best_way_is_probed() -> None:
    command = [str(native_program("wherry-pager")), "send", "--probe"]
    best, *lacks = subprocess.run(
        command, capture_output=True, text=True, timeout=waiting.bound(), check=True
    ).stdout.splitlines()
    ways = list(Tracking)
    assert [line.split(": ")[0] for line in lacks] == ways[: ways.index(Tracking(best))]
    assert tracking.probed().tracking == best and tracking.probed("comparison").tracking == Tracking.COMPARISON
    assert tracking.receiver_obstacle() == ""
    wrong = tracking.probed("guessing")
    assert wrong.tracking is None and "no tracking is named guessing" in wrong.obstacle


def test_a_way_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_TRACKING", "comparison")
    assert tracking.chosen().tracking == Tracking.COMPARISON
    found = {finding.name: finding for finding in doctor._dirty_pages()}
    if found["dirty pages"].health == doctor.Health.OK:  # CRIU restores lazily
        assert found["dirty pages"].text.startswith("by comparison: memory is sent while the node runs")
        assert "compares all memory while the node is frozen" in found["downtime"].text
        assert found["downtime"].remedy == "unset WHERRY_TRACKING"
    monkeypatch.setenv("WHERRY_TRACKING", "guessing")
    (finding,) = doctor._dirty_pages()
    assert finding.health == doctor.Health.LIMITED and "sends all memory while the node is frozen" in finding.text


@pytest.mark.parametrize("words", [("send",), ("sample", "--tasks", "/dev/null", "--seconds", "1")])
def test_an_unknown_way_is_refused(programs: tuple[Path, Path], words: tuple[str, ...]) -> None:  # noqa: F811
    command = [str(native_program("wherry-pager")), *words, "--tracking", "guessing"]
    command += ["--probe"] if words[0] == "send" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=waiting.bound())
    assert done.returncode == 2 and "no tracking is named guessing" in done.stderr
