"""The state of pseudo-terminals that a dump cannot carry; the rest is carried (native/preload/criu_terminals.c)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import termios

MASTERS = ("/dev/ptmx", "/dev/pts/ptmx")
"""Paths of a master in /proc/PID/fd."""
_GET_PACKET_MODE, _GET_LOCKED = 0x80045438, 0x5456
"""TIOCGPKT and TIOCGLCKTRMIOS, asm-generic/ioctls.h."""
SETTINGS = 36
"""Bytes of the kernel's struct termios."""


def obstacle(master: int) -> str:
    """The state of the terminal of this master that a move would lose; empty when there is none."""
    if any(fcntl.ioctl(master, _GET_LOCKED, bytes(SETTINGS))):
        return "a terminal whose settings are locked (TIOCSLCKTRMIOS)"
    return "a terminal of whose change of state its program has not read (TIOCPKT)" if has_changed(master) else ""


def masters(pid: int) -> list[int]:
    """The descriptors of a process that are masters. OSError when it has ended."""
    found = list[int]()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{name}") in MASTERS:
                found.append(int(name))
    return found


def is_in_packet_mode(master: int) -> bool:
    """True when its reader gets a byte about changes of state, too."""
    return fcntl.ioctl(master, _GET_PACKET_MODE, bytes(4)) != bytes(4)


def has_changed(master: int) -> bool:
    """True when its reader has not read yet, in packet mode, that the state of the terminal has changed."""
    if not is_in_packet_mode(master):
        return False
    look = select.poll()
    look.register(master, select.POLLPRI)
    return any(event & select.POLLPRI for _, event in look.poll(0))


def input_obstacle() -> str:
    """Why input that was typed cannot be put back into a terminal of this machine; empty when it can."""
    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPERM):
            raise
        return "its kernel lets nobody put its input back (sysctl -w dev.tty.legacy_tiocsti=1 does)"
    finally:
        os.close(slave)
        os.close(master)
    return ""
