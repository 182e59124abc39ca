"""The user's directories that the nodes of a cluster mount writable, from their start or since a job needed them.

Invariants: the user may enter a bound directory, as checked with the user's rights, since the user chooses its name and
the daemon is root; and the user cannot re-point any component of its path later (TOCTOU). So the highest directory in
which the user could is bound instead: `/scratch` (mode 1777) for `/scratch/me/run`. Binding more gives no rights, as
file modes hold inside the node, too.
"""

from __future__ import annotations

import os
from functools import partial

from wherry.base.errors import Code, Refused
from wherry.fabric.protocol import Fabric
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Host
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


def is_bound(path: str, binds: tuple[str, ...]) -> bool:
    """True when the path is in a bound directory, or is one."""
    return any(path == bind or path.startswith(f"{bind}/") for bind in binds)


def require_bindable(directory: str, cluster: Cluster, closed: tuple[str, ...] = ()) -> None:
    """Refused when the directory cannot be bound into the running nodes of its owner's cluster. To be called with the
    owner's rights; `closed` are Wherry's own directories.

    It is below /tmp, where nodes have a directory of their own to mount it in and all else of theirs is visible.
    """
    what, elsewhere = f"{directory} cannot be bound into the nodes of {cluster.name}", "move it to another directory"
    again = f"wherry down {cluster.name}, then wherry up FILE from {directory}"
    if not directory.startswith("/tmp/") or not _is_text(directory):
        raise Refused(Code.UNSUPPORTED, what, "only directories below /tmp can be, while nodes run", elsewhere)
    if os.path.realpath(directory) != directory:
        why = f"its path has a link; it leads to {os.path.realpath(directory)}"
        raise Refused(Code.UNSUPPORTED, what, why, f"cd to {os.path.realpath(directory)}, then repeat the command")
    for path in closed:
        if is_bound(directory, (path,)) or is_bound(path, (directory,)):
            raise Refused(Code.UNSUPPORTED, what, f"{path} is Wherry's own", elsewhere)
    for bind in cluster.binds:
        if is_bound(bind, (directory,)):
            raise Refused(Code.UNSUPPORTED, what, f"it would hide {bind}, which is bound already", again)
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        why = f"uid {cluster.owner_uid} may not read it: {error.strerror}"
        raise Refused(Code.PERMISSION, what, why, f"ls -ld {directory}") from None


def _is_text(path: str) -> bool:
    """True when a record, and one line of the node's configuration, can carry the path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in path
