"""Who asked: the user that a cluster belongs to and that its ranks run as."""

from __future__ import annotations

from wherry.model.objects import Record


class Owner(Record):
    """A user as the socket's credentials tell it. `home` and `cwd` are what the nodes see of the user's files."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str
    cwd: str
