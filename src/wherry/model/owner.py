"""The user to whom a cluster belongs, and as whom its ranks run."""

from __future__ import annotations

from wherry.model.records import Record


class Owner(Record):
    """A user, from the peer credentials of the socket. `home` and `cwd` are the directories that nodes may mount."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str
    cwd: str
