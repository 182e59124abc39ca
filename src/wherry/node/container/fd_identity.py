"""That a restored node holds the very files that it held before its move.

CRIU opens every file of a process again by name, as root. Outside the node its user can give the name to another file
meanwhile, one that only root may read, and the user's process would hold that. So before a restored process runs its
first instruction, what it holds is compared, inode by inode, with what its frozen original holds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from pyroute2.netlink.diag import UDIAG_SHOW_VFS, DiagSocket

from wherry.base.errors import Code, Failed
from wherry.node.netns_socket import in_netns

_Held = dict[tuple[int, str], os.stat_result]
"""Process id inside the node and name below /proc/PID (fd/3, map_files/…, cwd) -> file."""


def require_same(before: list[int], after: list[int], private: Path) -> None:
    """Failed when a process of `after` holds another file than its original in `before`.

    The node's own file systems are left out: `private`, which was sent and is nobody's outside, memory, and /proc.
    """
    own = own_devices(after, private)
    originals = _held(before)
    for (pid, name), file in _held(after).items():
        was = originals.get((pid, name))
        if was is None or file.st_dev in own or not (stat.S_ISREG(file.st_mode) or stat.S_ISDIR(file.st_mode)):
            continue
        same = (file.st_dev, file.st_ino) == (was.st_dev, was.st_ino)
        remade = was.st_nlink == file.st_nlink == 0 and was.st_uid == file.st_uid  # an unlinked file travels as a copy
        if not same and not remade:
            why = f"process {pid} of the node held another file as {name} than the one that has the name now"
            raise Failed(Code.MOVE_FAILED, "a file was exchanged during the move", why, "repeat the move")


def require_own_sockets(netns: str, private: Path) -> None:
    """Failed when a Unix socket of the node has its name outside of the node's own file systems.

    CRIU makes such a name again as root and gives it to the socket's owner; if others can put a link there meanwhile,
    it gives away what that leads to. `netns` is the path of the node's network namespace.
    """

    def look() -> tuple[set[int], bool]:
        with DiagSocket() as diag, socket.socket(socket.AF_UNIX) as probe:
            probe.bind("")  # a name of the kernel's choice: one socket at least is told of, or the kernel tells nothing
            diag.bind()
            found = diag.get_sock_stats(family=socket.AF_UNIX, show=UDIAG_SHOW_VFS)
            told = any(one["udiag_ino"] == os.fstat(probe.fileno()).st_ino for one in found)
        return {vfs["udiag_vfs_dev"] for one in found if (vfs := one.get_attr("UNIX_DIAG_VFS"))}, told

    own, (devices, told) = os.stat(private).st_dev, in_netns(netns, look)
    if not told:
        what, why = "the node's Unix sockets could not be looked at", "the kernel does not tell of them (unix_diag)"
        raise Failed(Code.MOVE_FAILED, what, why, "modprobe unix_diag")
    for device in devices:
        if os.makedev(device >> 20, device & 0xFFFFF) != own:
            what = "a program of the node has a Unix socket with a name in a directory that it shares"
            why = "its name would be made again by root, where others could have put a link"
            raise Failed(Code.MOVE_FAILED, what, why, "have the program make its sockets in /tmp")


def _held(pids: list[int]) -> _Held:
    held: _Held = {}
    for pid in pids:
        inner = inner_pid(pid)
        names = ["cwd", "root", "exe"]
        for directory in ("fd", "map_files"):
            names += [f"{directory}/{entry}" for entry in _entries(f"/proc/{pid}/{directory}")]
        for name in names:
            try:
                held[inner, name] = os.stat(f"/proc/{pid}/{name}")
            except OSError:
                continue  # nothing that has an inode, or a process that ended
    return held


def own_devices(pids: list[int], private: Path) -> set[int]:
    """Devices of the file systems that these processes of one node have for themselves."""
    memory = os.memfd_create("wherry")
    try:
        own = {os.fstat(memory).st_dev, os.stat(private).st_dev}
    finally:
        os.close(memory)
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            return own | {os.stat(f"/proc/{pid}/root/proc").st_dev}
    return own


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def inner_pid(pid: int) -> int:
    """The number that a process has inside its node."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
