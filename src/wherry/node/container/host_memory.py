"""Memory of a host that the nodes of one cluster there share, for messages between their MPI ranks.

    RUN/shared/CLUSTER@HOST/
      users/NODE@HOST    placements that have it; when the last one leaves it is removed
      memory/            tmpfs of the cluster's user: JOB/RANK/SENDER.SLOT, a message each (native/mpi/segment.h)

A node sees it at `model.host_memory.INSIDE`. The other files that its own ranks need are among the node's own files, in
KEPT: JOB.host, the gate, a link to the job's directory at the host; JOB.RANK, an empty file for each rank that the node
has; and JOB.RANK.SENDER.SERIAL, a message that a move has taken along.

Invariants: between two calls of MPI a rank has no file of this memory open, so CRIU never sees one; a message to a rank
is at the rank's host, or among its node's own files. Names and files here are the user's, so none is opened by
following a link, and no more is read of one than a message has.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.model.host_memory import KEPT
from wherry.model.owner import Owner
from wherry.node.container.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, mount, opened, remove_tree

_SHARE, _MIN_SIZE = 8, 16 << 20
"""The tmpfs has this part of a node's memory, and at least so many bytes."""
_INODES = 65536
_HEAD = struct.Struct("=QQ")
"""Serial and bytes of the message that waits, at the begin of a file: native/mpi/segment.h."""
_LARGEST = 64 + (256 << 10)
"""Bytes of a file that has a message, at most: native/mpi/shared.c."""
_GATE, _MARK, _FILE = re.compile(r"(job-\w+)\.host"), re.compile(r"(job-\w+)\.(\d{1,9})"), re.compile(r"(\d{1,9})\.\d")
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY = _OPEN | os.O_RDONLY | os.O_DIRECTORY
_lock = threading.Lock()


