"""The files of this machine that a container sees: the root read-only, the user's directories; not /tmp, /run and /dev.
A job's files below /tmp are bound first.

Invariant: every path passed to a launcher can be opened by the job's user on a node too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Refused
from wherry.cluster.binds import is_bound, require_bindable
from wherry.model.accounts import HIDDEN, is_account
from wherry.model.owner import Owner
from wherry.model.records import Cluster

_PRIVATE = (Path("/tmp"), Path("/run"), Path("/dev"))
"""Directories that are private to each node."""
_LINKS = 40
"""Most links that are followed from a program, as in the kernel (path_resolution(7))."""
_SPLITS = re.compile(r"[\s:]")


def make_visible(program: Path, here: Path, cluster: Cluster, closed: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The program's path on the nodes, and the directories to be bound so that they see it and the directory `here`.

    Refused when one cannot be; `closed` are Wherry's own. To be called with the owner's rights.
    """
    wanted = []
    if _hidden(program, cluster):
        program = Path(os.path.realpath(program.parent), program.name)
    at = program
    for _ in range(_LINKS):
        directory = Path(os.path.realpath(at.parent))
        wanted += [directory] if _needs_bind(directory / at.name, directory, "the program", cluster) else []
        if not at.is_symlink():
            break
        at = directory / os.readlink(at)
    wanted += [here] if _needs_bind(here, here, "the working directory", cluster) else []
    names = list(dict.fromkeys(map(str, wanted)))
    outermost = tuple(name for name in names if not any(is_bound(name, (other,)) for other in names if other != name))
    for name in outermost:
        require_bindable(name, cluster, closed)
    return program, outermost


def _private_to(uid: int) -> tuple[Path, ...]:
    """The directories of which nodes of this user's have their own."""
    return (*_PRIVATE, *map(Path, HIDDEN)) if is_account(uid) else _PRIVATE


def _hidden(path: Path, cluster: Cluster) -> bool:
    private = _private_to(cluster.owner_uid)
    return any(map(path.is_relative_to, private)) and not is_bound(str(path), cluster.binds)


def _needs_bind(path: Path, directory: Path, what: str, cluster: Cluster) -> bool:
    """True when nodes see the path once the directory is bound. Refused when that cannot be bound while they run."""
    if _hidden(path, cluster) and Path("/tmp") in directory.parents:
        return True
    require_visible(path, what, cluster)
    return False


def require_visible(path: Path, what: str, cluster: Cluster) -> None:
    """Refused when `path` is not visible on the cluster's nodes."""
    for private in _private_to(cluster.owner_uid):
        if path.is_relative_to(private) and not is_bound(str(path), cluster.binds):
            # A directory below /tmp or /run can be bound into nodes; these themselves and directories below /dev
            # cannot.
            seen = [bind for bind in cluster.binds if Path(bind).is_relative_to(private)]
            bindable = path.parent != private and private != Path("/dev") and not is_account(cluster.owner_uid)
            raise Refused(
                Code.UNSUPPORTED,
                f"the nodes of {cluster.name} do not see {what} {path}",
                f"each node has its own {private}; of your files there it sees {', '.join(seen) or 'none'}",
                f"move it elsewhere, or wherry down {cluster.name} and wherry up from {path.parent}"
                if bindable
                else f"move it to a directory that is not below {private}",
            )


def require_enterable(directory: Path, owner: Owner) -> None:
    """Refused when the owner may not enter the directory. To be called with the owner's rights."""
    try:
        os.stat(os.path.join(directory, "."))
    except PermissionError:
        what = f"the working directory {directory} is closed to you"
        why = f"uid {owner.uid} may not enter it, or a directory above it"
        raise Refused(Code.PERMISSION, what, why, "cd to a directory of yours, then repeat the command") from None
    except OSError as error:
        what, why = f"the working directory {directory} is not there", os.strerror(error.errno or 0)
        raise Refused(Code.NOT_FOUND, what, why, "cd to another directory, then repeat the command") from None


def world_readable(source: Path, owner: Owner, store: Path) -> Path:
    """A path at which nodes and the owner can read and run `source`: its own, or that of a copy below `store`.

    Launchers and LD_PRELOAD split their words at blanks and colons, so a path with one of them is copied, too.
    The copy's path contains a hash of its content and it is never changed: running jobs survive a new build of Wherry.
    The next daemon removes unused copies (`drop_unused`).
    """
    source = source.resolve()
    hidden = any(source.is_relative_to(private) for private in _private_to(owner.uid))
    if not hidden and not _SPLITS.search(str(source)) and (owner.uid == 0 or _open_to_all(source)):
        return source
    content = source.read_bytes()
    copy = store / hashlib.sha256(content).hexdigest()[:12] / source.name
    if not copy.exists():
        for directory in (store, copy.parent):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        write_atomically(copy, content, 0o755)
    return copy


def drop_unused(store: Path) -> list[str]:
    """Removes the copies below `store` of builds that no process on this machine was started from, has mapped, or has
    in its environment for its children; returns their names. For a moment in which no job is being started."""
    copies = [path for path in sorted(store.glob("*")) if path.is_dir()]
    used = _named_by_processes([os.fsencode(path.name) for path in copies]) if copies else set()
    unused = [path for path in copies if os.fsencode(path.name) not in used]
    for path in unused:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in unused]


def _named_by_processes(names: Collection[bytes]) -> set[bytes]:
    """These directories' names that are in a path of a process: in a node it is another one than here."""
    found = set[bytes]()
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("maps", "environ", "cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                text = (process / file).read_bytes()
                found.update(name for name in names if b"/" + name + b"/" in text)
    return found


def _open_to_all(path: Path) -> bool:
    directories: Iterable[Path] = path.parents
    return bool(path.stat().st_mode & stat.S_IROTH) and all(d.stat().st_mode & stat.S_IXOTH for d in directories)
