"""State that a program leaves unread for a moment, and that no dump can carry: an object of which only a message has a
descriptor, and a change of a terminal in packet mode (`movable`).

A node is looked at before a move, but may get into such a state in any round. So shortly before the freeze its sockets
and terminals are listed; in it only those sockets are looked at that have something to read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from wherry.node.container import terminals
from wherry.node.container.movable import message_obstacle, process_name
from wherry.node.container.timers import borrowed

_SOCKET = re.compile(r"socket:\[(\d+)\]")


class UnreadState:
    """The unread state of a node. `own`: a directory on each of its own file systems."""

    def __init__(self, own: Iterable[Path]) -> None:
        self._own = tuple(own)
        self._sockets: dict[int, tuple[int, int]] = {}
        """A process and a descriptor of each socket, by inode."""
        self._elsewhere = set[int]()
        """Inodes of sockets that no process of the node holds, but a message or another process."""
        self._masters: list[tuple[int, int]] = []
        """Of the terminals in packet mode."""

    def learn(self, pids: Sequence[int]) -> None:
        """Finds the sockets and terminals of these processes."""
        self._sockets, self._masters, self._elsewhere = {}, [], set()
        for pid in pids:
            with contextlib.suppress(OSError):  # it ended
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):  # it was closed
                        self._add(pid, int(name), os.readlink(f"/proc/{pid}/fd/{name}"))

    def _add(self, pid: int, number: int, target: str) -> None:
        if match := _SOCKET.match(target):
            self._sockets[int(match[1])] = pid, number
        elif target in terminals.MASTERS:
            with borrowed(pid, number) as master:
                if terminals.is_in_packet_mode(master):
                    self._masters.append((pid, number))

    def obstacle(self, pids: Sequence[int], unread: frozenset[int]) -> str:
        """The state of the frozen node that a dump could not carry; empty when there is none. `unread`: the inodes of
        its Unix sockets with something to read."""
        for pid, number in self._masters:
            with contextlib.suppress(OSError), borrowed(pid, number) as master:
                if why := terminals.obstacle(master):
                    return f"{process_name(pid)} has {why} (descriptor {number})"
        if not unread <= self._sockets.keys() | self._elsewhere:
            self.learn(pids)  # there are new ones
            self._elsewhere = set(unread - self._sockets.keys())
        for inode in unread & self._sockets.keys():
            pid, number = self._sockets[inode]
            if why := message_obstacle(pid, number, pids, self._own, everything=True):
                return f"{process_name(pid)} {why}"
        return ""
