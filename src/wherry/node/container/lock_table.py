"""The kernel's table of file locks (/proc/locks), and the files that processes have mapped, as the table names them."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

FLOCK, OFD, POSIX = "FLOCK", "OFDLCK", "POSIX"
"""Kinds of lock as the kernel names them (fs/locks.c); the others are leases and delegations."""
OF_A_DESCRIPTION = (FLOCK, OFD)
"""Locks that belong to the open file description, not to a process."""
NAMES = {FLOCK: "flock", OFD: "OFD lock", POSIX: "fcntl lock"}
_PIECES = (4096, 3300, 2600, 1900, 3700, 2900, 2200, 1500)
"""Bytes of one read of /proc/locks, at each reading of it, and then from the beginning again."""
_ONE_READ = 2048
"""Bytes up to which the list is certain to have been read at once."""
_QUIET, _MAX_READINGS = 3, 64
"""So many readings in a row must find no new lock; most readings."""


@dataclass(frozen=True)
class Lock:
    """One lock: `words` are a line of /proc/locks without the leading number."""

    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.words[0]

    @property
    def exclusive(self) -> bool:
        return self.words[2] == "WRITE"

    @property
    def pid(self) -> int:
        """PID of the process that took it; -1 for an OFD lock."""
        return int(self.words[3])

    @property
    def inode(self) -> tuple[int, int]:
        """Device (of the superblock) and inode."""
        return _inode(self.words[4])

    @property
    def lock_key(self) -> tuple[str, ...]:
        """Kind, type and range, which are equal for the original and its copy."""
        return self.words[0], self.words[2], *self.words[5:]

    def __str__(self) -> str:
        kind, mode = NAMES.get(self.kind), "an exclusive" if self.exclusive else "a shared"
        return f"{mode} {kind}" if kind else f"a {self.kind.lower()}"


def warm_proc_locks() -> None:
    """Makes reading /proc/locks within the next 10 ms fast, by us and by CRIU: the first reading after a pause waits
    for an RCU grace period, 7 to 17 ms."""
    _read_in_pieces("/proc/locks", _PIECES[0])


def all_locks() -> list[Lock]:
    """All locks of the machine, without the processes that wait for one, and perhaps with some that were just released.

    The kernel writes as much at a time as one read wants, a page at most, and leaves out the next lock when a lock that
    it wrote is released in between, by whichever process of the machine. So a list that may take several reads is read
    in pieces of other lengths again, where another lock is left out, until there is nothing new in it for some
    readings.
    """
    found, quiet = dict[tuple[str, ...], None](), 0
    for size in itertools.islice(itertools.cycle(_PIECES), _MAX_READINGS):
        text, known = _read_in_pieces("/proc/locks", size), len(found)
        found |= dict.fromkeys(tuple(line.split()[1:]) for line in text.splitlines())
        quiet = quiet + 1 if len(found) == known else 0
        if len(text) <= _ONE_READ or quiet >= _QUIET:
            break
    return [Lock(words) for words in found if words[0] != "->"]


def mapped_files(pid: int) -> dict[tuple[int, int], list[str]]:
    """Each file that a process has mapped, by device of the superblock and inode, as locks have them: stat(2) has other
    devices on btrfs. The names of its mappings below /proc/PID/map_files."""
    found: dict[tuple[int, int], list[str]] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").split("\n"):
            words = line.split(maxsplit=5)
            if len(words) > 4 and words[4] != "0":
                start, end = (int(address, 16) for address in words[0].split("-"))
                found.setdefault(_inode(f"{words[3]}:{words[4]}"), []).append(f"{start:x}-{end:x}")
    return found


def _inode(text: str) -> tuple[int, int]:
    """Device and inode of MAJOR:MINOR:INODE."""
    major, minor, inode = text.split(":")
    return os.makedev(int(major, 16), int(minor, 16)), int(inode)


def _read_in_pieces(path: str, size: int) -> str:
    """A file of /proc, read in pieces of this size."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(file, size), b"")).decode(errors="replace")
    finally:
        os.close(file)
