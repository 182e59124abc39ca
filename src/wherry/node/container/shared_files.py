"""The objects of a machine that a node uses, for another machine to check before the freeze whether it has the same.

Hosts with one kernel name a file by device and inode. Two machines have device numbers of their own, and the inode is
the file's everywhere only on file systems that a server numbers. So a file is

    on such a file system     the one with the same path and inode
    else                      one with the same path, owner and content; by size and time when it is large

CRIU itself compares only the size of files, so without this a library of another release with the same size would be
taken for the same. A file that is written has to be on storage that both machines see. See
docs/design/0026-hosts-by-ssh.md.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from wherry.model.host_memory import INSIDE
from wherry.node.container.fd_identity import own_devices
from wherry.node.container.host import UsedFile, Uses
from wherry.node.container.mount_kinds import NUMBERED, SHARED, kinds_of
from wherry.node.container.processes import namespace_pids, number_of_mappings
from wherry.node.container.terminals import input_obstacle, masters
from wherry.node.container.timers import borrowed

_SUMMED = 256 << 20
"""Bytes up to which contents are compared."""
_PIECE = 1 << 20
_OF_THE_KERNEL = {"sysfs", "cgroup", "cgroup2", "proc"}
"""File systems whose files are no contents."""
_MAX_LISTED = 3
_WATCHES = ("anon_inode:inotify", "anon_inode:[fanotify]")
_WATCHED = re.compile(r"\bsdev:([0-9a-f]+)")
_REMOVED = ".nfs"
"""Prefix of the name that an NFS client gives a file which was removed while it is open (linux/fs/nfs/unlink.c)."""
_PID_MAX, _MAP_COUNT = Path("/proc/sys/kernel/pid_max"), Path("/proc/sys/vm/max_map_count")
_GONE = (errno.ENOENT, errno.ESRCH, errno.EBADF)
"""Of a descriptor or a mapping that was closed meanwhile, or a process that has ended."""
_KEPT = 4096
_sums = dict[tuple[int, ...], str]()
"""Sums that were made, of files by device, inode, size and times."""


def uses(pids: Sequence[int], inside: Iterable[Path], binds: Sequence[str]) -> Uses:
    """The objects that these processes of one node use. `binds` are directories that are the same at all hosts, those
    of `inside` are on file systems of the node's own."""
    own, kinds = own_devices(list(pids), inside), kinds_of(pids)
    found = dict[str, UsedFile]()
    obstacle, highest, mappings, has_terminal = "", 1, 0, False
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            highest = max(highest, namespace_pids(pid)[-1])
            mappings = max(mappings, number_of_mappings(pid))
            has_terminal = has_terminal or bool(masters(pid))
            for file in _files(pid, own, kinds):
                before = found.get(file.path)
                found[file.path] = file if before is None or not before.written else before
            obstacle = obstacle or _watch(pid, own)
    obstacle = obstacle or next(filter(None, (_not_shared(file, binds, kinds) for file in found.values())), "")
    return Uses(tuple(found.values()), obstacle, highest, mappings, has_terminal)


def lacks(used: Uses) -> str:
    """Why this machine cannot take over a node that uses that; empty when it can."""
    if used.obstacle:
        return used.obstacle
    for limit, name, need in (
        (_PID_MAX, "kernel.pid_max", used.process + 1),
        (_MAP_COUNT, "vm.max_map_count", used.mappings),
    ):
        if (most := int(limit.read_text())) < need:
            return f"its {name} is {most}, and the node needs {need}"
    if used.terminals and (why := input_obstacle()):
        return f"the node has a terminal, and {why}"
    differs = [f"{file.path} {why}" for file in used.files if (why := difference(file))]
    more = f", and {len(differs) - _MAX_LISTED} more" if len(differs) > _MAX_LISTED else ""
    return f"{'; '.join(differs[:_MAX_LISTED])}{more}" if differs else ""


def difference(file: UsedFile) -> str:
    """The difference of a file here; empty when there is none."""
    try:
        return _difference(file, os.stat(file.path))
    except FileNotFoundError:
        return "is not there"
    except OSError as error:  # root of this machine may be nobody on a shared file system
        return f"cannot be looked at there ({error.strerror})"


def _difference(file: UsedFile, here: os.stat_result) -> str:
    if (stat.S_IFMT(here.st_mode), here.st_uid) != (stat.S_IFMT(file.mode), file.owner):
        return "is of another kind or owner there"
    if file.inode:
        return "" if here.st_ino == file.inode else "is another file there"
    if file.written or not stat.S_ISREG(here.st_mode):
        return ""
    if here.st_size != file.size:
        return "has another size there"
    if file.sum:
        return "" if _sum(file.path) == file.sum else "has another content there"
    return "" if here.st_mtime_ns == file.modified else "was changed at another time there"


