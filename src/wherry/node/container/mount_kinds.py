"""The kinds of file systems that a node has mounted, by device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

NUMBERED = {"nfs", "nfs4", "ceph", "lustre", "gpfs"}
"""File systems whose server numbers files, so that an inode is one file at all machines."""
SHARED = {*NUMBERED, "9p", "virtiofs", "cifs", "smb3", "beegfs", "fuse.glusterfs", "fuse.sshfs"}
"""File systems that other machines can have, too."""


def kinds_of(pids: Sequence[int]) -> dict[int, str]:
    """The kind of file system of each device that the processes of a node have mounted."""
    found = dict[int, str]()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines()
            return found | mount_kinds(lines)
    return found


def mount_kinds(lines: Sequence[str]) -> dict[int, str]:
    """The same of the lines of a mountinfo (proc(5))."""
    found = dict[int, str]()
    for line in lines:
        mount, _, rest = line.partition(" - ")
        major, _, minor = mount.split()[2].partition(":")
        found[os.makedev(int(major), int(minor))] = rest.split()[0]
    return found
