"""The user on whose behalf a command runs (the one behind sudo), and the environment of its ranks.

The daemon accepts this from root alone; of any other client it takes the credentials of the socket.
"""

from __future__ import annotations

import os
import pwd
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.base import bytes_text
from wherry.base.errors import Code, Refused
from wherry.base.paths import REMOTE, SECRET_VARIABLES
from wherry.base.users import user_name

if TYPE_CHECKING:
    from wherry.model.owner import Owner

_LIMITS = ("as", "core", "cpu", "data", "fsize", "memlock", "nofile", "stack")
"""`wherry.model.inherited.LimitName`."""
ELSEWHERE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""Variables of a program that is started over the network: this machine's mean nothing there, and may hold secrets."""


def owner(cwd: Path | None = None) -> Owner:
    """This process's user, or under sudo the user who called it, in `cwd` or the working directory.

    Refused when the working directory is needed and is gone, or cannot be named in a request.
    """
    uid, gid = os.getuid(), os.getgid()
    sudo_uid, sudo_gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid == 0 and sudo_uid.isdecimal() and sudo_gid.isdecimal():
        uid, gid = int(sudo_uid), int(sudo_gid)
    return _owner(uid, gid, cwd)


def process_owner(cwd: Path | None = None) -> Owner:
    """This process's own user, not the caller of sudo: measurements run as the same user natively and on nodes."""
    return _owner(os.getuid(), os.getgid(), cwd)


def _owner(uid: int, gid: int, cwd: Path | None) -> Owner:
    from wherry.model.owner import Owner  # here: a reader needs no model

    directory = str(cwd or _directory())
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid=uid, gid=gid, home="/", cwd=directory)
    groups = tuple(os.getgrouplist(entry.pw_name, gid))
    return Owner(uid=uid, gid=gid, groups=groups, home=entry.pw_dir, cwd=directory)


def _directory() -> str:
    """Refused when the working directory is gone, or has a name that cannot be sent."""
    try:
        found = os.getcwd()
    except FileNotFoundError:
        what, why = "the working directory is not there", "it was removed, or its file system was unmounted"
        raise Refused(Code.NOT_FOUND, what, why, "cd to another directory") from None
    if not bytes_text.is_text(found):
        raise Refused(
            Code.USAGE, f"jobs cannot be run in {found!r}", "its name is not UTF-8", "cd to another directory"
        )
    return found


def hand_over(*paths: Path) -> None:
    """Gives files that root wrote to the user who called sudo."""
    user = owner(Path("/"))
    if user.uid != os.getuid():
        for path in paths:
            os.chown(path, user.uid, user.gid, follow_symlinks=False)


def environment(who: Owner) -> dict[str, str]:
    """This process's variables, with HOME, USER and LOGNAME of `who`; without variables of sudo, and variables that
    may hold a password of ours or the token for another daemon."""
    left = {name for name in os.environ if name.startswith("SUDO_") or name in (*REMOTE, *SECRET_VARIABLES)}
    kept = {name: value for name, value in os.environ.items() if name not in left}
    if who.uid != os.getuid():
        name = user_name(who.uid)
        kept |= {"HOME": who.home, "USER": name, "LOGNAME": name}
    return kept


def inherited() -> dict[str, Any]:
    """Other properties that programs inherit from this process, as `wherry.model.inherited.Inherited`."""
    umask = os.umask(0o77)  # there is no other way to ask; nothing is made meanwhile
    os.umask(umask)
    limits = {name: _limit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in _LIMITS}
    return {"umask": umask & 0o777, "nice": os.getpriority(os.PRIO_PROCESS, 0), "limits": limits}


def _limit(kind: int) -> list[int | None]:
    return [None if amount == resource.RLIM_INFINITY else amount for amount in resource.getrlimit(kind)]
