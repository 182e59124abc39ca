"""Binds a directory into a node that runs, and takes it out again.

The mount is cloned from a descriptor that was opened with the user's rights (open_tree(2)), gets the flags of the binds
that a node starts with, and is attached by a thread that has entered the node's mount namespace and ends with the call.
Invariant: every directory above a mount point is root's and in the node's own file system, and none is a link. So no
user can redirect the path: not now, not when it is unmounted, and not when CRIU mounts it again after a move. The
node's next placement mounts it as all others (see `mounts`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from wherry.base.own_thread import in_own_thread
from wherry.node.container.mounts import MNT_DETACH, MS_PRIVATE, UMOUNT_NOFOLLOW

_libc = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""System calls by number: the same on all architectures, and younger than many C libraries."""
_AT_EMPTY_PATH, _OPEN_TREE_CLONE = 0x1000, 1
_FROM_DESCRIPTOR, _ONTO_DESCRIPTOR = 0x4, 0x40
"""MOVE_MOUNT_F_EMPTY_PATH and MOVE_MOUNT_T_EMPTY_PATH."""
_ATTR_NOSUID, _ATTR_NODEV = 2, 4
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Attributes(ctypes.Structure):
    """struct mount_attr, mount_setattr(2)."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def attach(namespace: int, directory: int, inside: str) -> None:
    """Shows the directory behind an O_PATH descriptor at `inside` in the mount namespace behind `namespace`.

    It keeps `ro` and `noexec` of the host's mount. OSError with the reason when it cannot; nothing is left then.
    """
    tree = _checked(_libc.syscall(_OPEN_TREE, directory, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC))
    try:
        flags = _Attributes(set=_ATTR_NOSUID | _ATTR_NODEV, propagation=MS_PRIVATE)
        size = ctypes.sizeof(flags)
        _checked(_libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(flags), size))
        _entered(namespace, lambda: _attach(tree, inside))
    finally:
        os.close(tree)


def detach(namespace: int, inside: str) -> None:
    """Undoes `attach`. Idempotent, also when there was none."""
    _entered(namespace, lambda: _detach(inside))


def _entered(namespace: int, act: Callable[[], None]) -> None:
    """`act()` in a thread that has entered the mount namespace. The thread has a working directory and a umask of its
    own, without which the kernel lets no thread enter."""

    def run() -> None:
        _checked(_libc.unshare(_CLONE_FS))
        _checked(_libc.setns(namespace, _CLONE_NEWNS))
        os.umask(0o022)
        act()

    in_own_thread(run, "late-bind")


def _attach(tree: int, inside: str) -> None:
    point = _walk(inside, make=True)
    try:
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=point)
        try:
            if os.listdir(listed):
                raise OSError(errno.EEXIST, "the node has files of its own there")
        finally:
            os.close(listed)
        _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", point, b"", _FROM_DESCRIPTOR | _ONTO_DESCRIPTOR))
    except BaseException:
        os.close(point)
        with suppress(OSError):
            _remove(inside)
        raise
    os.close(point)


def _detach(inside: str) -> None:
    above, _, name = inside.rpartition("/")
    try:
        parent = _walk(above)
    except OSError:  # nothing of ours is there
        return
    try:
        os.fchdir(parent)
    finally:
        os.close(parent)
    if _libc.umount2(os.fsencode(name), MNT_DETACH | UMOUNT_NOFOLLOW):
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):  # else it is no mount point
            raise OSError(number, os.strerror(number))
    with suppress(OSError):
        _remove(inside)


def _walk(path: str, make: bool = False) -> int:
    """A descriptor of a directory of the node, made where it is missing. OSError when others than root could rename a
    component of its path."""
    at = os.open("/", _PATH)
    try:
        for name in filter(None, path.split("/")):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
            below = os.open(name, _PATH, dir_fd=at)
            os.close(at)
            at = below
            about = os.fstat(at)
            if about.st_uid or (about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX):
                raise OSError(errno.EEXIST, f"the node has a {name} of its own on the way, which is not root's")
    except NotADirectoryError:
        os.close(at)
        raise OSError(errno.EEXIST, f"the node has a {name} of its own on the way, which is no directory") from None
    except BaseException:
        os.close(at)
        raise
    return at


def _remove(path: str) -> None:
    """Removes the directory, and those above it that are empty then. OSError at the first one that is not."""
    while path.count("/") > 1:  # the topmost ones belong to every node
        above, _, name = path.rpartition("/")
        parent = _walk(above)
        try:
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)
        path = above


def _checked(result: int) -> int:
    """The result of a system call. OSError when it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
