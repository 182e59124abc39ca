"""Locks on files that the processes of a container hold while it is moved.

Invariant: a lock has exactly one holder at every instant of a move, and also after one that was taken back. What cannot
be moved so is refused by name while the node runs.

    lock                    file of the node's own   file that both copies open
    ----                    ----------------------   --------------------------
    flock, OFD: shared      CRIU takes it again      CRIU takes it, while the source's copy still has it
    flock, OFD: exclusive   CRIU takes it again      the restored process gets the very file description
    fcntl: read             CRIU takes it again      CRIU takes it, while the source's copy still has it
    fcntl: write            CRIU takes it again      refused: it is its process's, and cannot be handed over
    lease                   refused                  refused

A flock or an OFD lock belongs to the open file description. That of the source is copied (pidfd_getfd) and given to
CRIU (`inherit_fd`), so the lock never changes hands: the killed source releases it no more than a parent does that ends
before its child. Such a description keeps the source's mount, which CRIU cannot name at the next move. From then on it
is always handed over (`external`), whether it still has a lock or not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.criu.images import give_names
from wherry.node.container.fd_identity import inner_pid, own_devices

FLOCK, OFD, POSIX = "FLOCK", "OFDLCK", "POSIX"
"""Kinds of lock as the kernel writes them (fs/locks.c); the others are leases and their like."""
_OF_A_DESCRIPTION = (FLOCK, OFD)
_NAMES = {FLOCK: "flock", OFD: "OFD lock", POSIX: "fcntl lock"}
_SHORT, _LOOKS = 0.5, 24
"""Seconds, and looks at least, that a lock is waited for while the node runs: MPI-IO holds an fcntl lock for some
milliseconds at a time, and on a busy machine a look takes as long."""
_MEMORY = ("/memfd:", "/secretmem", "/anon_hugepage", "/dev/zero", "/SYSV")
"""How the names of files of memory begin, which have no directory entry."""
_DEAD_AT_MOST = 10.0
"""Seconds that the killed source may take to let go of its files."""
_SYS_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Lock:
    """One line of the kernel's: `words` are those of /proc/locks without the leading number."""

    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.words[0]

    @property
    def exclusive(self) -> bool:
        return self.words[2] == "WRITE"

    @property
    def pid(self) -> int:
        """Who took it; -1 for an OFD lock, which is nobody's."""
        return int(self.words[3])

    @property
    def inode(self) -> tuple[int, int]:
        """Device and inode, the device as the kernel's superblock has it."""
        major, minor, inode = self.words[4].split(":")
        return os.makedev(int(major, 16), int(minor, 16)), int(inode)

    @property
    def essence(self) -> tuple[str, ...]:
        """Kind, type and range: what a moved lock has in common with the original."""
        return self.words[0], self.words[2], *self.words[5:]

    def __str__(self) -> str:
        kind, mode = _NAMES.get(self.kind), "an exclusive" if self.exclusive else "a shared"
        return f"{mode} {kind}" if kind else f"a {self.kind.lower()}"


@dataclass(frozen=True)
class Descriptor:
    """A descriptor of a regular file or directory, of a process with number `inner` inside the node."""

    pid: int
    inner: int
    number: int
    file: os.stat_result
    mount: int
    locks: tuple[Lock, ...]

    @property
    def path(self) -> str:
        """The file's name inside the node."""
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{self.number}")
        except OSError:
            return f"descriptor {self.number}"


