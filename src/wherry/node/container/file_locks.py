"""Locks on files that the processes of a container hold while it is moved.

Invariant: a lock has exactly one holder at every instant of a move and after a roll-back. A lock for which this cannot
be guaranteed is refused by name while the node runs.

    lock                    the node's private file  file that both copies open
    ----                    ----------------------   --------------------------
    flock, OFD: shared      CRIU takes it again      CRIU takes it, while the source's copy still has it
    flock, OFD: exclusive   CRIU takes it again      the restored process gets the same file description
    fcntl: read             CRIU takes it again      CRIU takes it, while the source's copy still has it
    fcntl: write            CRIU takes it again      refused: it belongs to its process
    lease                   refused                  refused
    kept by a mapping       our library takes it     refused

A flock or an OFD lock belongs to the open file description. The source's is duplicated (pidfd_getfd) and passed to CRIU
(`inherit_fd`), so the lock is never released: like after fork, it is held until the last descriptor is closed. The
description keeps the source's mount, which CRIU cannot name at the next move; so at every later move it is handed over
again (`external`), with or without a lock.

A file that both copies see and that has no name any more is handed over in the same way: CRIU would make the restored
processes a copy of it, while other processes that have it open continue with the removed or replaced file.
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
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import mapped_locks
from wherry.node.container.criu.images import prepare_files
from wherry.node.container.fd_identity import inner_pid, own_devices
from wherry.node.container.host import HeldLocks, PassedFd, PassedFds
from wherry.node.container.lock_table import NAMES, OF_A_DESCRIPTION, POSIX, Lock, mapped_files
from wherry.node.container.mapped_locks import MAPPING
from wherry.node.container.renamed_files import REMOVED, removed_mappings, without_name

_WAIT, _MIN_CHECKS = 0.5, 24
"""Seconds, and number of checks at least, to wait for a lock to be released while the node runs: MPI-IO holds an fcntl
lock for some milliseconds at a time, and on a busy machine a check takes as long."""
_MEMORY = ("/memfd:", "/secretmem", "/anon_hugepage", "/dev/zero", "/SYSV")
"""Prefixes of the names of memory files, which have no directory entry."""
_EXIT_TIMEOUT = 10.0
"""Seconds that the killed source may take to close its files."""
_SYS_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Descriptor:
    """A descriptor of a regular file or directory; `inner` is the process's PID inside the node."""

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
    """The locks of one node during one move. `inside` has a directory on each file system of the node's
    own at the source."""

    def __init__(self, node: str, cgroup: str, inside: Sequence[Path]) -> None:
        self._node, self._cgroup, self._inside = node, cgroup, inside
        self._before: list[Descriptor] = []
        """All descriptors at the latest check, finally of the frozen source."""
        self._mapped: list[HeldLocks] = []
        """Then, too, the locks that a mapping alone keeps."""
        self._holders: set[int] = set()
        """Processes of the source that hold a lock on a file that the destination's copy also opens."""
        self._kept: Descriptor | None = None
        """A descriptor with such a lock."""
        self._passed: dict[Descriptor, int] = {}
        """Descriptors whose file description is passed on, with our duplicate."""
        self._external: dict[str, int] = {}
        """By CRIU's key, another duplicate for each file on a mount that is not the node's: for mappings, as CRIU uses
        each inherited descriptor once."""

    def require_carriable(self) -> None:
        """Returns when all locks of the running node can be carried over. Failed, naming one, when that does not come
        true within _WAIT."""
        deadline, pause, looks = time.monotonic() + _WAIT, 0.001, 1
        while obstacle := self.obstacle():
            if looks >= _MIN_CHECKS and time.monotonic() >= deadline:
                raise obstacle
            time.sleep(pause)
            pause, looks = min(pause * 1.5, 0.02), looks + 1

    @property
    def external(self) -> list[str]:
        """Keys for CRIU's option `external`: files that are not on the node's mounts."""
        return list(self._external)

    def obstacle(self) -> Failed | None:
        """The first lock that cannot be carried over; None when all can."""
        pids = self._pids()
        every = self._before = _descriptors(pids)
        found = [one for one in every if one.locks]
        own, mapped = own_devices(pids, self._inside), functools.cache(mapped_files)
        for one in found:
            for lock in one.locks:
                if why := _why_not(lock, one, own, mapped):
                    return self._failure(one.pid, f"{lock} on {one.path}", why)
        opened = {(one.file.st_dev, one.file.st_ino) for one in every}
        self._mapped = []
        for lock in mapped_locks.without_descriptor(pids, {lock.words for one in found for lock in one.locks}):
            kept = mapped_locks.kept(lock, pids, own, opened)
            if isinstance(kept, str):
                return self._failure(lock.pid, f"{lock} on inode {lock.inode[1]}, which it has closed", kept)
            self._mapped.append(kept)
        return None

    def removed(self, elsewhere: bool) -> Failed | None:
        """A file without a name, which other nodes may have open, too, and which cannot be handed over: a file that is
        only mapped, or, when the destination is another machine (`elsewhere`), any. Or a file that has a name only in
        another directory than the one in which it was opened. None without one."""
        pids = self._pids()
        own, every = own_devices(pids, self._inside), _descriptors(pids)
        if elsewhere and (one := next((one for one in every if _is_removed(one.file, own)), None)):
            return self._failure(one.pid, f"a removed file open, {one.path}", "no other machine can open it")
        if mapping := _only_mapped(pids, every, own):
            pid, path = mapping
            return self._failure(pid, f"a removed file mapped, {path}", "it has no descriptor of the file")
        mounts = _mounts(pids)
        own_mounts = ((one.pid, one.path, one.file) for one in every if not _is_from_earlier_move(one, mounts))
        if nameless := without_name(own_mounts, pids):
            pid, path = nameless
            why = "its only names are in other directories, where CRIU does not look for it"
            return self._failure(pid, f"a file open whose name was removed, {path}", why)
        return None

    def _pids(self) -> list[int]:
        """Processes of the node. Only one cgroup hierarchy is read: the node may be frozen now."""
        try:
            return sorted({int(pid) for pid in Path(Cgroup(self._cgroup).freezer_procs_file()).read_text().split()})
        except OSError:  # the node ended
            return []

    def _failure(self, pid: int, what: str, why: str) -> Failed:
        remedy = "repeat the move when the file is unlocked or closed; locks by flock() and F_OFD_SETLK can be moved"
        return Failed(Code.MOVE_FAILED, f"{_process_name(pid)} of {self._node} has {what}", why, remedy)

    def pass_on(self) -> PassedFds:
        """Duplicates every file description that is passed on. Called after `obstacle` found none at the frozen
        source."""
        pids, self._kept = self._pids(), None
        own, mounts = own_devices(pids, self._inside), _mounts(pids)
        for one in self._before:
            shared = _is_shared(one.file, own)
            external = _is_from_earlier_move(one, mounts) or _is_removed(one.file, own)
            if one.locks and shared:
                self._holders.add(one.pid)
                self._kept = one
            name = f"file[{one.mount:x}:{one.file.st_ino:x}]"
            if external and name not in self._external:
                self._external[name] = _copy(one)
            exclusive = any(lock.exclusive and lock.kind in OF_A_DESCRIPTION for lock in one.locks)
            if external or (exclusive and shared):
                self._passed[one] = _copy(one)
        files = [PassedFd(one.inner, one.number, copy) for one, copy in self._passed.items()]
        return PassedFds(tuple(files), dict(self._external))

    def held(self) -> tuple[HeldLocks, ...]:
        """All locks of the frozen source."""
        opened = (one for one in self._before if one.locks)
        held = (HeldLocks(one.inner, one.number, one.path, tuple(_lock_keys(one).elements())) for one in opened)
        return (*held, *self._mapped)

    def write_mapped(self, images: Path) -> None:
        """Adds to the images of the frozen source the locks that CRIU does not see."""
        mapped_locks.write(images, self._mapped)

    def kept_by_both(self) -> Failed | None:
        """After `pass_on`: why the copy must not run while the source's processes still exist; None when it may."""
        if not self._kept:
            return None
        why = "with post-copy the source's copy keeps it until all memory has moved"
        failed = self._failure(self._kept.pid, f"{self._kept.locks[0]} on {self._kept.path}", why)
        failed.next = f"{failed.next}; or --mode pre-copy"
        return failed

    def await_gone(self) -> None:
        """After the commit: returns when the killed source holds no lock any more; a leftover could refuse the next
        lock of its own copy. Waits only when there were shared locks, at most _EXIT_TIMEOUT; never raises."""
        deadline = time.monotonic() + _EXIT_TIMEOUT
        while not all(_has_ended(pid) for pid in self._holders) and time.monotonic() < deadline:
            time.sleep(0.0005)

    def close(self) -> None:
        """Closes the duplicates. Idempotent."""
        for copies in (self._passed, self._external):
            for copy in copies.values():
                os.close(copy)
        self._passed, self._external = {}, {}


