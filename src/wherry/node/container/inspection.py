"""Looks at a running container for all that would prevent or prolong its move, changing nothing.

A move is prevented by the obstacles of `movable`, which a move itself asks, and by locks on files. It is prolonged by
the memory that the pager leaves to CRIU (docs/design/0020-pager.md), which is sent while the node is frozen, and by
files of the node's own, which are read while it is frozen (0024). The inspection reads smaps, which takes the kernel 9
ms/GB, so no move waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from wherry.base.errors import WherryError
from wherry.fabric.cgroup import Cgroup
from wherry.model.move_check import Hindrance
from wherry.node.container.fd_identity import require_own_sockets
from wherry.node.container.file_locks import FileLocks
from wherry.node.container.forked_memory import memory_obstacle, shared_by_fork
from wherry.node.container.mounts import Layout
from wherry.node.container.movable import move_obstacles, process_name
from wherry.node.protocol import Placement

_MAPPING = re.compile(r"^([0-9a-f]+-[0-9a-f]+) (\S{4}) \S+ (\S+) (\d+)\s*(.*)$")
_OF_MEMORY = ("/memfd:", "/SYSV", "/dev/zero", "/dev/shm/", "/anon_hugepage")
"""Names of shared memory in /proc/PID/maps. Files are where they were."""
_SEALED = fcntl.F_SEAL_WRITE | 0x10
"""The latter is F_SEAL_FUTURE_WRITE."""
_OF_THE_KERNEL = ("[vdso", "[vvar", "[vsyscall")
_MIN_BYTES = 2**20
"""Bytes from which on something prolongs a move: they take about a millisecond."""
_COMPARED = 2**23
"""Bytes from which on the comparison of files does."""
_MAX_LISTED = 32
"""Hindrances of one kind that are reported."""


def inspect(
    placement: Placement, pids: list[int], layout: Layout, pager_obstacle: str, elsewhere: bool
) -> tuple[Hindrance, ...]:
    """All that hinders a move of a node, what prevents it first; `elsewhere`: to another machine."""
    obstacles = zip(move_obstacles(pids, layout.own), range(_MAX_LISTED), strict=False)
    found = [Hindrance(text=text, prevents=True) for text, _ in obstacles]
    if placement.owner.uid != 0:
        try:
            require_own_sockets(placement.netns, layout.own)
        except WherryError as error:
            found.append(Hindrance(text=str(error), prevents=True))
    if layout.disk and (why := layout.disk.removed_obstacle(pids, placement.node.memory)):
        found.append(Hindrance(text=why, prevents=True))
    if not pager_obstacle:
        found += _copies(placement, pids)
    locks = FileLocks(placement.node.name, placement.cgroup, layout.own)
    if removed := locks.removed(elsewhere):
        found.append(Hindrance(text=str(removed), prevents=True))
    if lock := locks.obstacle():
        found.append(Hindrance(text=f"{lock}; a move waits for it for half a second"))
    found += _memory(pids, pager_obstacle)
    if (files := tree_bytes(layout.private)) >= _COMPARED:
        text = "files in its own directories, which are read while it is frozen, and sent then when there are no rounds"
        found.append(Hindrance(text=text, bytes=files))
    return tuple(found)


def _copies(placement: Placement, pids: list[int]) -> Iterator[Hindrance]:
    """The effects of a move on memory that processes share since a fork."""
    if why := memory_obstacle(Cgroup(placement.cgroup), pids, placement.node.memory):
        yield Hindrance(text=why, prevents=True)
    elif (shared := shared_by_fork(pids)) >= _COMPARED:
        text = "its processes share memory since a fork, and each has a copy of its own afterwards"
        yield Hindrance(text=text, grows=shared)


def _memory(pids: list[int], pager_obstacle: str) -> Iterator[Hindrance]:
    """The memory that is sent while the node is frozen, by process and kind."""
    seen: set[tuple[int, int]] = set()
    forked = _forked_huge_pages(pids)
    for pid in pids:
        try:
            kinds = _kinds(pid, seen, forked, everything=bool(pager_obstacle))
        except OSError:
            continue  # it ended
        for kind, size in kinds.most_common():
            if size < _MIN_BYTES:
                break
            why = f" (no rounds: {pager_obstacle})" if kind == "memory" else ""
            yield Hindrance(text=f"{process_name(pid)} has {kind}{why}", bytes=size)
    for pid in pids:
        if (size := _unmapped_memory(pid, seen)) >= _MIN_BYTES:
            yield Hindrance(text=f"{process_name(pid)} has shared memory that nobody has mapped", bytes=size)


def _kinds(pid: int, seen: set[tuple[int, int]], forked: set[str], everything: bool) -> Counter[str]:
    """Bytes of a process by kind that the pager does not send. Shared memory counts once. `forked`: huge pages of more
    than one process."""
    kinds: Counter[str] = Counter()
    for start, access, identity, name, values in _mappings(pid):
        if name.startswith(_OF_THE_KERNEL):
            continue
        flags, huge = values.get("VmFlags", "").split(), _kilobytes(values, "Private_Hugetlb", "Shared_Hugetlb")
        if access.endswith("s"):
            if name.startswith(_OF_MEMORY):
                path = f"/proc/{pid}/map_files/{start}"
                file = os.stat(path)
                if (file.st_dev, file.st_ino) not in seen:
                    seen.add((file.st_dev, file.st_ino))
                    if everything or not _goes_in_rounds(path, file):
                        kinds["shared memory"] += huge or file.st_blocks * 512
        elif "ht" in flags:
            if everything or not name.startswith("/anon_hugepage") or identity in forked:
                kinds["memory in huge pages"] += huge
        elif name and not name.startswith("["):
            kinds["changed pages of files"] += _kilobytes(values, "Anonymous")
        elif "lo" in flags:
            kinds["locked memory"] += _kilobytes(values, "Anonymous")
        elif everything:
            kinds["memory"] += _kilobytes(values, "Anonymous")
    return +kinds


def _unmapped_memory(pid: int, seen: set[tuple[int, int]]) -> int:
    """Bytes in a process's descriptors of memory (memfd) that are not among the `seen`, which are mapped."""
    size = 0
    with contextlib.suppress(OSError):  # it ended
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed
                if os.readlink(descriptor.path).startswith("/memfd:"):
                    file = os.stat(descriptor.path)
                    size += 0 if (file.st_dev, file.st_ino) in seen else file.st_blocks * 512
                    seen.add((file.st_dev, file.st_ino))
    return size


