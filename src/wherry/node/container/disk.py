"""A node's own disk: a file system in a file of its host, for the /tmp of nodes with `tmp: disk`.

A file system of its own, and no directory of the host's, because locks and open files are recognized as the node's own
by their device. All of the file's blocks are allocated when it is made: a file with holes would lose data of programs
when the host's disk is full. The loop device goes with the last mount (see 0024, "Files on a disk").
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.base.text import printable
from wherry.base.units import format_size
from wherry.model.records import Node
from wherry.node.container.movable import process_name

_FORMAT = ("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-O", "^has_journal,^resize_inode")
"""No journal: nothing of a node outlives its host's crash."""
_EXTENDED = "nodiscard,lazy_itable_init=1"
_MOUNT = "loop,nosuid,nodev,noatime,nodiscard,noinit_itable"
_LOOP_CONTROL = Path("/dev/loop-control")
_TIMEOUT = 600.0
"""Seconds for a command: allocating may write on some file systems."""
_KEPT = 0.03
"""The part of the host's disk that disks of nodes leave free."""
_LARGEST_IMAGE = 2**32 - 1
"""CRIU's `ghost_limit` has 32 bits."""
_SHARED_WRITABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ .w.s [0-9a-f]+ (\S+) ", re.MULTILINE)
"""The device of a mapping in /proc/PID/maps."""
_ASYNCHRONOUS = b"/[aio]"
_FLAGS = re.compile(r"^flags:\s+([0-7]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Disk:
    """The disk of one placement: `size` bytes in the file `image`, which has the placement's name, mounted at
    `directory`, in the placement's own."""

    image: Path
    directory: Path
    size: int

    def make(self) -> None:
        """Makes it anew, with a directory for the node's files. Failed when the host has no room or cannot mount it."""
        self.image.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._remove_left()
        self.image.unlink(missing_ok=True)
        os.close(os.open(self.image, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        self._run("fallocate", "-l", str(self.size), str(self.image))
        self._run(*_FORMAT, "-E", _EXTENDED, str(self.image))
        self._run("mount", "-t", "ext4", "-o", _MOUNT, str(self.image), str(self.directory))
        with contextlib.suppress(Failed, OSError):  # else the host's memory holds written data twice
            self._run("losetup", "--direct-io=on", f"/dev/{self._device().name}")
        self.files.mkdir()
        self.files.chmod(0o1777)

    @property
    def files(self) -> Path:
        """The node's files on it."""
        return self.directory / "files"

    @property
    def arriving(self) -> Path:
        """Where these files are besides, while they arrive."""
        return self.directory / "arriving"

    def space(self) -> tuple[int | None, int | None]:
        """Bytes of files on it, and how many there may be; None when it is not mounted. The few blocks that ext4 keeps
        for itself are neither."""
        try:
            found = os.statvfs(self.files)
        except OSError:
            return None, None
        used, kept = found.f_blocks - found.f_bfree, found.f_bfree - found.f_bavail
        return used * found.f_frsize, (found.f_blocks - kept) * found.f_frsize

    def remove(self) -> None:
        """Removes the file, once nothing of it is mounted. Idempotent."""
        self.image.unlink(missing_ok=True)

    def removed_obstacle(self, pids: Iterable[int], most: int) -> str:
        """Why a move cannot carry the open files of processes; empty when it can. A file that has no name any more goes
        with CRIU's images, which hold files of up to `most` bytes."""
        device, most = os.stat(self.files).st_dev, min(most, _LARGEST_IMAGE)
        for pid in pids:
            for directory in ("fd", "map_files"):
                for path in _entries(f"/proc/{pid}/{directory}"):
                    with contextlib.suppress(OSError):  # it was closed
                        found = os.stat(path)
                        size = found.st_blocks * 512
                        if found.st_dev == device and not found.st_nlink and size > most:
                            name = printable(os.readlink(path).removesuffix(" (deleted)"))
                            return (
                                f"{process_name(pid)} has {name} open, which was removed and takes {format_size(size)}:"
                                f" a move carries at most {format_size(most)} of a removed file (the node's memory)"
                            )
        return ""

    def require_carriable(self, pids: Iterable[int], node: Node) -> None:
        """Refused when there is a `removed_obstacle`."""
        if why := self.removed_obstacle(pids, node.memory):
            remedy = "end that program, or wait until it closes the file"
            raise Refused(Code.UNSUPPORTED, f"a file of {node.name} cannot be moved", why, remedy)

    def may_change_unseen(self, pids: Iterable[int]) -> bool:
        """Whether the kernel may have written to a file without changing its times: directly from a device into a page
        that a process has mapped."""
        device = os.stat(self.files).st_dev
        number = b"%02x:%02x" % (os.major(device), os.minor(device))
        for pid in pids:
            with contextlib.suppress(OSError):  # it ended
                maps = Path(f"/proc/{pid}/maps").read_bytes()
                if _ASYNCHRONOUS in maps or (number in _SHARED_WRITABLE.findall(maps) and _reads_directly(pid)):
                    return True
        return False

    def _remove_left(self) -> None:
        """Removes the files of disks whose placements are gone, as all are that were there when the host crashed."""
        placements = self.directory.parent.parent
        for image in self.image.parent.iterdir():
            if not (placements / image.name).exists():
                image.unlink(missing_ok=True)

    def _device(self) -> Path:
        device = os.stat(self.directory).st_dev
        return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()

    def _run(self, *words: str) -> None:
        environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        try:
            done = subprocess.run(words, capture_output=True, check=False, timeout=_TIMEOUT, env=environment)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failed(str(error)) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise self._failed(said[-1] if said else f"{words[0]} exited with {done.returncode}")

    def _failed(self, why: str) -> Failed:
        remedy = "a smaller one, or tmp: memory, in the cluster's file"
        return Failed(Code.FAILED, "the disk for the node's /tmp cannot be made", why, remedy)


def directory(instance: Instance) -> Path:
    """Where the files of an instance's disks are."""
    return instance.state / "disks"


def lacking() -> str:
    """The means for disks that this machine lacks; empty when it has all."""
    if not _LOOP_CONTROL.exists():
        return f"has no loop devices for disks of nodes ({_LOOP_CONTROL} is missing)"
    return "" if shutil.which(_FORMAT[0]) else f"has no {_FORMAT[0]} for disks of nodes (package e2fsprogs)"


def obstacle(instance: Instance, size: int) -> str:
    """Why this machine cannot have further disks of so many bytes together; empty when it can."""
    if not size or (why := lacking()):
        return why if size else ""
    host = shutil.disk_usage(next(path for path in directory(instance).parents if path.exists()))
    room = max(host.free - int(_KEPT * host.total), 0)
    if size <= room:
        return ""
    return f"has room for {format_size(room)} of disk, and {format_size(size)} are wanted for /tmp"


def _entries(directory: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(directory)]
    except OSError:  # it ended
        return []


def _reads_directly(pid: int) -> bool:
    """Whether a process has a file open with O_DIRECT."""
    for path in _entries(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(OSError):  # it was closed
            found = _FLAGS.search(Path(path).read_text())
            if found and int(found[1], 8) & os.O_DIRECT:
                return True
    return False
