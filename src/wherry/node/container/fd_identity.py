"""Checks that a restored node has the same files open as before its move.

CRIU reopens every file of a process by path, as root. Meanwhile the node's user could replace the file, for instance by
a file that only root may read, and the user's process would get it. So before a restored process runs its first
instruction, its files are compared, inode by inode, with those of its frozen original. Another machine numbers devices
otherwise, and inodes too, unless a server numbers them: there a file is the one with the same path, kind and owner, and
the same inode, or size and time of change (what root owns has the same permissions instead, and was compared before the
freeze, by content).
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyroute2.netlink.diag import UDIAG_SHOW_VFS, DiagSocket

from wherry.base.errors import Code, Failed
from wherry.node.container.host import HeldFile
from wherry.node.container.mount_kinds import NUMBERED, kinds_of
from wherry.node.container.processes import namespace_pids
from wherry.node.netns_socket import in_netns


def require_same(before: Sequence[HeldFile], after: list[int], own: Iterable[Path], two_kernels: bool = False) -> None:
    """Failed when a process of `after` has another file open than its original had, which may have been at another
    machine.

    The node's own file systems are ignored: those of `own`, which were sent and are not accessible from outside, memory
    files, and /proc.
    """
    devices = own_devices(after, own)
    originals = {(file.process, file.name): file for file in before}
    for file in held_files(after, two_kernels):
        was = originals.get((file.process, file.name))
        if was is None or file.device in devices or not (stat.S_ISREG(file.mode) or stat.S_ISDIR(file.mode)):
            continue
        same = (file.device, file.inode) == (was.device, was.inode)
        if two_kernels:
            same = same_elsewhere(was, file)
        # open files were handed over; a program or library that was built anew travels as a copy
        copied = was.links == file.links == 0 and was.owner == file.owner and not file.name.startswith("fd/")
        if not same and not copied:
            why = f"{file.name} of process {file.process} in the node is another file than before"
            raise Failed(Code.MOVE_FAILED, "a file was replaced during the move", why, "repeat the move")


def same_elsewhere(was: HeldFile, file: HeldFile) -> bool:
    """True when a file of one machine is that of another. Root's have the same permissions, too, so that only another
    readable file replaces a readable one."""
    kind = stat.S_IFMT(file.mode)
    if (was.path, stat.S_IFMT(was.mode), was.owner) != (file.path, kind, file.owner):
        return False
    if was.owner == 0 and was.mode != file.mode:
        return False
    if was.numbered or file.numbered:
        return was.numbered and file.numbered and was.inode == file.inode
    if kind == stat.S_IFDIR:
        return True
    return was.size == file.size and (was.owner == 0 or was.modified == file.modified)


def require_own_sockets(netns: str, own: Iterable[Path]) -> None:
    """Failed when a Unix socket of the node is bound to a path outside of the node's own file systems.

    CRIU creates the path again as root and chowns it to the socket's owner; a user who puts a link there meanwhile
    would own its target. `netns` is the path of the node's network namespace, `own` has a directory on each of its file
    systems.
    """

    def look() -> tuple[set[int], bool]:
        with DiagSocket() as diag, socket.socket(socket.AF_UNIX) as probe:
            probe.bind("")  # autobind: if not even this socket is listed, the kernel lists none
            diag.bind()
            found = diag.get_sock_stats(family=socket.AF_UNIX, show=UDIAG_SHOW_VFS)
            told = any(one["udiag_ino"] == os.fstat(probe.fileno()).st_ino for one in found)
        return {vfs["udiag_vfs_dev"] for one in found if (vfs := one.get_attr("UNIX_DIAG_VFS"))}, told

    inside, (devices, told) = {os.stat(directory).st_dev for directory in own}, in_netns(netns, look)
    if not told:
        what, why = "the node's Unix sockets could not be checked", "the kernel does not list them (unix_diag)"
        raise Failed(Code.MOVE_FAILED, what, why, "modprobe unix_diag")
    for device in devices:
        if os.makedev(device >> 20, device & 0xFFFFF) not in inside:
            what = "a program of the node has a Unix socket in a directory outside the node"
            why = "root would have to create it again there, where others could have put a link"
            raise Failed(Code.MOVE_FAILED, what, why, "let the program create its sockets in /tmp")


def held_files(pids: list[int], two_kernels: bool = False) -> tuple[HeldFile, ...]:
    """Everything that these processes of one node hold open, mapped, or as a directory; for `two_kernels` with the
    attributes that two machines can compare. This is done in the freeze."""
    held, kinds = [], kinds_of(pids) if two_kernels else {}
    for pid in pids:
        inner = inner_pid(pid)
        names = ["cwd", "root", "exe"]
        for directory in ("fd", "map_files"):
            names += [f"{directory}/{entry}" for entry in _entries(f"/proc/{pid}/{directory}")]
        for name in names:
            try:
                file = os.stat(f"/proc/{pid}/{name}")
                path = os.readlink(f"/proc/{pid}/{name}") if two_kernels else ""
            except OSError:
                continue  # no inode, or the process ended
            held.append(
                HeldFile(
                    inner, name, file.st_dev, file.st_ino, file.st_mode, file.st_nlink, file.st_uid,
                    path, file.st_size, file.st_mtime_ns, kinds.get(file.st_dev) in NUMBERED,
                )
            )  # fmt: skip
    return tuple(held)


def own_devices(pids: list[int], own: Iterable[Path]) -> set[int]:
    """Devices of the file systems that are private to these processes of one node: of the directories `own`, and the
    kernel's."""
    found = {*_memory_devices(), *(os.stat(directory).st_dev for directory in own)}
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            return found | {os.stat(f"/proc/{pid}/root/proc").st_dev}
    return found


@functools.cache
def _memory_devices() -> frozenset[int]:
    """Devices of the file systems that the kernel itself keeps shared memory in: one, and one for each size of huge
    pages."""
    kinds, found = [0], set()
    for entry in _entries("/sys/kernel/mm/hugepages"):
        size = int(entry.removeprefix("hugepages-").removesuffix("kB")) << 10
        kinds.append(os.MFD_HUGETLB | (size.bit_length() - 1) << os.MFD_HUGE_SHIFT)
    for kind in kinds:
        with contextlib.suppress(OSError):  # the kernel has no pages of this size
            memory = os.memfd_create("wherry", os.MFD_CLOEXEC | kind)
            found.add(os.fstat(memory).st_dev)
            os.close(memory)
    return frozenset(found)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def inner_pid(pid: int) -> int:
    """The PID of a process, or TID of a thread, inside its node."""
    return namespace_pids(pid)[-1]
