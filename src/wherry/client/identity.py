"""The user on whose behalf a command runs (the one behind sudo), and the environment of its ranks.

The daemon accepts this from root alone; of any other client it takes the credentials of the socket.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.base.paths import REMOTE, SECRET_VARIABLES
from wherry.base.users import user_name

if TYPE_CHECKING:
    from wherry.model.owner import Owner

ELSEWHERE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""Variables of a program that is started over the network: this machine's mean nothing there, and may hold secrets."""


def owner(cwd: Path | None = None) -> Owner:
    """This process's user, or under sudo the user who called it, in `cwd` or the working directory.

    FileNotFoundError when the working directory is needed and is gone.
    """
    uid, gid = os.getuid(), os.getgid()
    sudo_uid, sudo_gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid == 0 and sudo_uid.isdecimal() and sudo_gid.isdecimal():
        uid, gid = int(sudo_uid), int(sudo_gid)
    return _owner(uid, gid, cwd)


def process_owner(cwd: Path | None = None) -> Owner:
    """This process's own user, whoever called sudo: what is measured runs as the same user natively and on nodes."""
    return _owner(os.getuid(), os.getgid(), cwd)


def _owner(uid: int, gid: int, cwd: Path | None) -> Owner:
    from wherry.model.owner import Owner  # here: what only reads needs no model

    directory = str(cwd or os.getcwd())
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid=uid, gid=gid, home="/", cwd=directory)
    groups = tuple(os.getgrouplist(entry.pw_name, gid))
    return Owner(uid=uid, gid=gid, groups=groups, home=entry.pw_dir, cwd=directory)


def environment(who: Owner) -> dict[str, str]:
    """This process's variables, with HOME, USER and LOGNAME of `who`; without those of sudo, those that may hold a
    password of ours or the token for another daemon, and those that are not UTF-8."""
    left = {name for name in os.environ if name.startswith("SUDO_") or name in (*REMOTE, *SECRET_VARIABLES)}
    kept = {name: value for name, value in os.environ.items() if name not in left and _is_text(value)}
    if who.uid != os.getuid():
        name = user_name(who.uid)
        kept |= {"HOME": who.home, "USER": name, "LOGNAME": name}
    return kept


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
