"""The counters of libwherry-mpi.so in a rank, read from the rank's memory while it runs (layout: native/mpi/page.h).

Invariants: nothing in a node is stopped or changed; each counter is whole, while those of one call may be of before and
after it; only a process with a page counts as a rank, and a forged page shows its user's own figures wrong, nothing
else: sizes are looked at before anything is read by them, so the cost of a page is bounded by the ranks of its job.
"""

from __future__ import annotations

import os
import re
import struct
import time
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ANCHOR = struct.Struct("<16sQQQ")
_HEAD = struct.Struct("<8s8I18Q")
_MAGIC, _PAGE_MAGIC, _VERSION = b"wherry: mpi page", b"WHERRYMP", 1
_NAME, _CELL, _COMMUNICATOR, _PEER = 24, 6, 4, 4
"""Bytes of a name; 8-byte words of a cell, a communicator and a peer."""
_SHAPE = 16, 4096, 64
"""Classes, entries of the ring and communicators: as the library has them, or it is no page of ours."""
_OPERATIONS, _COMMON = 256, 1 << 18
"""Operations at most, and bytes of a page at most but for its peers."""
_SPAWNED = 2
"""Flag: the world was started by another one (MPI_Comm_spawn)."""
_PARTS, _PART = 4, 1 << 20
"""Writable parts of the library that are looked at, and bytes of each; it has one."""
_MAPS = 4 << 20
"""Bytes of a process's list of mappings that are looked at for the reason that it has no page."""
_WRITABLE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.. .*/libwherry-mpi\.so(?: \(deleted\))?")


@dataclass(frozen=True)
class Cell:
    """The calls of one operation with sizes of one class: from `least` bytes up to four times that."""

    operation: str
    least: int
    calls: int
    bytes: int
    ticks: int
    waiting: int


@dataclass(frozen=True)
class Peer:
    """The messages that were sent to a rank of MPI_COMM_WORLD, and the blocking receives from it."""

    messages: int
    bytes: int
    receives: int
    ticks: int


@dataclass(frozen=True)
class Communicator:
    """Calls on a communicator. The last one of a page stands for all that have no place of their own."""

    size: int
    calls: int
    bytes: int
    ticks: int


class Page:
    """The counters of one rank, `read` at that time of the wall clock. ValueError when these bytes are none."""

    def __init__(self, data: bytes, read: float) -> None:
        self.data, self.read = data, read
        if len(data) < _HEAD.size:
            raise ValueError("too short")
        magic, version, self._operations, self._classes, self._ring, *words = _HEAD.unpack_from(data)
        self.rank, self.size, self._communicators, self.flags, *words = words
        self._names_at, self._cells_at, self._ring_at, self._communicators_at, self._peers_at, total, *words = words
        self.rate, self.begun, self._seen, seen_wall, self.calls, self.inside, self.polling, *words = words
        self._now, self.since, self.last, self.ended, self.by_levels = words
        self._seen_wall = seen_wall / 1e9
        ends = (
            (self._names_at, self._operations * _NAME),
            (self._cells_at, self._operations * self._classes * _CELL * 8),
            (self._ring_at, self._ring * 8),
            (self._communicators_at, self._communicators * _COMMUNICATOR * 8),
            (self._peers_at, (self.size + 1) * _PEER * 8),
        )
        if magic != _PAGE_MAGIC or version != _VERSION or total != len(data) or not self.rate:
            raise ValueError("no page of this version")
        if (self._classes, self._ring, self._communicators) != _SHAPE or not 0 < self._operations <= _OPERATIONS:
            raise ValueError("it has another shape")
        if self.rank >= self.size:
            raise ValueError("it is of no rank of its world")
        if any(at + length > len(data) for at, length in ends):
            raise ValueError("a part is not in it")
        self.operations = [self._name(self._names_at + index * _NAME) for index in range(self._operations)]
        """The names of the operations, as MPI has them without its prefix."""

    @property
    def bytes(self) -> int:
        """Its size."""
        return len(self.data)

    @property
    def spawned(self) -> bool:
        """True when its world is another one than the launcher's."""
        return bool(self.flags & _SPAWNED)

    @property
    def time(self) -> int:
        """Ticks when it was read, or when MPI was finalized."""
        return self.ended or max(self.last, self._seen + int((self.read - self._seen_wall) * self.rate))

    @property
    def now(self) -> str:
        """The operation that it is in; empty: it computes."""
        return self.operations[self._now - 1] if 0 < self._now <= self._operations else ""

    @property
    def in_call(self) -> int:
        """Ticks for which the call that is under way has lasted."""
        return max(0, self.time - self.since) if self._now else 0

    def cells(self) -> Iterator[Cell]:
        """Those with calls."""
        words = self._words(self._cells_at, self._operations * self._classes * _CELL)
        for index in range(self._operations * self._classes):
            calls, size, ticks, waiting = words[index * _CELL : index * _CELL + 4]
            if calls:
                operation, class_ = divmod(index, self._classes)
                yield Cell(self.operations[operation], 4 ** (class_ - 1) if class_ else 0, calls, size, ticks, waiting)

    def peers(self) -> dict[int, Peer]:
        """By rank, those with messages or receives; `size` stands for peers that are not in MPI_COMM_WORLD."""
        words = self._words(self._peers_at, (self.size + 1) * _PEER)
        pieces = ((index, words[index * _PEER : (index + 1) * _PEER]) for index in range(self.size + 1))
        return {index: Peer(*piece) for index, piece in pieces if any(piece)}

    def communicators(self) -> list[Communicator]:
        """Those with calls; MPI_COMM_WORLD first."""
        words = self._words(self._communicators_at, self._communicators * _COMMUNICATOR)
        found = [Communicator(*words[i * _COMMUNICATOR : (i + 1) * _COMMUNICATOR]) for i in range(self._communicators)]
        return [one for one in found if one.calls]

    def latest(self) -> list[tuple[int, float]]:
        """The latest calls, oldest first: operation and peer, as one number, and seconds to the end of each.

        A time has 32 bits, so it wraps after some minutes; a time before the last one's is taken for the same.
        """
        words = array("I", self.data[self._ring_at : self._ring_at + self._ring * 8])
        count = min(self.calls, self._ring)
        places = [(self.calls - count + i) % self._ring * 2 for i in range(count)]
        found, passed = [], 0
        last = words[places[0] + 1] if places else 0
        for place in places:
            step = (words[place + 1] - last) % 2**32
            passed += step if step < 2**31 else 0
            last = words[place + 1]
            found.append((words[place], passed * 1024 / self.rate))
        return found

    def _name(self, at: int) -> str:
        name = self.data[at : at + _NAME].split(b"\0")[0].decode("ascii")
        if not name.isidentifier():
            raise ValueError("an operation has no name")
        return name

    def _words(self, at: int, count: int) -> array[int]:
        return array("Q", self.data[at : at + count * 8])


