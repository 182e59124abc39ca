"""Paths that no unprivileged user can redirect: only root can change any component.

Invariant: a path is checked from the root downwards; only root can change a component that was passed, so the result
for the next one remains true.
"""

from __future__ import annotations

import errno
import os
import stat
from posixpath import normpath

from wherry.model.owner import Owner

_PRIVATE_BELOW = ("/tmp/", "/run/")
"""Below these, a node has directories of its own, owned by root, above the user's bound directory."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40
"""As the kernel follows (path_resolution(7))."""


def trusted_path(path: str, owner: Owner) -> str:
    """`path`, or its first parent in which others than root may rename entries. Root's own paths are trusted. OSError
    when it does not exist or contains a link."""
    path = normpath(path)
    if owner.uid == 0 or path.startswith(_PRIVATE_BELOW):
        return path
    return _kept(path)


def is_trusted(path: str) -> bool:
    """True for a path that only root can change."""
    try:
        return _kept(path) == path
    except OSError:
        return False


def resolved(path: str) -> str:
    """An absolute path without its links, each of which, as every other component on the way, only root can change.
    PermissionError with the component that others can change; OSError when it does not exist."""
    here, names, links = "/", path.split("/"), 0
    while names:
        name = names.pop(0)
        if name in ("", ".", ".."):  # `..` of a link's target: the path above was checked on the way here
            here = os.path.dirname(here) if name == ".." else here
            continue
        below = os.path.join(here, name)
        entry = os.lstat(below)
        is_link = stat.S_ISLNK(entry.st_mode)
        if entry.st_uid != 0 or entry.st_mode & _OTHERS_WRITE and not is_link:  # modes of links mean nothing
            raise PermissionError(errno.EPERM, "others than root can change it", below)
        if not is_link:
            here = below
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(below)
        here, names = "/" if target.startswith("/") else here, [*target.split("/"), *names]
    return here


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
    """True when others than root may rename or remove the entry (rename(2), EPERM: the sticky bit)."""
    kept = directory.st_mode & stat.S_ISVTX and entry.st_uid == 0
    return directory.st_uid != 0 or bool(directory.st_mode & _OTHERS_WRITE and not kept)
