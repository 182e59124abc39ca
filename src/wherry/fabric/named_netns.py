"""Named network namespaces under /run/netns, in the layout of `ip netns`, so that its commands work on them.

Invariant: no long-lived thread of this process enters another namespace: `inside` runs a function in a short-lived
thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from wherry.base.errors import Code, Failed
from wherry.base.own_thread import in_own_thread

DIRECTORY = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED, _MNT_DETACH = 0x1000, 0x4000, 0x100000, 2
_libc = ctypes.CDLL(None, use_errno=True)  # setns and unshare are in `os` from Python 3.12 only

Result = TypeVar("Result")


def path(name: str) -> str:
    """Path at which the namespace is pinned, whether it exists or not."""
    return str(DIRECTORY / name)


def exists(name: str) -> bool:
    """True when a namespace is pinned under the name; an empty file left by a crash does not count."""
    try:
        return os.stat(path(name)).st_dev != os.stat(DIRECTORY).st_dev
    except FileNotFoundError:
        return False


def names(prefix: str) -> list[str]:
    """Names that begin with `prefix` and a hyphen, also of half-made namespaces."""
    if not DIRECTORY.is_dir():
        return []
    return sorted(n for n in os.listdir(DIRECTORY) if n.startswith(f"{prefix}-"))


def create(name: str) -> None:
    """Makes the namespace if it does not exist."""
    if exists(name):
        return
    _share_directory()
    target = path(name)
    Path(target).touch()

    def make() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare", target)
        _mount(f"/proc/self/task/{threading.get_native_id()}/ns/net", target, _MS_BIND)

    in_own_thread(make, "netns")


def remove(name: str) -> None:
    """Removes the name; the kernel destroys the namespace when no process or socket uses it any more."""
    target = path(name).encode()
    while _libc.umount2(target, _MNT_DETACH) == 0:
        continue  # once per mount, as mounts can be stacked
    Path(path(name)).unlink(missing_ok=True)


def inside(where: str, function: Callable[[], Result]) -> Result:
    """Runs `function` in a thread inside the namespace at path `where`; returns its result or raises its error."""

    def run() -> Result:
        try:
            descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            what = f"the network namespace {where} could not be opened"
            raise Failed(Code.FAILED, what, str(error.strerror), "wherry doctor") from None
        try:
            _check(_libc.setns(descriptor, _CLONE_NEWNET), "setns", where)
        finally:
            os.close(descriptor)
        return function()

    return in_own_thread(run, "netns")


def processes(name: str) -> list[int]:
    """Processes inside the namespace."""
    try:
        wanted = os.stat(path(name)).st_ino
    except FileNotFoundError:
        return []
    return [pid for pid in _pids() if _inode(pid) == wanted]


def kill(which: list[str], timeout: float = 60.0) -> None:
    """Kills every process inside these namespaces and waits until they are gone, or fails with TIMED_OUT."""
    inodes = {os.stat(path(name)).st_ino for name in which if exists(name)}
    deadline = time.monotonic() + timeout
    while inodes:
        left = [pid for pid in _pids() if pid != os.getpid() and _inode(pid) in inodes]
        if not left:
            return
        if time.monotonic() > deadline:
            raise Failed(Code.TIMED_OUT, "processes in network namespaces outlived SIGKILL", f"process ids {left}")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _inode(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it has ended: a zombie has no namespace
        return 0


def _share_directory() -> None:
    # As `ip netns` does: with shared propagation an unmount reaches copies of the mount in other mount namespaces.
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    where = str(DIRECTORY)
    if _libc.mount(b"", where.encode(), b"none", _MS_SHARED | _MS_REC, None) != 0:
        if ctypes.get_errno() != errno.EINVAL:
            _check(-1, "mount --make-shared", where)
        _mount(where, where, _MS_BIND | _MS_REC)
        _mount("", where, _MS_SHARED | _MS_REC)


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(source.encode(), target.encode(), b"none", flags, None), "mount", target)


def _check(result: int, call: str, target: str) -> None:
    if result != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Failed(Code.FAILED, f"{call} of {target} failed", reason, "run as root: sudo wherry doctor")
