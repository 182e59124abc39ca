"""Which of a user's directories the nodes of a cluster see writable.

Invariants: what is bound is a directory that its user may enter, asked of the kernel with the user's rights, as its
name comes from the user and the daemon is root; and no name on the way to it can be given another meaning by the user
later. So the highest directory in which the user could do that is bound instead: `/scratch` (mode 1777) for
`/scratch/me/run`. Binding more gives no rights: inside the node file modes count as they do outside.
"""

from __future__ import annotations

import os
from functools import partial

from wherry.fabric.protocol import Fabric
from wherry.model.objects import Host
from wherry.model.owner import Owner
from wherry.node.as_user import as_user, is_closed
from wherry.node.trusted_path import trusted_path

_PRIVATE = ("/", "/dev", "/dev/shm", "/run", "/tmp")
"""Every node has its own; the host's is never bound over it, though a directory below /tmp or /run may be."""
_NEVER = ("/dev/", "/proc", "/sys", "/run/wherry")


def binds_of(fabric: Fabric, hosts: list[Host], owner: Owner) -> tuple[str, ...]:
    """Home and working directory as far as the owner may enter them; those inside another are left out."""
    wanted = set()
    for given in (owner.home, owner.cwd):
        if not given.startswith("/") or "\0" in given or "\n" in given or is_closed(given, owner):
            continue
        try:
            path = trusted_path(as_user(owner, partial(os.path.realpath, given)), owner)
        except OSError:  # it is not there, or somebody is just changing what its name means
            continue
        private = path in _PRIVATE or path.startswith(_NEVER)
        if not private and any(not fabric.missing_files(host.name, [path]) for host in hosts):
            wanted.add(path)
    return tuple(path for path in sorted(wanted) if not any(path.startswith(f"{other}/") for other in wanted))