def inherit_fd_option(images: Path, passed: PassedFds, shared: Sequence[str]) -> list[dict[str, object]]:
    """CRIU's option `inherit_fd` for `passed`, after `prepare_files` for the images at the destination. `shared` are
    the node's directories in which others write meanwhile.

    CRIU matches an inherited descriptor by file name, which two descriptions may share: each gets a unique one.
    """
    keys = prepare_files(images, {(file.process, file.number): file.descriptor for file in passed.files}, shared)
    return [{"key": key, "fd": copy} for key, copy in {**passed.mappings, **keys}.items()]


def require_kept(pids: list[int], locks: Sequence[HeldLocks]) -> None:
    """Failed when the restored processes lack a lock that their frozen originals hold."""
    after = {(one.inner, one.number): _lock_keys(one) for one in _descriptors(pids)} if locks else {}
    for held in locks:
        found = after.get((held.process, held.number), Counter())
        if held.number == MAPPING:
            found = mapped_locks.lock_keys(pids, held.path)
        if lost := Counter(held.lock_keys) - found:
            what = f"the restored process {held.process} lacks a lock on {held.path}"
            raise Failed(
                Code.MOVE_FAILED, what, " ".join(next(iter(lost))), "repeat the move when the file is unlocked"
            )


def _is_shared(file: os.stat_result, own: set[int]) -> bool:
    """True when both copies open the same inode in the same kernel, so that their locks conflict.

    The only function that assumes that the destination is this machine: between machines locks conflict only on a
    network file system, and no description can be handed over.
    """
    return file.st_dev not in own