def flush(pids: Sequence[int]) -> None:
    """Passes on to the server of a shared file system all that these processes wrote to files which are still open.
    OSError when it cannot. Another machine opens them, and must see what was written here."""
    kinds, seen = kinds_of(pids), set[tuple[int, int]]()
    if SHARED.isdisjoint(kinds.values()):
        return
    for pid in pids:
        for name in _names(pid):
            path = f"/proc/{pid}/{name}"
            try:
                status = os.stat(path)
                known = kinds.get(status.st_dev) in SHARED and stat.S_ISREG(status.st_mode)
                if not known or (status.st_dev, status.st_ino) in seen or not _is_written(path):
                    continue
                with _opened(pid, name) as file:
                    os.fdatasync(file)
            except OSError as error:
                if error.errno in _GONE:
                    continue
                raise
            seen.add((status.st_dev, status.st_ino))


@contextlib.contextmanager
def _opened(pid: int, name: str) -> Iterator[int]:
    """The file of a descriptor as its process has it open, else opened again: root may not have the right to do that on
    a shared file system."""
    directory, _, number = name.partition("/")
    if directory == "fd":
        with borrowed(pid, int(number)) as file:
            yield file
        return
    file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)


def _files(pid: int, own: set[int], kinds: Mapping[int, str]) -> Iterator[UsedFile]:
    for name in _names(pid):
        path = f"/proc/{pid}/{name}"
        with contextlib.suppress(OSError):  # closed meanwhile
            file, target = os.stat(path), os.readlink(path)
            told = stat.S_ISREG(file.st_mode) or stat.S_ISDIR(file.st_mode)
            if kinds.get(file.st_dev) in _OF_THE_KERNEL:
                continue
            ours = file.st_dev in own or target.startswith(f"{INSIDE}/")  # which a node takes home before it moves
            if not told or ours or not file.st_nlink or not target.startswith("/"):
                continue
            written, numbered = _is_written(path), kinds.get(file.st_dev) in NUMBERED
            summed = stat.S_ISREG(file.st_mode) and not written and not numbered and file.st_size <= _SUMMED
            yield UsedFile(
                path=target, size=file.st_size, modified=file.st_mtime_ns, mode=file.st_mode, owner=file.st_uid,
                inode=file.st_ino if numbered else 0, device=file.st_dev, written=written,
                sum=_sum(path) if summed else "",
            )  # fmt: skip


def _not_shared(file: UsedFile, binds: Sequence[str], kinds: Mapping[int, str]) -> str:
    """Why the file of a running node cannot be the same at another machine; empty when it can."""
    if file.inode and os.path.basename(file.path).startswith(_REMOVED):
        return f"it has a removed file open, {file.path}, which ends with its last process here"
    shared = kinds.get(file.device) in SHARED or any(Path(file.path).is_relative_to(bind) for bind in binds)
    if file.written and not shared:
        return f"it writes to {file.path}, which is on no storage that both hosts see"
    return ""


def _watch(pid: int, own: set[int]) -> str:
    """Why a watch of a process cannot be carried: it names a file by a handle of its kernel; empty when none is."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{name}") in _WATCHES:
                text = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
                if any(device_of(int(word, 16)) not in own for word in _WATCHED.findall(text)):
                    return f"process {namespace_pids(pid)[-1]} watches files of the host (inotify, fanotify)"
    return ""


def device_of(kernels: int) -> int:
    """A device number as stat(2) has it, of one as the kernel writes it (linux/kdev_t.h)."""
    return os.makedev(kernels >> 20, kernels & 0xFFFFF)


def _names(pid: int) -> list[str]:
    names = ["exe", "cwd"]
    for directory in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            names += [f"{directory}/{entry}" for entry in os.listdir(f"/proc/{pid}/{directory}")]
    return names


def _is_written(path: str) -> bool:
    """True for a descriptor or a mapping whose file was opened for writing: the mode of the link shows it (proc(5))."""
    return path.split("/")[3] in ("fd", "map_files") and bool(os.lstat(path).st_mode & stat.S_IWUSR)


def _sum(path: str) -> str:
    """SHA-256 of a file, which is kept for as long as the file is the same. Empty when it is no file any more."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return ""
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if identity not in _sums:
            if len(_sums) >= _KEPT:
                _sums.clear()
            whole = hashlib.sha256()
            while piece := os.read(file, _PIECE):
                whole.update(piece)
            _sums[identity] = whole.hexdigest()
        return _sums[identity]
    finally:
        os.close(file)
