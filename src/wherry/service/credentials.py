"""Credentials of the client, read from the kernel (SO_PEERCRED, unix(7)), never from the request."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol

from wherry.base.errors import Code, Refused
from wherry.base.users import user_name
from wherry.base.version import __version__
from wherry.model.owner import Owner
from wherry.service.problem import problem

_SO_PEERGROUPS = getattr(socket, "SO_PEERGROUPS", 59)
_GROUPS_BYTES = 1024
"""The largest result of Python's getsockopt: 256 groups."""
CONNECTIONS, CONNECTIONS_OF_USERS, CONNECTIONS_OF_ONE = 512, 384, 128
"""Most open connections: of all peers, of all users other than root, and of one such user."""


@dataclass(frozen=True)
class PeerCredentials:
    """The credentials that the client's process had when it connected."""

    uid: int
    gid: int
    groups: frozenset[int]

    def is_authorised(self, group: int | None) -> bool:
        """True for root, the daemon's own user, and members of `group`."""
        return self.uid in (0, os.geteuid()) or (group is not None and group in self.groups | {self.gid})

    @property
    def who(self) -> str:
        """The user's name, for records and messages."""
        return user_name(self.uid)

    @property
    def seen_uids(self) -> frozenset[int] | None:
        """The uids whose clusters and all that belongs to them it may look at; None: everybody's."""
        return None

    def sees(self, *uids: int | None) -> bool:
        """True when it may look at things of one of these users."""
        return self.seen_uids is None or not self.seen_uids.isdisjoint(uids)

    def owner(self, named: Owner | None, cwd: str = "/") -> Owner:
        """The user whose rights a command has: the peer, or the one root named. PERMISSION when another peer
        names one other than itself."""
        if named and (self.uid == 0 or named.uid == self.uid):
            return named if self.uid == 0 else owner_of(self.uid, self.gid, named.cwd)
        if named:
            what = f"user {self.uid} may not act as user {named.uid}"
            raise Refused(Code.PERMISSION, what, "only root may name another user", "use sudo")
        return owner_of(self.uid, self.gid, cwd)

    def require(self, uid: int, what: str) -> None:
        """PERMISSION unless the peer is user `uid`, root, or the daemon's own user. `what` names things of `uid`."""
        if self.uid not in (0, os.geteuid(), uid):
            whose = "root's" if uid == 0 else f"uid {uid}'s"
            raise Refused(Code.PERMISSION, f"{what} is not yours", f"it is {whose}, you are uid {self.uid}", "use sudo")


def owner_of(uid: int, gid: int, cwd: str) -> Owner:
    """The user with its home and groups of this machine's user database."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid=uid, gid=gid, home="/", cwd=cwd)
    groups = tuple(os.getgrouplist(entry.pw_name, gid))
    return Owner(uid=uid, gid=gid, groups=groups, home=entry.pw_dir, cwd=cwd)


def group_id(name: str) -> int:
    """The number of a group. NOT_FOUND."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        what = f"there is no group {name!r}"
        raise Refused(Code.NOT_FOUND, what, "", f"groupadd {name}, or start wherryd without --group") from None


def peer_of(connection: socket.socket) -> PeerCredentials:
    """The peer of a connected Unix socket."""
    _, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit: those of the user database instead
        return PeerCredentials(uid, gid, frozenset(owner_of(uid, gid, "/").groups))
    return PeerCredentials(uid, gid, frozenset(struct.unpack(f"{len(raw) // 4}I", raw)))


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol; the state of every request has the connection's `peer`.

    Connections are bounded: each is a descriptor of the daemon, of which it may have only 1024 where root cannot have
    more, and needs some for each node that moves and each job. Users other than root cannot keep root out, nor one of
    them all others.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reads the credentials once, when the connection is made. One too many is answered at once and closed."""
        peer = peer_of(transport.get_extra_info("socket"))
        if refused := _too_many(peer.uid, [connection.app_state["peer"].uid for connection in self.connections]):
            body = json.dumps(problem(refused))
            head = f"HTTP/1.1 {refused.code.http_status} Refused\r\nContent-Type: application/problem+json\r\n"
            head += f"Wherry-Version: {__version__}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            transport.write((head + body).encode())
            transport.close()
            return
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer": peer}

    def data_received(self, data: bytes) -> None:
        """Ignores the request on a connection that was refused."""
        if self in self.connections:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Does nothing for a connection that was refused."""
        if self in self.connections:
            super().connection_lost(exc)


def _too_many(uid: int, open: Sequence[int]) -> Refused | None:
    """The error for one more connection of a user, given the users of the open connections; None if it may be made."""
    others = [owner for owner in open if owner != 0]
    why = ""
    if len(open) >= CONNECTIONS or (uid != 0 and len(others) >= CONNECTIONS_OF_USERS):
        why = f"{len(open)} connections are open"
    elif uid != 0 and others.count(uid) >= CONNECTIONS_OF_ONE:
        why = f"user {uid} has {CONNECTIONS_OF_ONE} open"
    if not why:
        return None
    what = "the daemon takes no more connections now"
    return Refused(Code.WRONG_STATE, what, why, "end some clients, or repeat the command in a moment")
