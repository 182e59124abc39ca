"""What nodes can see of this machine's files: its root read-only, the user's directories, nothing of /tmp, /run, /dev.

Invariant: a path handed to a launcher is one that the job's user can open on a node too.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.model.objects import Cluster
from wherry.model.owner import Owner

_PRIVATE = (Path("/tmp"), Path("/run"), Path("/dev"))
"""Of these a node has its own."""
_SPLITS = re.compile(r"[\s:]")


def require_visible(path: Path, what: str, cluster: Cluster) -> None:
    """Refused when the nodes of the cluster do not see `path`."""
    for private in _PRIVATE:
        if path.is_relative_to(private) and not any(path.is_relative_to(bind) for bind in cluster.binds):
            # A directory below /tmp or /run can be bound into nodes; these themselves and what is below /dev never are.
            bindable = path.parent != private and private != Path("/dev")
            raise Refused(
                Code.UNSUPPORTED,
                f"the nodes of {cluster.name} do not see {what} {path}",
                f"a node's {private} is its own; of yours it sees {', '.join(cluster.binds) or 'nothing'}",
                f"put it elsewhere, or wherry down {cluster.name} and wherry up from {path.parent}"
                if bindable
                else f"put it into a directory that is not below {private}",
            )


def require_enterable(directory: Path, owner: Owner) -> None:
    """Refused when a job cannot be run in the directory; call it with the owner's rights."""
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

    Launchers and LD_PRELOAD split what they are given at blanks and colons, so a path that has some is not used either.
    A copy is named by its content and never changed, so running jobs keep theirs when Wherry is built anew.
    """
    source = source.resolve()
    hidden = any(source.is_relative_to(private) for private in _PRIVATE)
    if not hidden and not _SPLITS.search(str(source)) and (owner.uid == 0 or _open_to_all(source)):
        return source
    content = source.read_bytes()
    copy = store / hashlib.sha256(content).hexdigest()[:12] / source.name
    if not copy.exists():
        for directory in (store, copy.parent):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        fresh = copy.with_name(f".{source.name}.{os.getpid()}")
        fresh.write_bytes(content)
        fresh.chmod(0o755)
        fresh.rename(copy)
    return copy


def _open_to_all(path: Path) -> bool:
    directories: Iterable[Path] = path.parents
    return bool(path.stat().st_mode & stat.S_IROTH) and all(d.stat().st_mode & stat.S_IXOTH for d in directories)
