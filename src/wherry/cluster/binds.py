"""Which of a user's directories the nodes of a cluster see writable.

Invariants: what is bound is a directory that its user may enter, asked of the kernel with the user's rights, as its
name comes from the user and the daemon is root; and no name on the way to it can be given another meaning by the user
later. So the highest directory in which the user could do that is bound instead: `/scratch` (mode 1777) for
`/scratch/me/run`. Binding more gives no rights: inside the node file modes count as they do outside.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from posixpath import normpath

from wherry.fabric.protocol import Fabric
from wherry.model.objects import Host
from wherry.model.owner import Owner
from wherry.node.as_user import as_user, is_closed

_PRIVATE = ("/", "/dev", "/dev/shm", "/run", "/tmp")
"""Every node has its own; the host's is never bound over it, though a directory below /tmp or /run may be."""
_PRIVATE_BELOW = ("/tmp/", "/run/")
"""There the way to a bound directory is the node's own and root's, whoever owns it on the host."""
_NEVER = ("/dev/", "/proc", "/sys", "/run/wherry")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def binds_of(fabric: Fabric, hosts: list[Host], owner: Owner) -> tuple[str, ...]:
    """Home and working directory as far as the owner may enter them; those inside another are left out."""
    wanted = set()
    for given in (owner.home, owner.cwd):
        if not given.startswith("/") or "\0" in given or "\n" in given or is_closed(given, owner):
            continue
        path = _lasting(as_user(owner, partial(os.path.realpath, given)), owner)
        private = path in _PRIVATE or path.startswith(_NEVER)
        if not private and any(not fabric.missing_files(host.name, [path]) for host in hosts):
            wanted.add(path)
    return tuple(path for path in sorted(wanted) if not any(path.startswith(f"{other}/") for other in wanted))


def _lasting(path: str, owner: Owner) -> str:
    """The directory itself, or the first one above it whose entries somebody else than root may rename."""
    path = normpath(path)
    if owner.uid == 0 or path.startswith(_PRIVATE_BELOW):
        return path
    above, names = "/", [name for name in path.split("/") if name]
    for name in names:
        below = os.path.join(above, name)
        try:
            changeable = _changeable(os.lstat(above), os.lstat(below))
        except OSError:
            return path  # it is not there: nothing will be bound
        if changeable and not os.path.ismount(below):
            return above
        above = below
    return path


def _changeable(directory: os.stat_result, entry: os.stat_result) -> bool:
    """True when somebody else than root may rename or remove the entry (rename(2), EPERM: the sticky bit)."""
    kept = directory.st_mode & stat.S_ISVTX and entry.st_uid == 0
    return directory.st_uid != 0 or bool(directory.st_mode & _OTHERS_WRITE and not kept)
