"""wherry-pager receive: pages of shared memory and huge pages are written into frozen processes."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_streams import PAGE
from test_pager_receive import Receive

import waiting
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.node.container.priority import RaisedPriority

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the memory of other processes is root's")
TABLE = 1 << 31
PAGES = 1024
RESTORE_FINISHED = 0x52535446
"""Sent by CRIU in the place of a pid when all processes are restored."""
HOLDER = f"""
import ctypes, mmap, os, sys
fd = os.memfd_create("held")
os.ftruncate(fd, {PAGES * PAGE - 100})
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def at(pages, first, access):
    return libc.mmap(None, ctypes.c_size_t(pages * {PAGE}), access, mmap.MAP_SHARED, fd, ctypes.c_long(first * {PAGE}))
places = [(64, 0, 3), ({PAGES // 2}, 32, 1), ({PAGES // 2}, {PAGES // 2}, 3)]
found = [at(*place) for place in places]
private = libc.mmap(None, ctypes.c_size_t({16 * PAGE}), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
print(*found, private, flush=True)
sys.stdin.read()
"""


class Holder:
    """A process whose memory has nothing in it yet, as CRIU makes it: a part is mapped for writing, a part read-only,
    and the last page is not a whole one of the file."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        first, middle, last, self.private = map(int, self.process.stdout.readline().split())
        half = PAGES // 2
        self.places = [(first, 64, 0, 1), (middle, half, 32, 0), (last, half, half, 1)]
        self.last = last

    @property
    def pid(self) -> int:
        return self.process.pid

    def table(self, pid: int = 0) -> str:
        lines = [f"objects 2\nobject {TABLE + 1} s {len(self.places)}"]
        lines += [
            f"{pid or self.pid} {start:x} {start + pages * PAGE:x} {first * PAGE:x} {writable}"
            for start, pages, first, writable in self.places
        ]
        lines += [f"object {TABLE + 2} p 1", f"{pid or self.pid} {self.private:x} {self.private + 16 * PAGE:x} 0 1"]
        return "\n".join(lines) + "\n"

    def read(self, start: int, size: int) -> bytes:
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, start)

    def held(self) -> bytes:
        """All of the shared memory, by its three mappings."""
        parts = [self.read(start, pages * PAGE) for start, pages, _, _ in self.places]
        assert parts[0][32 * PAGE :] == parts[1][: 32 * PAGE]
        return parts[0] + parts[1][32 * PAGE : (PAGES // 2 - 32) * PAGE] + parts[2]


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "sanitized":
        return sanitized("wherry-pager") / "bin" / "wherry-pager"
    return native_program("wherry-pager")


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.process.communicate()


def send(receive: Receive, table: str, whole: bytes, private: bytes) -> None:
    first, other = receive.streams
    text = table.encode()
    first.data(TABLE, 0, text.ljust(-(-len(text) // PAGE) * PAGE, b"\0"))
    first.data(TABLE + 1, 0, whole[: 300 * PAGE])
    other.data(TABLE + 1, 300 * PAGE, whole[300 * PAGE :])
    other.data(TABLE + 1, (PAGES + 3) * PAGE, os.urandom(PAGE))  # behind the end of the object here
    other.data(TABLE + 2, PAGE, private)
    first.frame("Z", TABLE + 1, 7 * PAGE, 1)
    for stream in receive.streams:
        stream.frame("L", address=1)
    assert receive.line() == "last 1"


def ask(receive: Receive) -> str:
    assert receive.process.stdin
    receive.process.stdin.write("objects\n")
    receive.process.stdin.flush()
    return receive.line()


def test_every_page_is_where_it_belongs(program: Path, tmp_path: Path, holder: Holder) -> None:
    receive = Receive(tmp_path, program=program, tasks=f"{holder.pid}\n")
    whole, private = os.urandom(PAGES * PAGE), os.urandom(2 * PAGE)
    send(receive, holder.table(), whole, private)
    word, objects, size, _ = ask(receive).split()
    assert (word, objects, size) == ("objects", "2", str((PAGES + 2) * PAGE))
    status = os.stat(f"/proc/{holder.pid}/map_files/{holder.last:x}-{holder.last + PAGES // 2 * PAGE:x}")
    assert status.st_size == PAGES * PAGE - 100 and status.st_blocks * 512 == (PAGES - 1) * PAGE, "the hole is one"
    assert holder.held() == whole[: 7 * PAGE] + bytes(PAGE) + whole[8 * PAGE :]
    assert holder.read(holder.private, 4 * PAGE) == bytes(PAGE) + private + bytes(PAGE)
    receive.close()


def test_a_node_that_stands_is_not_taken_for_one_that_runs(program: Path, tmp_path: Path) -> None:
    """However long it is frozen before the commit: until then the receiver is the first victim of a host without
    memory, and fills nothing."""
    receive = Receive(tmp_path, program=program, tasks="1\n")
    first, other = receive.streams
    state, score = tmp_path / "freezer.state", Path(f"/proc/{receive.process.pid}/oom_score_adj")
    state.write_text("FROZEN\n")
    before = score.read_text()
    first.data(TABLE, 0, b"objects 0\n".ljust(PAGE, b"\0"))
    for stream in (first, other):
        stream.frame("L", address=1)
    assert receive.line() == "last 1"
    with socket.socket(socket.AF_UNIX) as criu:
        criu.connect(str(receive.socket))
        criu.sendall(struct.pack("i", RESTORE_FINISHED))
        assert receive.line() == "restored 0"
        assert ask(receive).startswith("objects 0 ")
        time.sleep(2.5)  # after a second it looks for the first time
        assert receive.process.poll() is None and score.read_text() == before
        state.write_text("THAWED\n")
        assert receive.line().startswith("filled 0 ")
    assert receive.ended() == (0, "")


def test_what_fills_beside_the_node_has_an_ordinary_priority(program: Path, tmp_path: Path) -> None:
    """Whatever priority the move has; a process that waits for a page does not wait for another thread."""
    raised = RaisedPriority()
    raised.raise_it()
    try:
        receive = Receive(tmp_path, program=program)
    finally:
        raised.reset()
    tasks = Path(f"/proc/{receive.process.pid}/task")
    waiting.until(lambda: [os.getpriority(os.PRIO_PROCESS, int(each.name)) for each in tasks.iterdir()].count(0) == 2)
    assert os.getpriority(os.PRIO_PROCESS, receive.process.pid) == -20
    receive.close()


@pytest.mark.parametrize("wrong", ["a process that is not there", "a table that is cut off", "too early"])
def test_what_has_no_place_ends_it(program: Path, tmp_path: Path, holder: Holder, wrong: str) -> None:
    receive = Receive(tmp_path, program=program, tasks=f"{holder.pid}\n")
    table = holder.table(pid=1 if wrong == "a process that is not there" else 0)
    if wrong != "too early":
        send(receive, table[: 100 if "cut" in wrong else None], bytes(PAGES * PAGE), bytes(PAGE))
    assert ask(receive) == ""
    code, said = receive.ended()
    assert code == 1 and ("shared memory cannot be found" in said or "not all of it has come" in said)
    receive.close()
