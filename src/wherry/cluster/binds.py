"""The user's directories that the nodes of a cluster mount writable, from their start or since a job needed them.

Invariants: the user may enter a bound directory, as checked with the user's rights, since the user chooses its name and
the daemon is root; and the user cannot re-point any component of its path later (TOCTOU). So the highest directory in
which the user could is bound instead: `/scratch` (mode 1777) for `/scratch/me/run`. Binding more gives no rights, as
file modes hold inside the node, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from functools import partial

from wherry.base.errors import Code, Refused
from wherry.fabric.protocol import Fabric
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Host
from wherry.node.as_user import as_user, is_closed
from wherry.node.container.mounts import mounted
from wherry.node.trusted_path import trusted_path

_PRIVATE = ("/", "/dev", "/dev/shm", "/run", "/tmp")
"""Every node has its own of these. The host's is never bound over it; a directory below /tmp or /run may be."""
_NEVER = ("/dev/", "/proc", "/sys", "/run/wherry")
_SYSTEM = ("/", "/var")
"""Not bound into running nodes, in contrast to their contents; nor are these and their contents:"""
_SYSTEM_TREES = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
_OF_USERS = ("/usr/local/", "/usr/src/")
_PSEUDO = frozenset(
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fuse.lxcfs fusectl hugetlbfs"
    " mqueue nsfs proc pstore ramfs rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
"""File systems without files of users (autofs: file systems mounted in it have them)."""
_BETWEEN = re.compile(r"[\s:;,=]+")
_PATH_MAX = 4096


def binds_of(fabric: Fabric, hosts: list[Host], owner: Owner, named: Collection[str] = ()) -> tuple[str, ...]:
    """Home and working directory, if the owner may enter them, and the `named` directories; one inside another is left
    out."""
    wanted = set(named)
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


def named_directories(directories: Collection[str], owner: Owner) -> tuple[str, ...]:
    """The bound paths for the `directories` of a cluster file. Refused when the owner may not enter one, or it cannot
    be bound."""
    found = []
    for given in directories:
        what, remedy = f"{given} cannot be bound into nodes", "change `directories` in the file"
        try:
            real = as_user(owner, partial(os.path.realpath, given, strict=True))
            as_user(owner, lambda real=real: os.stat(os.path.join(real, ".")))  # type: ignore[misc]
            path = trusted_path(real, owner)
        except OSError as error:
            code = Code.PERMISSION if isinstance(error, PermissionError) else Code.NOT_FOUND
            raise Refused(code, what, f"uid {owner.uid}: {error.strerror or error}", remedy) from None
        if _is_systems(path) or not _is_text(path):
            raise Refused(Code.UNSUPPORTED, what, "it is the system's, or each node has its own", remedy)
        found.append(path)
    return tuple(dict.fromkeys(found))


def is_bound(path: str, binds: tuple[str, ...]) -> bool:
    """True when the path is in a bound directory, or is one."""
    return any(path == bind or path.startswith(f"{bind}/") for bind in binds)


def require_bindable(directory: str, cluster: Cluster, closed: tuple[str, ...] = ()) -> None:
    """Refused when the directory cannot be bound into the running nodes of its owner's cluster. To be called with the
    owner's rights; `closed` are Wherry's own directories."""
    what, elsewhere = f"{directory} cannot be bound into the nodes of {cluster.name}", "move it to another directory"
    again = f"wherry down {cluster.name}, then wherry up FILE from {directory}"
    if _is_systems(directory) or not _is_text(directory):
        raise Refused(Code.UNSUPPORTED, what, "it is the system's, or each node has its own", elsewhere)
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


def writable_directory(here: str, cluster: Cluster, owner: Owner, closed: tuple[str, ...]) -> tuple[str, str]:
    """The directory that is to be bound so that `here`, which the nodes see read-only, is writable there; empty when
    there is none, with the reason if the owner may write. To be called with the owner's rights."""
    if is_bound(here, cluster.binds):
        return "", ""
    try:
        directory = trusted_path(os.path.realpath(here), owner)
        require_bindable(directory, cluster, closed)
    except (OSError, Refused) as error:
        why = error.why if isinstance(error, Refused) else error.strerror or str(error)
        may_write = os.access(here, os.W_OK, effective_ids=True)  # those of this thread
        return "", why if may_write else ""
    return directory, ""


def mounts_named(texts: Iterable[str], cluster: Cluster, owner: Owner, closed: tuple[str, ...]) -> tuple[str, ...]:
    """The mount points of this machine on the way to files that the texts name: paths, also several of one text, with
    the usual separators. Mount points that nodes of the cluster never show are left out. To be called with the owner's
    rights.
    """
    points = [p for p, kind, _ in mounted() if kind not in _PSEUDO and p != "/" and not p.startswith("/tmp/")]
    if not points:
        return ()
    named = {path for text in texts for path in _BETWEEN.split(text) if path.startswith("/") and len(path) < _PATH_MAX}
    found = []
    for point in dict.fromkeys(points):
        if not any(path == point or path.startswith(f"{point}/") for path in named) or is_bound(point, cluster.binds):
            continue
        try:
            if trusted_path(point, owner) == point:
                require_bindable(point, cluster, closed)
                found.append(point)
        except (OSError, Refused):
            continue
    return tuple(found)


def _is_systems(path: str) -> bool:
    """True for directories that are not bound into running nodes."""
    if path in _PRIVATE or path in _SYSTEM or path.startswith(_NEVER) or path.startswith(("/dev", "/run")):
        return True
    return is_bound(path, _SYSTEM_TREES) and not path.startswith(_OF_USERS)


def _is_text(path: str) -> bool:
    """True when a record, and one line of the node's configuration, can carry the path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\n" not in path
