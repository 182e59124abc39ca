"""A socket that systemd made, at which it listens while no daemon runs (sd_listen_fds(3)).

Invariant: the variables are for this process alone, so they are removed from its environment when they are read, and
the descriptor is passed to no program.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code, Refused

_FIRST = 3
"""The number of the first descriptor that systemd passes."""
_LISTENS = 0x10000
"""In the flags of /proc/net/unix: the socket takes connections (__SO_ACCEPTCON)."""


def inherited(path: Path) -> socket.socket | None:
    """The listening socket that this process was started with; None when it has none. USAGE when it is not the one of
    `path`."""
    meant = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not meant:
        return None
    if count != "1":
        raise _refused(path, f"it was given {count or 'no'} sockets")
    try:
        found = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise _refused(path, f"descriptor {_FIRST} is none of a socket: {error}") from None
    found.set_inheritable(False)
    kind, listens = (found.family, found.type), found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if kind != (socket.AF_UNIX, socket.SOCK_STREAM) or not listens or found.getsockname() != str(path):
        raise _refused(path, f"it was given {found.getsockname() or 'a socket without a name'}")
    return found


def _refused(path: Path, why: str) -> Refused:
    return Refused(Code.USAGE, f"wherryd serves {path} alone", why, f"ListenStream={path} in the socket unit")


def turn_away(listener: socket.socket) -> None:
    """Closes the connections that wait at the socket of a daemon that ends, as systemd would start the next one for
    them: a client that still runs connects again, and a client that has ended does not."""
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


def say_ready() -> None:
    """Tells systemd that the daemon answers (sd_notify(3)), when systemd waits for that."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.connect("\0" + address[1:] if address.startswith("@") else address)
            told.send(b"READY=1")


def is_activated(pid: int) -> bool:
    """Whether a process was started with a socket of systemd's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"LISTEN_PID={pid}".encode() in variables


def listens(path: Path) -> bool:
    """Whether any process listens at a Unix socket of this path. It connects to none: that might start a daemon."""
    for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[7] == str(path) and int(words[3], 16) & _LISTENS:
            return True
    return False