@dataclass(frozen=True)
class HostMemory:
    """The memory in `directory`, as the placement `user` of a node with so many bytes of memory has it."""

    directory: Path
    user: str
    owner: Owner
    node_memory: int

    @property
    def outside(self) -> Path:
        """The directory that is bound into nodes."""
        return self.directory / "memory"

    @property
    def _users(self) -> Path:
        return self.directory / "users"

    def join(self) -> None:
        """Makes it, unless it is there. Failed when the kernel refuses."""
        with _lock:
            self._users.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._users / self.user).touch()
            self.outside.mkdir(exist_ok=True)
            if os.path.ismount(self.outside):
                return
            size = max(self.node_memory // _SHARE, _MIN_SIZE)
            owner = f"uid={self.owner.uid},gid={self.owner.gid},mode=0700"
            flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
            mount("wherry", self.outside, "tmpfs", flags, f"{owner},size={size},nr_inodes={_INODES}")
            mount("", self.outside, flags=MS_PRIVATE)

    def leave(self) -> None:
        """Removes it, if no other placement has it. Idempotent."""
        with _lock:
            (self._users / self.user).unlink(missing_ok=True)
            if self._users.exists() and not os.listdir(self._users):
                remove_tree(self.directory)

    def take_home(self, private: Path) -> None:
        """Of the frozen node with these own files: takes the messages that wait for its ranks along, and closes its
        ranks' gates, so that nothing more is sent to them here, or by them. Failed when the files have no room."""
        self._take(private, close=True)

    def finish(self, private: Path) -> None:
        """Finishes a `take_home` that a killed daemon began. For a node that does not run."""
        self._take(private, close=False)

    def user_of(self, pids: Iterable[int]) -> int | None:
        """The first process that has a file of it open."""
        if not self._has_jobs():
            return None
        device = os.stat(self.outside).st_dev
        return next((pid for pid in pids if device in _devices(pid)), None)

    def _has_jobs(self) -> bool:
        try:
            return bool(os.listdir(self.outside))
        except OSError:  # a placement that was made before there was such memory
            return False

    def _take(self, private: Path, close: bool) -> None:
        if not self._has_jobs():
            return
        try:
            with _kept(private) as kept:
                names = os.listdir(kept)
                for match in filter(None, map(_MARK.fullmatch, names)):
                    self._take_of_rank(match[1], match[2], kept, close)
                for name in filter(_GATE.fullmatch, names) if close else ():
                    os.unlink(name, dir_fd=kept)
        except FileNotFoundError:  # a node that was started before there was such memory
            return
        except OSError as error:
            what = f"messages in the memory of {self.user} could not be taken along"
            raise Failed(Code.MOVE_FAILED, what, error.strerror or str(error), "repeat the move") from None

    def _take_of_rank(self, job: str, rank: str, kept: int, close: bool) -> None:
        """A name that ends with `gone` is that of a directory to which nobody sends any more."""
        try:
            directory = os.open(self.outside / job, _DIRECTORY)
        except OSError:  # no rank of the job has come here yet
            return
        gone, prefix = f"{rank}.gone", f"{job}.{rank}"
        try:
            self._empty(directory, gone, prefix, kept)
            if not close or rank not in os.listdir(directory):
                return
            os.rename(rank, gone, src_dir_fd=directory, dst_dir_fd=directory)
            try:
                self._empty(directory, gone, prefix, kept)
            except BaseException:
                with suppress(OSError):
                    os.rename(gone, rank, src_dir_fd=directory, dst_dir_fd=directory)
                raise
        finally:
            os.close(directory)

    def _empty(self, directory: int, gone: str, prefix: str, kept: int) -> None:
        try:
            here = os.open(gone, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            return
        try:
            names = os.listdir(here)
            _require_room(here, names, kept)
            for name in names:
                self._copy(here, name, prefix, kept)
                os.unlink(name, dir_fd=here)
        finally:
            os.close(here)
        with suppress(OSError):  # whose sender will not find it there has just made a file: the next move removes it
            os.rmdir(gone, dir_fd=directory)

    def _copy(self, here: int, name: str, prefix: str, kept: int) -> None:
        match = _FILE.fullmatch(name)
        content = _message(here, name) if match else b""
        if not match or len(content) < _HEAD.size or not _HEAD.unpack_from(content)[0]:
            return
        to = f"{prefix}.{match[1]}.{_HEAD.unpack_from(content)[0]}"
        part = f"{to}.part"
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=kept)
        file = os.open(part, _OPEN | os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=kept)
        try:
            while content:
                content = content[os.write(file, content) :]
            os.fchown(file, self.owner.uid, self.owner.gid)
        finally:
            os.close(file)
        os.rename(part, to, src_dir_fd=kept, dst_dir_fd=kept)


@contextmanager
def _kept(private: Path) -> Iterator[int]:
    with opened(f"{private}{KEPT}") as path:
        kept = os.open(".", _DIRECTORY, dir_fd=path)
    try:
        yield kept
    finally:
        os.close(kept)


def _message(here: int, name: str) -> bytes:
    """The contents of a file; empty when it is not regular, or longer than a message."""
    try:
        file = os.open(name, _OPEN | os.O_RDONLY, dir_fd=here)
    except OSError:  # a link, or a socket
        return b""
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return b""
        return os.read(file, _LARGEST)
    finally:
        os.close(file)


def _require_room(here: int, names: list[str], kept: int) -> None:
    needed = sum(min(os.stat(name, dir_fd=here, follow_symlinks=False).st_size, _LARGEST) for name in names)
    found = os.fstatvfs(kept)
    room = found.f_bavail * found.f_frsize
    if needed > room:
        what = f"{needed} bytes of messages wait for a rank in its host's memory, and have to be taken along"
        why = f"the node's own files (/tmp, /run, /dev/shm) have room for {room}"
        raise Failed(Code.MOVE_FAILED, what, why, "remove files there, or wait until the rank has received")


def _devices(pid: int) -> set[int]:
    """The devices of a process's open files."""
    found = set()
    with suppress(OSError):  # it ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.stat(f"/proc/{pid}/fd/{number}").st_dev)
    return found
