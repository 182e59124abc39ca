"""Passes to running ranks the present site of each of them, for their collectives by sites (layout: native/mpi/map.h).

Invariants: nothing in a node is stopped; only two places are written that the library made for it, in memory of the
process's own (anonymous, private), so a user who forges them misleads nobody else; a map is written whole before its
epoch counts, as its check shows, and the one before it stays. A map that a move loses, or that finds no rank yet, is
missing there, and `tell` reports that.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby

from wherry.node import mpi_page

_MAGIC = b"wherry: rank map"
_HEAD = struct.Struct("<QQ")
_WORD = 8
_STATE = struct.Struct("<QQ")
"""Ranks of a map, and the epoch in use."""
_PRIVATE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ 00:00 0\s*$")
_UNREADABLE = (OSError, ValueError, OverflowError, struct.error)
"""The exceptions for memory that is not there, or not as it should be."""
MOST_EPOCHS = 1 << 40
"""The most epochs that ranks can pass on to each other."""


@dataclass(frozen=True)
class RankSites:
    """A map: by rank the site's number. The ranks were started with the map of epoch 0."""

    epoch: int
    sites: tuple[int, ...]

    def place(self) -> bytes:
        """As a rank reads it."""
        epoch, sites = struct.pack("<Q", self.epoch), array("H", self.sites).tobytes()
        return _HEAD.pack(self.epoch, _check(epoch + sites)) + sites


@functools.lru_cache(16)
def _check(data: bytes) -> int:
    """FNV-1a. All ranks of a job have the same data."""
    check = 0xCBF29CE484222325
    for byte in data:
        check = (check ^ byte) * 0x100000001B3 % 2**64
    return check


def site_runs(sites: Sequence[object]) -> str:
    """`0x6,1x6`: six ranks at a first site, then six at another one."""
    numbers = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    return ",".join(f"{numbers[site]}x{len(list(run))}" for site, run in groupby(sites))


def site_numbers(runs: str) -> tuple[int, ...]:
    """By rank, the site in `site_runs`."""
    pairs = (run.split("x") for run in runs.split(","))
    return tuple(int(site) for site, count in pairs for _ in range(int(count)))


def heard(pid: int, ranks: int) -> RankSites | None:
    """The newest map that a process of this machine has; of epoch 0 when none, None when it is no rank of a world of so
    many that goes by maps."""
    with _memory(pid, ranks, os.O_RDONLY) as memory:
        return memory.newest() if memory else None
    return None


def tell(pids: Iterable[int], map_: RankSites) -> tuple[int, int]:
    """Writes the map to these ranks of this machine. How many of them have it now, and the highest epoch of another map
    that is in its way."""
    have = highest = 0
    for pid in pids:
        with _memory(pid, len(map_.sites), os.O_RDWR) as memory:
            if memory is None:
                continue
            newest = memory.newest()
            if newest.epoch < map_.epoch:
                memory.write(map_)
                newest = memory.newest()
            have += newest == map_
            highest = max(highest, newest.epoch if newest != map_ else 0)
    return have, highest


def used(pid: int, ranks: int) -> int:
    """The epoch of the map that a communicator of the rank adopted last."""
    with _memory(pid, ranks, os.O_RDONLY) as memory:
        return memory.used() if memory else 0
    return 0


@dataclass(frozen=True)
class _Memory:
    """A rank's places for maps, by its open memory."""

    file: int
    address: int
    ranks: int

    def newest(self) -> RankSites:
        newest, length = RankSites(0, ()), _length(self.ranks)
        data = os.pread(self.file, 2 * length, self.address)
        for begin in (0, length):
            piece = data[begin : begin + _HEAD.size + 2 * self.ranks]
            epoch = _HEAD.unpack_from(piece)[0]
            if newest.epoch < epoch < MOST_EPOCHS:
                one = RankSites(epoch, tuple(array("H", piece[_HEAD.size :])))
                newest = one if one.place() == piece else newest
        return newest

    def write(self, map_: RankSites) -> None:
        os.pwrite(self.file, map_.place(), self.address + map_.epoch % 2 * _length(self.ranks))

    def used(self) -> int:
        return self.state()[1]

    def state(self) -> tuple[int, int]:
        ranks, used = _STATE.unpack(os.pread(self.file, _STATE.size, self.address + 2 * _length(self.ranks)))
        return ranks, used


@contextmanager
def _memory(pid: int, ranks: int, flags: int) -> Iterator[_Memory | None]:
    """None, also when it ends meanwhile: then the body's use of it raises nothing."""
    file, found = -1, None
    with suppress(*_UNREADABLE):
        file = os.open(f"/proc/{pid}/mem", flags | os.O_CLOEXEC)
        address, size = mpi_page.anchored(pid, file, _MAGIC)
        one = _Memory(file, address, ranks)
        if size == 2 * _length(ranks) + _STATE.size and _is_private(pid, address, size) and one.state()[0] == ranks:
            found = one
    try:
        yield found
    except _UNREADABLE:
        pass
    finally:
        if file >= 0:
            os.close(file)


def _length(ranks: int) -> int:
    """Bytes of a place."""
    return (_HEAD.size + 2 * ranks + _WORD - 1) // _WORD * _WORD


def _is_private(pid: int, address: int, size: int) -> bool:
    """True when it is memory of the process's own, which no file and no other process backs."""
    with open(f"/proc/{pid}/maps", errors="replace") as maps:
        for line in maps:
            if match := _PRIVATE.match(line):
                begin, end = int(match[1], 16), int(match[2], 16)
                if begin <= address and address + size <= end:
                    return True
    return False
