"""Who asks, as the service is told: the user behind sudo, and what the ranks shall see of it.

The service believes it only from root; anybody else is who the socket says.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from wherry.model.owner import Owner


def owner(cwd: Path | None = None) -> Owner:
    """This process's user, or the one who called sudo, in `cwd` or the working directory.

    FileNotFoundError when the working directory is needed and is gone.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and os.environ.get("SUDO_UID", "").isdigit():
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ.get("SUDO_GID", "0"))
    return _owner(uid, gid, cwd)


def process_owner(cwd: Path | None = None) -> Owner:
    """This process's own user, whoever called sudo: what is measured runs as the same user natively and on nodes."""
    return _owner(os.getuid(), os.getgid(), cwd)


def _owner(uid: int, gid: int, cwd: Path | None) -> Owner:
    directory = str(cwd or os.getcwd())
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid=uid, gid=gid, home="/", cwd=directory)
    groups = tuple(os.getgrouplist(entry.pw_name, gid))
    return Owner(uid=uid, gid=gid, groups=groups, home=entry.pw_dir, cwd=directory)


def environment(who: Owner) -> dict[str, str]:
    """This process's variables as `who` has them; those of sudo left out, and those that are no text."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_") and _is_text(value)}
    if who.uid != os.getuid():
        name = pwd.getpwuid(who.uid).pw_name
        kept |= {"HOME": who.home, "USER": name, "LOGNAME": name}
    return kept


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