class FileLocks:
    """The locks of one node during one move. `private` is the tree of the node's own files at the source."""

    def __init__(self, node: str, cgroup: str, private: Path) -> None:
        self._node, self._cgroup, self._private = node, cgroup, private
        self._before: list[Descriptor] = []
        """What was seen when it was looked at last, which is at the frozen source."""
        self._holders: set[int] = set()
        """Processes of the source that hold a lock which those of the destination may meet."""
        self._carried: dict[Descriptor, int] = {}
        """Descriptors whose description goes along, and our copy of each."""
        self._foreign: dict[str, int] = {}
        """By what CRIU calls it, a copy of one description of each file whose mount is not the node's: for mappings of
        the file, and CRIU takes no descriptor twice."""

    def require_carriable(self) -> None:
        """Returns when a look at the running node finds that all locks can be carried over. Failed, with one lock's
        name, when none does for a while."""
        deadline, pause, looks = time.monotonic() + _SHORT, 0.001, 1
        while obstacle := self.obstacle():
            if looks >= _LOOKS and time.monotonic() >= deadline:
                raise obstacle
            time.sleep(pause)
            pause, looks = min(pause * 1.5, 0.02), looks + 1

    @property
    def external(self) -> list[str]:
        """Files that CRIU is told not to look for in the node's mounts."""
        return list(self._foreign)

    def obstacle(self) -> Failed | None:
        """The first lock that cannot be carried over; None when all can."""
        pids = self._pids()
        every = self._before = _descriptors(pids)
        found = [one for one in every if one.locks]
        own, mapped = own_devices(pids, self._private), functools.cache(_mapped)
        for one in found:
            for lock in one.locks:
                if why := _why_not(lock, one, own, mapped):
                    return self._failure(one.pid, f"{lock} on {one.path}", why)
        if hidden := _without_descriptor(pids, found):
            what = f"{hidden} on inode {hidden.inode[1]}, which it has closed"
            return self._failure(hidden.pid, what, "CRIU does not see what only a mapping or a message keeps")
        mounts = _mounts(pids)
        for one in every:  # its other descriptors would get a copy of the file, and this one the file itself
            if one.file.st_nlink == 0 and _is_foreign(one, mounts):
                return self._failure(one.pid, f"a removed file open, {one.path}", "an earlier move handed it over")
        return None

    def _pids(self) -> list[int]:
        """Of one hierarchy: to read all takes as long as the locks do, while the node stands."""
        try:
            return sorted({int(pid) for pid in Path(Cgroup(self._cgroup).freezer_procs_file()).read_text().split()})
        except OSError:  # the node ended
            return []

    def _failure(self, pid: int, what: str, why: str) -> Failed:
        remedy = "repeat the move when the file is unlocked or closed; flock() and F_OFD_SETLK locks can be moved"
        return Failed(Code.MOVE_FAILED, f"{_name(pid)} of {self._node} has {what}", why, remedy)

    def take(self) -> list[int]:
        """At the source that was frozen when it was looked at: copies of all descriptions that go along, for the engine
        that restores to inherit."""
        pids = self._pids()
        own, mounts = own_devices(pids, self._private), _mounts(pids)
        for one in self._before:
            shared, foreign = _is_shared(one.file, own), _is_foreign(one, mounts)
            if one.locks and shared:
                self._holders.add(one.pid)
            name = f"file[{one.mount:x}:{one.file.st_ino:x}]"
            if foreign and name not in self._foreign:
                self._foreign[name] = _copy(one)
            exclusive = any(lock.exclusive and lock.kind in _OF_A_DESCRIPTION for lock in one.locks)
            if foreign or (exclusive and shared):
                self._carried[one] = _copy(one)
        return [*self._carried.values(), *self._foreign.values()]

    def inherit(self, images: Path) -> list[dict[str, object]]:
        """At the destination: names what was taken in CRIU's images there; CRIU's option `inherit_fd` for them.

        CRIU finds what it inherits by the file's name, which two descriptions may have in common: each gets its own.
        """
        if not self._carried:
            return []
        keys = give_names(images, {(one.inner, one.number): one for one in self._carried})
        inherited = self._foreign | {key: self._carried[one] for key, one in keys.items()}
        return [{"key": key, "fd": copy} for key, copy in inherited.items()]

    def require_kept(self, pids: list[int]) -> None:
        """Failed when the restored processes lack a lock that their frozen originals have. Our copies are closed."""
        if any(one.locks for one in self._before):
            after = {(one.inner, one.number): _essences(one) for one in _descriptors(pids)}
            for one in self._before:
                if lost := _essences(one) - after.get((one.inner, one.number), Counter()):
                    what = f"the restored process {one.inner} lacks a lock on {one.path}"
                    raise Failed(Code.MOVE_FAILED, what, " ".join(next(iter(lost))), "move the node when it is free")
        self._drop()

    def await_gone(self) -> None:
        """After the commit: returns when the killed source holds no lock any more, so that its copy, which may give one
        up and ask for another, is never refused for its own sake. Waits only when it held one, and never raises."""
        deadline = time.monotonic() + _DEAD_AT_MOST
        while not all(_has_ended(pid) for pid in self._holders) and time.monotonic() < deadline:
            time.sleep(0.0005)

    def close(self) -> None:
        """Lets go of the copies. Idempotent."""
        self._drop()

    def _drop(self) -> None:
        for copies in (self._carried, self._foreign):
            for copy in copies.values():
                os.close(copy)
        self._carried, self._foreign = {}, {}


def _is_shared(file: os.stat_result, own: set[int]) -> bool:
    """True when both copies open this very inode in this very kernel, so that their locks meet.

    The one place that takes it for granted that the destination is this machine: at another one no lock meets (but for
    a network file system's), and no description can be handed over.
    """
    return file.st_dev not in own and file.st_nlink > 0  # an unlinked file travels as a copy