def _is_removed(file: os.stat_result, own: set[int]) -> bool:
    """True for a regular file that both copies see and that has no name any more."""
    return not file.st_nlink and stat.S_ISREG(file.st_mode) and file.st_dev not in own


def _only_mapped(pids: list[int], every: list[Descriptor], own: set[int]) -> tuple[int, str] | None:
    """Process and name of a removed file that both copies see, which the process has mapped to share it, and not open.
    Such a file cannot be handed over. Of a file that is mapped privately (a program or library that was built anew) a
    copy is as good."""
    for pid in pids:
        opened = {(one.file.st_dev, one.file.st_ino) for one in every if one.pid == pid}
        for access, name, path in removed_mappings(pid):
            if not access.endswith("s"):
                continue
            with contextlib.suppress(OSError):  # unmapped meanwhile
                file = os.stat(f"/proc/{pid}/map_files/{name}")
                if _is_removed(file, own) and (file.st_dev, file.st_ino) not in opened:
                    return pid, path.removesuffix(REMOVED)
    return None


def _why_not(lock: Lock, one: Descriptor, own: set[int], mapped: Callable[[int], Container[tuple[int, int]]]) -> str:
    """Why this lock cannot be carried over; empty when it can."""
    if lock.kind not in NAMES:
        return "the kernel breaks a lease when the file is opened at the destination"
    if lock.kind == POSIX and lock.inode in mapped(one.pid):
        return "the file is mapped by the same process, and CRIU loses fcntl locks on such files"
    if not lock.exclusive or not _is_shared(one.file, own):
        return ""
    if lock.kind == POSIX:
        return "an fcntl lock belongs to its process: another process could take it between the two copies"
    return "" if stat.S_ISREG(one.file.st_mode) else "it is on a directory"


def _descriptors(pids: list[int]) -> list[Descriptor]:
    """Descriptors of regular files and directories; a process that ends meanwhile is skipped."""
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


def _lock_keys(one: Descriptor) -> Counter[tuple[str, ...]]:
    return Counter(lock.lock_key for lock in one.locks)


def _mounts(pids: list[int]) -> set[int]:
    """IDs of all mounts of a node's processes, which may have created mount namespaces of their own."""
    found: set[int] = set()
    seen = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            if (namespace := os.readlink(f"/proc/{pid}/ns/mnt")) not in seen:
                seen.add(namespace)
                lines = Path(f"/proc/{pid}/mountinfo").read_bytes().rstrip(b"\n").split(b"\n")
                found |= {int(line.split()[0]) for line in lines}
    return found


def _is_from_earlier_move(one: Descriptor, mounts: set[int]) -> bool:
    """True for a description that an earlier move passed on: its mount belongs to a removed placement.

    Not so for files without a directory entry, on internal mounts of the kernel: namespaces and processes, whose names
    do not begin with a slash, and memory files.
    """
    if one.mount in mounts or not one.path.startswith("/"):
        return False
    return one.file.st_nlink > 0 or not one.path.startswith(_MEMORY)


def _has_ended(pid: int) -> bool:
    """True when every thread of a process has ended. Only then all its files are closed, not when its descriptors are
    gone."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/task/{thread}/stat").read_text(errors="replace")
                if line.rpartition(")")[2].split()[0] not in "ZX":
                    return False
    return True


def _copy(one: Descriptor) -> int:
    """A descriptor of ours for the same file description."""
    process = os.pidfd_open(one.pid)
    try:
        copy = int(_libc.syscall(_SYS_PIDFD_GETFD, process, one.number, 0))
    finally:
        os.close(process)
    if copy < 0:
        why = os.strerror(ctypes.get_errno())
        raise Failed(Code.MOVE_FAILED, f"the locked file {one.path} cannot be handed over", why, "wherry doctor")
    return copy


def _process_name(pid: int) -> str:
    """PID inside the node, and command, of a process."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        return f"process {inner_pid(pid)} ({re.sub(r'[^ -~]', '?', command)})"
    except OSError:
        return "a process"