def packed(page: Page) -> bytes:
    """Its bytes for another machine: most of them are zeros."""
    return zlib.compress(page.data, 1)


def unpacked(data: bytes, read: float, ranks: int) -> Page | None:
    """The page of a rank at another host, of a job with so many ranks; None when these bytes are none."""
    try:
        return Page(zlib.decompressobj().decompress(data, _most(ranks)), read)
    except (zlib.error, ValueError, OverflowError):
        return None


def read(pid: int, ranks: int) -> Page | None:
    """The page of a process of this machine, of a job with so many ranks; None when it has none."""
    most = _most(ranks)
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            address, size = anchored(pid, memory, _MAGIC)
            return Page(_whole(memory, address, size), time.time()) if 0 < size <= most else None
        finally:
            os.close(memory)
    except (OSError, ValueError, OverflowError):  # it has ended, or is being moved
        return None


def why_none(pid: int) -> str:
    """The reason that is seen in a process why it has no page; empty when it has ended."""
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            maps = file.read(_MAPS)
    except OSError:
        return ""
    if "/libwherry-mpi.so" not in maps:
        return "its program was started without LD_PRELOAD, or is statically linked"
    if "/libmpi" not in maps:
        return "its program has loaded no MPI library yet"
    return (
        "its program has not called MPI_Init by that name: it may have loaded its MPI library late, and call it by "
        "addresses (dlopen, dlsym)"
    )


def _most(ranks: int) -> int:
    """Bytes of a page at most."""
    return _COMMON + 8 * _PEER * (ranks + 1)


def anchored(pid: int, memory: int, magic: bytes) -> tuple[int, int]:
    """Address and bytes of the object that the library's anchor with these words names, by the open memory of a process
    of this machine; zeros when it names nothing."""
    with open(f"/proc/{pid}/maps", errors="replace") as maps:
        found = [match for line in maps if (match := _WRITABLE.match(line))][:_PARTS]
    for match in found:
        begin, end = int(match[1], 16), int(match[2], 16)
        data = os.pread(memory, min(end - begin, _PART), begin)
        at = data.find(magic)
        if at >= 0 and at + _ANCHOR.size <= len(data):
            _, address, size, process = _ANCHOR.unpack_from(data, at)
            return (address, size) if address and process == _own_number(pid) else (0, 0)
    return 0, 0


def _whole(memory: int, address: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.pread(memory, size - len(data), address + len(data))
        if not more:
            raise ValueError("it ends early")
        data += more
    return data


def _own_number(pid: int) -> int:
    """The process id in the process's own namespace."""
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])
