"""Locks whose descriptor was closed while a mapping of the file keeps the description, and so the lock.

Every Java runtime has one, on its hsperfdata file. CRIU does not see such locks. They travel as a file among its
images; at the restore our library in CRIU (native/preload/criu_locks.c) takes each again with the descriptor by which
CRIU maps the file, so that again the mapping alone keeps it.

That is the same lock only where there is one such mapping: CRIU opens a file once for each process and descriptor.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from wherry.node.container.fd_identity import inner_pid
from wherry.node.container.host import HeldLocks
from wherry.node.container.lock_table import OF_A_DESCRIPTION, Lock, all_locks, mapped_files
from wherry.node.container.renamed_files import REMOVED

MAPPING = -1
"""In place of a descriptor's number: a mapping keeps the lock."""
IMAGE = "mapped-locks"
"""A line for each lock: kind, type, first and last byte as /proc/locks has them, path."""


def without_descriptor(pids: Sequence[int], told: set[tuple[str, ...]]) -> list[Lock]:
    """The locks of a node that no descriptor shows; the locks that a descriptor shows are `told`, in words."""
    left = [lock for lock in all_locks() if lock.words not in told]
    unknown = [lock for lock in left if lock.pid <= 0 or not os.path.exists(f"/proc/{lock.pid}")]
    mapped = set().union(*map(mapped_files, pids)) if unknown else set()
    return [lock for lock in left if lock.pid in pids or (lock in unknown and lock.inode in mapped)]


def kept(lock: Lock, pids: Sequence[int], own: set[int], opened: set[tuple[int, int]]) -> HeldLocks | str:
    """How a lock is carried that no descriptor shows; why it cannot be. `own`: devices of the node's own file systems.
    `opened`: device and inode of each open file of the node."""
    found = [(pid, name) for pid in pids for name in mapped_files(pid).get(lock.inode, ())]
    if lock.kind not in OF_A_DESCRIPTION or not found:
        return "CRIU does not see a lock that only a message in transit keeps"
    (pid, name), *others = found
    link = f"/proc/{pid}/map_files/{name}"
    try:
        path, file = os.readlink(link), os.stat(link)
    except OSError:
        return "its mapping was made or removed in this moment"
    if file.st_dev not in own:
        return "only a mapping keeps it, and others than this node may lock the file"
    if others or (file.st_dev, file.st_ino) in opened:
        return "only a mapping keeps it, and the file is open or mapped elsewhere in the node, too"
    if path.endswith(REMOVED) or "\n" in path:
        return "only a mapping keeps it, and the file cannot be opened by its name"
    return HeldLocks(inner_pid(pid), MAPPING, path, (lock.lock_key,))


def write(images: Path, locks: Sequence[HeldLocks]) -> None:
    """Tells those locks to the CRIU that will restore these images."""
    lines = [" ".join((*key, held.path)) for held in locks if held.number == MAPPING for key in held.lock_keys]
    if lines:
        (images / IMAGE).write_bytes(b"".join(os.fsencode(line) + b"\n" for line in lines))


def lock_keys(pids: Sequence[int], path: str) -> Counter[tuple[str, ...]]:
    """The locks on a file of a node's that some of its processes have mapped."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended, or has no such file
            inode = os.lstat(f"/proc/{pid}/root{path}").st_ino
            inodes |= {identity for identity in mapped_files(pid) if identity[1] == inode}
    return Counter(lock.lock_key for lock in all_locks() if lock.inode in inodes)
