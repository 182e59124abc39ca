"""The user's directories that the nodes of a cluster mount writable.

Invariants: the user may enter a bound directory, as checked with the user's rights, since the user chooses its name and
the daemon is root; and the user cannot re-point any component of its path later (TOCTOU). So the highest directory in
which the user could is bound instead: `/scratch` (mode 1777) for `/scratch/me/run`. Binding more gives no rights, as
file modes hold inside the node, too.
"""

from __future__ import annotations

import os
from functools import partial

from wherry.fabric.protocol import Fabric
from wherry.model.owner import Owner
from wherry.model.records import Host
from wherry.node.as_user import as_user, is_closed
from wherry.node.trusted_path import trusted_path

_PRIVATE = ("/", "/dev", "/dev/shm", "/run", "/tmp")
"""Every node has its own of these. The host's is never bound over it; a directory below /tmp or /run may be."""
_NEVER = ("/dev/", "/proc", "/sys", "/run/wherry")


def binds_of(fabric: Fabric, hosts: list[Host], owner: Owner) -> tuple[str, ...]:
    """Home and working directory, if the owner may enter them; one inside the other is left out."""
    wanted = set()
    for given in (owner.home, owner.cwd):
        if not given.startswith("/") or "\0" in given or "\n" in given or is_closed(given, owner):
            continue
        try:
            path = trusted_path(as_user(owner, partial(os.path.realpath, given)), owner)
        except OSError:  # it does not exist, or its path is being changed
            continue
        if not _is_text(path):  # a link may lead to any name
            continue
        private = path in _PRIVATE or path.startswith(_NEVER)
        if not private and any(not fabric.missing_files(host.name, [path]) for host in hosts):
            wanted.add(path)
    return tuple(path for path in sorted(wanted) if not any(path.startswith(f"{other}/") for other in wanted))


def _is_text(path: str) -> bool:
    """True when a record, and one line of the node's configuration, can carry the path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in path
