"""Accesses files with a user's rights while the daemon is root.

Invariant: only a thread created for the call has these rights (the file-system user of credentials(7), which is per
thread), and it ends with the call. It has no CAP_DAC_OVERRIDE, so the kernel itself checks modes, access lists and
symbolic links at that moment.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import TypeVar

from wherry.base.errors import Code, Failed, Refused
from wherry.base.own_thread import in_own_thread
from wherry.model.owner import Owner

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The system call by number: the C library's function changes all threads of the process."""


def as_user(owner: Owner, act: Callable[[], T]) -> T:
    """`act()` with the owner's rights on files. Without root's rights, or for root, simply `act()`."""
    if os.geteuid() != 0 or owner.uid == 0:
        return act()

    def run() -> T:
        _become(owner)
        return act()

    return in_own_thread(run, "as-user")


def is_closed(path: str | os.PathLike[str], owner: Owner) -> bool:
    """True when the owner may not enter the directory; False when it does not exist."""
    try:
        as_user(owner, lambda: os.stat(os.path.join(path, ".")))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _become(owner: Owner) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        why = f"its system calls are not known ({platform.machine()})"
        raise Refused(Code.UNSUPPORTED, "this machine cannot act as another user", why, "run it as root")
    groups = (ctypes.c_uint * len(owner.groups))(*owner.groups)
    if _libc.syscall(number, len(owner.groups), groups):
        raise Failed(Code.FAILED, f"cannot take the groups of uid {owner.uid}", os.strerror(ctypes.get_errno()))
    for change, id in ((_libc.setfsgid, owner.gid), (_libc.setfsuid, owner.uid)):
        change(ctypes.c_uint(id))
        # It reports no error, but the next call returns the current value.
        if change(ctypes.c_uint(2**32 - 1)) & 0xFFFFFFFF != id:
            raise Failed(Code.FAILED, f"cannot act as uid {owner.uid}, gid {owner.gid}", "the kernel refused")