def _goes_in_rounds(path: str, file: os.stat_result) -> bool:
    """Whether the pager sends this shared memory while the node runs (native/pager/objects.h)."""
    if file.st_dev != _device_of_memory() or file.st_size < _MIN_BYTES:
        return False
    memory = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return not fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALED
    except OSError:
        return True  # it cannot be sealed
    finally:
        os.close(memory)


@functools.cache
def _device_of_memory() -> int:
    """Where the kernel itself keeps shared memory, rather than in a mounted file system."""
    memory = os.memfd_create("")
    try:
        return os.fstat(memory).st_dev
    finally:
        os.close(memory)


def _forked_huge_pages(pids: list[int]) -> set[str]:
    """The identities of private huge pages that more than one process maps."""
    processes: Counter[str] = Counter()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue  # it ended
        found = [match for line in lines if "/anon_hugepage" in line and (match := _MAPPING.match(line))]
        processes.update({f"{match[3]} {match[4]}" for match in found})
    return {identity for identity, count in processes.items() if count > 1}


def _mappings(pid: int) -> Iterator[tuple[str, str, str, str, dict[str, str]]]:
    """Range, access, identity, name and smaps' values of each mapping of a process."""
    current: tuple[str, str, str, str] | None = None
    values: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines():
        if match := _MAPPING.match(line):
            if current:
                yield (*current, values)
            current, values = (match[1], match[2], f"{match[3]} {match[4]}", match[5]), {}
        else:
            key, _, value = line.partition(":")
            values[key] = value
    if current:
        yield (*current, values)


def _kilobytes(values: dict[str, str], *names: str) -> int:
    """The sum of some values of smaps, in bytes."""
    return sum(int(values[name].split()[0]) << 10 for name in names if name in values)


def tree_bytes(directory: Path) -> int:
    """Bytes that the files below a directory take."""
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total
