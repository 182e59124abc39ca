"""wherry-pager send: memory that processes share, and huge pages (native/pager/objects.h).

After the last pass the destination has every page of each object that CRIU shall leave out, and of no other.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import test_pager_send
from page_streams import PAGE, ZERO, Receiver
from test_pager_send import Sender, freeze, start_in

from wherry.fabric.cgroup import Cgroup

pytestmark = test_pager_send.pytestmark
programs, node = test_pager_send.programs, test_pager_send.node
TABLE = 1 << 31
MEBI = 1 << 20
HUGE = Path("/proc/sys/vm/nr_hugepages")
PROGRAM = """
import ctypes, fcntl, mmap, os, random, sys, time
MEBI, PAGE = 1 << 20, 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at_random = random.Random(1)

def memfd(name, size, flags=0):
    fd = os.memfd_create(name, flags)
    os.ftruncate(fd, size)
    return fd

def scribble(memory, count, size=None):
    for _ in range(count):
        page = at_random.randrange((size or len(memory)) // PAGE)
        memory[page * PAGE : page * PAGE + 8] = at_random.randbytes(8)

def listen():
    print("ready", flush=True)
    for line in os.fdopen(int(sys.argv[1])):
        exec(line, globals())
        print("done", flush=True)
"""
BEGIN = """
idle = mmap.mmap(-1, 16 * MEBI)
idle[:] = b"i" * len(idle)
of_two = mmap.mmap(-1, 4 * MEBI)
scribble(of_two, 400)
parts_fd = memfd("parts", 4 * MEBI)
os.pwrite(parts_fd, b"p" * (4 * MEBI), 0)
part = mmap.mmap(parts_fd, 2 * MEBI, offset=1 * MEBI)
segment_id = libc.shmget(0, 2 * MEBI, 0o600)
segment = (ctypes.c_char * (2 * MEBI)).from_address(libc.shmat(segment_id, None, 0))
libc.shmctl(segment_id, 0, None)
sized_fd = memfd("sized", 8 * MEBI)
sized = mmap.mmap(sized_fd, 8 * MEBI)
scribble(sized, 800)
odd_fd = memfd("odd", 2 * MEBI + 100)
odd = libc.mmap(None, 2 * MEBI + PAGE, 3, mmap.MAP_SHARED, odd_fd, 0)
ctypes.memset(odd + 2 * MEBI, 7, PAGE)
leaving_fd = memfd("leaving", 2 * MEBI)
leaving = mmap.mmap(leaving_fd, 2 * MEBI)
leaving[:] = b"l" * len(leaving)
sealed_fd = memfd("sealed", 2 * MEBI, os.MFD_ALLOW_SEALING)
sealed = mmap.mmap(sealed_fd, 2 * MEBI)
sealed[:] = b"s" * len(sealed)
small = mmap.mmap(-1, MEBI // 2)
small[:] = b"x" * len(small)
file_fd = os.open("/dev/shm/wherry-object", os.O_RDWR | os.O_CREAT)
os.unlink("/dev/shm/wherry-object")
os.ftruncate(file_fd, 2 * MEBI)
file = mmap.mmap(file_fd, 2 * MEBI)
file[:] = b"f" * len(file)
unmapped_fd = memfd("unmapped", 2 * MEBI)
os.pwrite(unmapped_fd, b"u" * PAGE, 0)
if not os.fork():
    sealed.close()
    leaving.close()
    part.close()
    other = mmap.mmap(parts_fd, 2 * MEBI, offset=2 * MEBI)
    while True:
        scribble(of_two, 1)
        scribble(other, 1)
        time.sleep(0.01)
listen()
"""
CHANGES = (
    "scribble(of_two, 20); os.pwrite(parts_fd, b'q' * PAGE, 0); segment[5 * PAGE] = b'5'; scribble(sized, 20)",
    "os.ftruncate(sized_fd, 5 * MEBI); os.ftruncate(sized_fd, 6 * MEBI); os.pwrite(sized_fd, b'z', 5 * MEBI + 77)",
    "libc.fallocate(sized_fd, 3, ctypes.c_long(MEBI), ctypes.c_long(MEBI)); ctypes.memset(odd + 2 * MEBI + 50, 8, 99)",
    "sealed.close(); fcntl.fcntl(sealed_fd, 1033, 8); sealed = mmap.mmap(sealed_fd, 2 * MEBI, mmap.MAP_SHARED, 1)",
    "leaving.close(); os.pwrite(leaving_fd, b'w' * PAGE, PAGE); later = mmap.mmap(-1, 3 * MEBI); scribble(later, 50)",
    "segment[6 * PAGE] = b'6'; idle[3 * PAGE] = 51; idle[4 * MEBI] = 52",
)
CARRIED = {"/dev/zero": 3, "/memfd:parts": 1, "/memfd:sized": 1, "/memfd:odd": 1, "/SYSV00000000": 1}
"""By name, the objects that there are in the end."""


@dataclass
class Carried:
    """An object of the table: the first process that maps it, as this one counts, its addresses, and its kind."""

    number: int
    kind: str
    pid: int
    start: int
    end: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/map_files/{self.start:x}-{self.end:x}"


class Subject:
    """A process that takes commands."""

    def __init__(self, group: Cgroup, begin: str) -> None:
        read, self._write = os.pipe()
        words = [sys.executable, "-X", "faulthandler", "-c", PROGRAM + begin, str(read)]
        self.process = start_in(group, words, stdout=subprocess.PIPE, pass_fds=(read,))
        os.close(read)
        assert self._line() == "ready\n"

    def does(self, line: str) -> None:
        os.write(self._write, f"{line}\n".encode())
        assert self._line() == "done\n"

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


def table_of(receiver: Receiver, pids: list[int]) -> list[Carried]:
    """The table, whose numbers of processes are those of `pids`: there is no other PID namespace."""
    pages = receiver.pages.get(TABLE, {})
    text = b"".join(pages[at] for at in sorted(pages)).rstrip(b"\0").decode()
    first, *lines = text.splitlines()
    found = list[Carried]()
    while lines:
        word, number, kind, places = lines.pop(0).split()
        assert word == "object"
        inside, start, end, *_ = lines[0].split()
        assert int(inside) in pids
        found.append(Carried(int(number), kind, int(inside), int(start, 16), int(end, 16)))
        del lines[: int(places)]
    assert first == f"objects {len(found)}"
    return found


def contents(one: Carried) -> bytes:
    """The contents at the source, with the bytes behind the end of a file in its last page."""
    if one.kind == "p":
        with open(f"/proc/{one.pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), one.end - one.start, one.start)
    file = os.open(one.path, os.O_RDONLY)
    try:
        with mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            size = len(mapped)
        pages = -(-size // PAGE) * PAGE
        whole = os.pread(file, size, 0)
    finally:
        os.close(file)
    if size < pages:
        with open(f"/proc/{one.pid}/mem", "rb", buffering=0) as memory:
            whole += os.pread(memory.fileno(), pages - size, one.start + size)
    return whole


def differing(one: Carried, receiver: Receiver) -> list[str]:
    have, want = receiver.pages.get(one.number, {}), contents(one)
    pages = {*have, *range(0, len(want), PAGE)}
    return [f"{one} {at:x}" for at in sorted(pages) if have.get(at, ZERO) != (want[at : at + PAGE] or ZERO)]


def skipped_objects(sender: Sender) -> set[tuple[int, int]]:
    lines = [line.split() for line in sender.hidden.read_text().splitlines()[1:]]
    return {(int(device, 16), int(inode, 16)) for kind, device, inode in lines if kind in ("shared", "sysv")}


def pids_of(group: Cgroup) -> list[int]:
    return [int(pid) for pid in Path(group.freezer_procs_file()).read_text().split()]


def last_pass(sender: Sender, group: Cgroup) -> tuple[int, list[Carried]]:
    """Pages that were sent while the node was frozen, and the objects, all of whose pages are right."""
    freeze(group)
    sender.ask("last")
    word, _, pages, *_ = sender.line()
    assert word == "last"
    table = table_of(sender.receiver, pids_of(group))
    assert [wrong for one in table for wrong in differing(one, sender.receiver)][:5] == []
    shared = {(status.st_dev, status.st_ino) for one in table if one.kind == "s" for status in [os.stat(one.path)]}
    assert skipped_objects(sender) == shared
    assert {number for number in sender.receiver.pages if number > TABLE} <= {one.number for one in table}
    return int(pages), table


def test_every_page_of_shared_memory_is_there(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    subject = Subject(node, BEGIN)
    sender = Sender(programs[0], node, tmp_path)
    assert sender.line()[0] == "ready"
    for number, change in enumerate(CHANGES):
        if number % 2 == 0:
            assert sender.ask("round")[0] == "round"
        subject.does(change)
    pages, table = last_pass(sender, node)
    names: dict[str, int] = {}
    for one in table:
        name = os.readlink(one.path).removesuffix(" (deleted)")
        names[name] = names.get(name, 0) + 1
    assert names == CARRIED
    print(f"{pages} pages in the last pass")
    assert pages < 2500, "idle memory of 16 MiB is not sent again"
    node.thaw()
    subject.does("scribble(of_two, 5); part.close(); os.close(parts_fd)")
    assert sender.ask("round")[0] == "round"
    last_pass(sender, node)
    node.thaw()
    sender.end()


def test_a_round_tells_what_it_left(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    subject = Subject(node, "idle = mmap.mmap(-1, 48 * MEBI)\nidle[:] = b'i' * len(idle)\nlisten()\n")
    sender = Sender(programs[0], node, tmp_path)
    assert int(sender.line()[2]) >= 48 * MEBI
    assert int(sender.ask("round")[3]) >= 48 * MEBI // PAGE
    sender.ask("round")
    assert int(sender.ask("round")[5]) < MEBI
    subject.does("idle[:] = b'j' * len(idle)")
    _, _, _, pages, _, dirty, _ = sender.ask("round")
    assert int(pages) >= 48 * MEBI // PAGE and int(dirty) < MEBI
    last_pass(sender, node)
    node.thaw()
    sender.end()


@pytest.fixture
def huge_pages() -> Iterator[None]:
    """Four more on this machine."""
    try:
        before = int(HUGE.read_text())
        HUGE.write_text(str(before + 4))
    except OSError as error:
        pytest.skip(f"no huge pages can be reserved: {error}")
    try:
        if int(HUGE.read_text()) < before + 4:
            pytest.skip("no four huge pages can be reserved")
        yield
    finally:
        HUGE.write_text(str(before))


HUGE_BEGIN = """
huge = libc.mmap(None, 4 * MEBI, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, -1, 0)
assert huge != 2**64 - 1, f"no huge pages: {os.strerror(ctypes.get_errno())}; {open('/proc/meminfo').read()}"
memory = (ctypes.c_char * (4 * MEBI)).from_address(huge)
ctypes.memset(huge, 1, MEBI)
listen()
"""


def test_huge_pages_are_an_object_until_a_fork(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path, huge_pages: None
) -> None:
    subject = Subject(node, HUGE_BEGIN)
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    assert int(sender.ask("round")[3]) >= MEBI // PAGE
    subject.does("ctypes.memset(huge + 3 * MEBI, 2, 4096); ctypes.memset(huge + PAGE, 3, 1)")
    pages, table = last_pass(sender, node)
    assert [one.kind for one in table] == ["p"] and pages < MEBI // PAGE
    (one,) = table
    assert f"{one.pid} {one.start:x} {one.end:x}\n" in sender.hidden.read_text()
    node.thaw()
    subject.does("child = os.fork() or time.sleep(60)")
    freeze(node)
    sender.ask("last")
    sender.line()
    assert table_of(sender.receiver, pids_of(node)) == []
    assert f"{one.start:x} {one.end:x}" not in sender.hidden.read_text()
    node.thaw()
    sender.end()
