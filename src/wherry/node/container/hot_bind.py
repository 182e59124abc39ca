"""Binds a directory into a node that runs, and takes it out again.

The mount is cloned from a descriptor that was opened with the user's rights (open_tree(2)), gets the flags of the binds
that a node starts with, and is attached by a thread that has entered the node's mount namespace and ends with the call.
Below /tmp and /run, which are the node's own, mount points are made; invariant: every directory above one is root's and
in the node's own file system, and none is a link. So no user can redirect the path: not now, not when it is unmounted,
and not when CRIU mounts it again after a move. Elsewhere the node shows the machine's tree read-only, and the path is
the machine's: a mount that the node has there already becomes writable, else the directory is mounted over the node's.
The node's next placement mounts it as all others (see `mounts`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from wherry.base.own_thread import in_own_thread
from wherry.node.container.mounts import MNT_DETACH, MS_PRIVATE, UMOUNT_NOFOLLOW, mounted

_libc = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""System calls by number: the same on all architectures, and younger than many C libraries."""
_AT_EMPTY_PATH, _OPEN_TREE_CLONE = 0x1000, 1
_FROM_DESCRIPTOR, _ONTO_DESCRIPTOR = 0x4, 0x40
"""MOVE_MOUNT_F_EMPTY_PATH and MOVE_MOUNT_T_EMPTY_PATH."""
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OWN = ("/tmp/", "/run/")
"""Below these a node has files of its own."""


class _Attributes(ctypes.Structure):
    """struct mount_attr, mount_setattr(2)."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def attach(namespace: int, directory: int, inside: str) -> None:
    """Shows the directory behind an O_PATH descriptor at `inside` in the mount namespace behind `namespace`, writable.

    It keeps `ro` and `noexec` of the host's mount. OSError with the reason when it cannot; nothing is left then.
    """
    about, read_only = os.fstat(directory), bool(os.fstatvfs(directory).f_flag & os.ST_RDONLY)
    tree = _checked(_libc.syscall(_OPEN_TREE, directory, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC))
    try:
        _set(tree, _Attributes(set=_ATTR_NOSUID | _ATTR_NODEV, propagation=MS_PRIVATE))
        if inside.startswith(_OWN):
            _entered(namespace, lambda _points: _attach(tree, inside))
        else:
            _entered(namespace, lambda points: _attach_over(tree, inside, about, points, read_only))
    finally:
        os.close(tree)


def detach(namespace: int, inside: str, shown: bool = False) -> None:
    """Undoes `attach`. Idempotent, also when there was none. A directory that nodes show anyway (`shown`) stays,
    read-only."""
    _entered(namespace, lambda points: _detach(inside, shown, points))


def unmount(namespace: int, inside: str) -> None:
    """Takes the mount at `inside` out of the node. OSError (EBUSY) when a program uses it."""

    _entered(namespace, lambda _points: _unmount(inside, 0))


def _entered(namespace: int, act: Callable[[frozenset[str]], None]) -> None:
    """`act` with the mount points of the mount namespace, in a thread that has entered it. The thread has a working
    directory and a umask of its own, without which the kernel lets no thread enter."""

    def run() -> None:
        thread = os.open("/proc/thread-self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # unseen in the node's /proc
        try:
            _checked(_libc.unshare(_CLONE_FS))
            _checked(_libc.setns(namespace, _CLONE_NEWNS))
            os.umask(0o022)
            opened = os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=thread)
        finally:
            os.close(thread)
        with open(opened, "rb") as table:
            points = frozenset(point for point, _, _ in mounted(table.read()))
        act(points)

    in_own_thread(run, "hot-bind")


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


def _attach_over(tree: int, inside: str, about: os.stat_result, points: frozenset[str], read_only: bool) -> None:
    """Mounts the tree over the node's view of the machine's directory `about`, or makes the mount there writable."""
    point = _walk(inside)
    try:
        there = os.fstat(point)
        same = (there.st_dev, there.st_ino) == (about.st_dev, about.st_ino)
        if inside in points and same:
            if not read_only:
                _set(point, _Attributes(clear=_ATTR_RDONLY))
            return
        hidden = [path for path in points if path == inside or path.startswith(f"{inside}/")]
        if hidden:
            raise OSError(errno.EBUSY, f"it would hide the node's mount at {min(hidden)}")
        _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", point, b"", _FROM_DESCRIPTOR | _ONTO_DESCRIPTOR))
    finally:
        os.close(point)


def _detach(inside: str, shown: bool, points: frozenset[str]) -> None:
    own = inside.startswith(_OWN)
    if not own and inside not in points:
        return
    if shown:
        with suppress(FileNotFoundError, NotADirectoryError):  # its path was changed
            point = _walk(inside)
            try:
                _set(point, _Attributes(set=_ATTR_RDONLY))
            finally:
                os.close(point)
        return
    try:
        _unmount(inside, MNT_DETACH)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
            raise  # else nothing of ours is there
    if own:
        with suppress(OSError):
            _remove(inside)


def _unmount(inside: str, how: int) -> None:
    """umount2(2) of a mount point, no component of whose path is a link."""
    above, _, name = inside.rpartition("/")
    parent = _walk(above)
    try:
        os.fchdir(parent)
    finally:
        os.close(parent)
    if _libc.umount2(os.fsencode(name), how | UMOUNT_NOFOLLOW):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _walk(path: str, make: bool = False) -> int:
    """A descriptor of a directory of the node; with `make` it is made where it is missing. OSError when a component is
    a link, or, in the node's own file systems, when others than root could rename one."""
    at, own = os.open("/", _PATH), f"{path}/".startswith(_OWN)
    try:
        for name in filter(None, path.split("/")):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
            below = os.open(name, _PATH, dir_fd=at)
            os.close(at)
            at = below
            about = os.fstat(at)
            if own and (about.st_uid or (about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX)):
                raise OSError(errno.EEXIST, f"the node has a {name} of its own on the way, which is not root's")
    except NotADirectoryError:
        os.close(at)
        raise OSError(errno.EEXIST, f"the node has a {name} of its own on the way, which is no directory") from None
    except BaseException:
        os.close(at)
        raise
    return at


def _remove(path: str) -> None:
    """Removes the directory, and each one above it that is empty then. OSError at the first that is not empty."""
    while path.count("/") > 1:  # the topmost ones belong to every node
        above, _, name = path.rpartition("/")
        parent = _walk(above)
        try:
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)
        path = above


def _set(mount: int, attributes: _Attributes) -> None:
    """mount_setattr(2) of the mount behind a descriptor."""
    size = ctypes.sizeof(attributes)
    _checked(_libc.syscall(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size))


def _checked(result: int) -> int:
    """The result of a system call. OSError when it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
