"""Names of this machine's users."""

from __future__ import annotations

import pwd


def user_name(uid: int) -> str:
    """The user's name, or its number where the user database has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