def _why_not(lock: Lock, one: Descriptor, own: set[int], mapped: Callable[[int], set[tuple[int, int]]]) -> str:
    """Why this lock cannot be carried over; empty when it can."""
    if lock.kind not in _NAMES:
        return "the kernel breaks it when the file is opened at the destination"
    if lock.kind == POSIX and (one.file.st_dev, one.file.st_ino) in mapped(one.pid):
        return "the file is mapped by the same process, and CRIU loses fcntl locks on such files"
    if not lock.exclusive or not _is_shared(one.file, own):
        return ""
    if lock.kind == POSIX:
        return "a lock of fcntl's is the process's own: another could take it between the two copies"
    return "" if stat.S_ISREG(one.file.st_mode) else "it is on a directory"


def _without_descriptor(pids: list[int], found: list[Descriptor]) -> Lock | None:
    """A lock of the node's that no descriptor tells of: a closed one's, whose file is still mapped or under way."""
    told = {lock.words for one in found for lock in one.locks}
    lines = (line.split()[1:] for line in Path("/proc/locks").read_text().splitlines())
    left = [Lock(tuple(words)) for words in lines if words[0] != "->" and tuple(words) not in told]
    for lock in left:
        if lock.pid in pids:
            return lock
    unknown = [lock for lock in left if lock.pid <= 0 or not os.path.exists(f"/proc/{lock.pid}")]
    mapped = set().union(*(_mapped(pid) for pid in pids)) if unknown else set()
    return next((lock for lock in unknown if lock.inode in mapped), None)


def _descriptors(pids: list[int]) -> list[Descriptor]:
    """Those of regular files and directories; a process that ends meanwhile is passed over."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            inner = inner_pid(pid)
            found += [one for name in os.listdir(f"/proc/{pid}/fd") if (one := _descriptor(pid, inner, int(name)))]
    return found


def _descriptor(pid: int, inner: int, number: int) -> Descriptor | None:
    with contextlib.suppress(OSError):
        file = os.stat(f"/proc/{pid}/fd/{number}")
        if stat.S_ISREG(file.st_mode) or stat.S_ISDIR(file.st_mode):
            text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
            fields = [line.split() for line in text.splitlines()]
            (mount,) = (int(words[1]) for words in fields if words[0] == "mnt_id:")
            locks = tuple(Lock(tuple(words[2:])) for words in fields if words[0] == "lock:")
            return Descriptor(pid, inner, number, file, mount, locks)
    return None


def _essences(one: Descriptor) -> Counter[tuple[str, ...]]:
    return Counter(lock.essence for lock in one.locks)


def _mounts(pids: list[int]) -> set[int]:
    """Numbers of the mounts that the processes of a node see, which may have made namespaces of their own."""
    found: set[int] = set()
    seen = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            if (namespace := os.readlink(f"/proc/{pid}/ns/mnt")) not in seen:
                seen.add(namespace)
                found |= {int(line.split()[0]) for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()}
    return found


def _is_foreign(one: Descriptor, mounts: set[int]) -> bool:
    """True for a description that was handed over by an earlier move: its mount is that of a place which is gone.

    Files without a directory entry have a mount of the kernel's own: namespaces and processes, whose names begin with
    no slash, and memory.
    """
    if one.mount in mounts or not one.path.startswith("/"):
        return False
    return one.file.st_nlink > 0 or not one.path.startswith(_MEMORY)


def _mapped(pid: int) -> set[tuple[int, int]]:
    """Device and inode of each file that a process has mapped."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/map_files"):
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{pid}/map_files/{name}")
                found.add((file.st_dev, file.st_ino))
    return found


def _has_ended(pid: int) -> bool:
    """True for a process of which every thread has ended: its files are closed for good only then, and not when it has
    no descriptors any more."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    return False
    return True


def _copy(one: Descriptor) -> int:
    """Our own descriptor of the very description."""
    process = os.pidfd_open(one.pid)
    try:
        copy = int(_libc.syscall(_SYS_PIDFD_GETFD, process, one.number, 0))
    finally:
        os.close(process)
    if copy < 0:
        why = os.strerror(ctypes.get_errno())
        raise Failed(Code.MOVE_FAILED, f"{one.path}, which is locked, cannot be handed over", why, "wherry doctor")
    return copy


def _name(pid: int) -> str:
    """A process for who knows the node: its number there, and its command."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text().strip()
        return f"process {inner_pid(pid)} ({re.sub(r'[^ -~]', '?', command)})"
    except OSError:
        return "a process"
