"""Finds the mounts of its host's files in a running node that the host itself does not have any more.

CRIU identifies a node's mounts by the host's mounts at the same paths: an unmounted one would fail the dump, and one of
another file system by now would silently be that one after the move. So the node lets go of such a mount before, as its
host has done, and where programs of the node use it the move is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.node.container import hot_bind
from wherry.node.container.mounts import READ_ONLY, Layout, mounted
from wherry.node.container.movable import process_name

_OF_THE_RUNTIME = frozenset(("/", "/proc", "/dev/pts", *READ_ONLY))


def stale_mounts(pid: int, layout: Layout) -> Iterator[str]:
    """The mount points of such mounts of the node with this first process. OSError when it has ended."""
    binds, root = layout.binds, f"/proc/{pid}/root"
    known = {bind.inside for bind in (*binds, *layout.masks)} | _OF_THE_RUNTIME
    machine = {bind.inside for bind in binds if bind.outside == bind.inside} | set(layout.user)
    for point in dict.fromkeys(point for point, _, _ in mounted(Path(f"/proc/{pid}/mountinfo").read_bytes())):
        if point not in known or point in machine and not same_directory(point, root + point):
            yield point


def used_stale_mount(first: int, pids: Sequence[int], layout: Layout) -> str:
    """The stale mount that a process of the node uses, so that a move is refused; empty when there is none. The `first`
    process has the node's own root directory, which others may have changed."""
    try:
        stale = {os.stat(f"/proc/{first}/root{point}").st_dev: point for point in stale_mounts(first, layout)}
    except OSError:  # it has ended
        return ""
    for pid in pids if stale else ():
        if used := stale.keys() & set(_devices(pid)):
            point = stale[min(used)]
            return f"{process_name(pid)} uses {point}, which was unmounted or mounted anew at the node's host"
    return ""


def let_go(pid: int | None, layout: Layout) -> None:
    """Takes such mounts out of the node; where a directory of the user's was, it has the host's one of today. Failed
    when a mount is in use."""
    for point in stale_mounts(pid, layout) if pid else ():
        what = f"{point} cannot be taken out of the node, as it was at its host"
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            hot_bind.unmount(namespace, point)
            if point in layout.user:
                opened = layout.open_directory(point)
                try:
                    hot_bind.attach(namespace, opened, point)
                finally:
                    os.close(opened)
        except OSError as error:
            raise Failed(Code.MOVE_FAILED, what, error.strerror or str(error), "the same command again") from None
        finally:
            os.close(namespace)


def same_directory(one: str, other: str) -> bool:
    """True when both paths are one directory."""
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


def _devices(pid: int) -> Iterator[int]:
    """The devices of the files that a process has open, mapped, or as its directories."""
    here = Path(f"/proc/{pid}")
    try:
        for path in (here / "cwd", here / "root", *(here / "fd").iterdir()):
            try:
                yield path.stat().st_dev
            except OSError:  # closed meanwhile
                continue
        for line in (here / "maps").read_text(errors="surrogateescape").splitlines():
            major, _, minor = line.split(None, 4)[3].partition(":")
            yield os.makedev(int(major, 16), int(minor, 16))
    except OSError:  # it has ended
        return
