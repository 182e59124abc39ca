"""Names of directories that keep their meaning, whatever the users of this machine do.

Invariant: it is looked from the root downwards, so each name that is passed can only be changed by root, and what is
found of the next one stays true.
"""

from __future__ import annotations

import os
import stat
from posixpath import normpath

from wherry.model.owner import Owner

_PRIVATE_BELOW = ("/tmp/", "/run/")
"""There the way to a directory that a node is shown is the node's own and root's, whoever owns it on the host."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def trusted_path(path: str, owner: Owner) -> str:
    """The directory itself, or the first one above it whose entries somebody else than root may rename. Root's names
    are believed. OSError when it is not there, or is a link."""
    path = normpath(path)
    if owner.uid == 0 or path.startswith(_PRIVATE_BELOW):
        return path
    return _kept(path)


def is_trusted(path: str) -> bool:
    """True for a name that root alone can change."""
    try:
        return _kept(path) == path
    except OSError:
        return False


def _kept(path: str) -> str:
    above = "/"
    for name in path.split("/")[1:] if path != "/" else ():
        below = os.path.join(above, name)
        directory, entry = os.lstat(above), os.lstat(below)
        if _changeable(directory, entry):
            return above
        if stat.S_ISLNK(entry.st_mode):
            raise OSError(f"{below} has become a link")
        above = below
    return path


def _changeable(directory: os.stat_result, entry: os.stat_result) -> bool:
    """True when somebody else than root may rename or remove the entry (rename(2), EPERM: the sticky bit)."""
    kept = directory.st_mode & stat.S_ISVTX and entry.st_uid == 0
    return directory.st_uid != 0 or bool(directory.st_mode & _OTHERS_WRITE and not kept)
