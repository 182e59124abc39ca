"""The transport of a container's move: connections between its two hosts, what is sent over them, and their bounds.

Each thing that is sent (memory pages, the tree of private files, CRIU's images) has a connection and a receiving
program of its own; together they keep to the move's rate. Invariant: after `close` no connection and no receiver of
this process is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container import progress_bounds
from wherry.node.container.progress_bounds import Bound, Sign, never_cancelled
from wherry.node.container.streams import RateLimit, Stream
from wherry.node.container.warm_connections import BACK, WarmConnections
from wherry.node.protocol import Placement

PASS_CONNECTIONS = ("pages", "images", BACK)
"""Connections that each round, and the transfer, uses once."""
_RECEIVERS = (b"\0page-server\0", b"\0--extract\0")
"""Arguments by which the receiving programs are found."""


class MoveTransport:
    """The transport of one move."""

    def __init__(self, fabric: Fabric, source: Placement, destination: Placement) -> None:
        self._fabric = fabric
        self._source, self._destination = source, destination
        self.rate_limit = RateLimit(None)
        self.streams: dict[str, Stream] = {}
        self._connections: WarmConnections | None = None
        self.cancelled: Callable[[], object] = never_cancelled
        """Raises once the current step is cancelled."""

    def set_rate(self, rate: float | None) -> None:
        """The most that the move may send, in bit/s (None: no limit). Called before the first `connect`."""
        self.rate_limit = RateLimit(rate)

    @property
    def is_open(self) -> bool:
        """True from the first `connect` until `close`: false for a new mover after a crash."""
        return self._connections is not None

    def connect(self, *names: str) -> None:
        """Begins to open and warm these connections."""
        if self._connections is None:
            self._connections = WarmConnections(self._fabric, self._source.host, self._destination.host)
        self._connections.begin(names, self.rate_limit)

    def connection(self, name: str) -> tuple[socket.socket, socket.socket]:
        """The two ends of a connection that was begun, the sending one first."""
        if self._connections is None:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {name} was not prepared", "", "report this")
        return self._connections.take(name)

    def open(self, what: str, receiver: Sequence[str], stdin: bool = False) -> None:
        """Starts the receiver of `what` at the destination."""
        self.streams[what] = Stream(what, self.connection(what), receiver, stdin)

    def send(self, what: str, directory: Path) -> None:
        """Sends a directory tree."""
        stream = self.streams[what]
        with self.rate_limit.sending(stream):
            stream.send_tree(directory, lambda *signs: self.bound_to_send(f"the {what}", stream, *signs))

    def finish(self, what: str, frozen: bool = True) -> int:
        """Waits until everything of `what` has arrived; bytes that were sent. After a failure `close` ends the
        receiver."""
        stream = self.streams[what]
        sent = stream.finish(lambda *signs: self.bound_to_send(f"the {what}", stream, *signs, frozen=frozen))
        del self.streams[what]
        return sent

    def bound(self, what: str, *signs: Sign) -> Bound:
        """The bound of a step on one host while the node is frozen."""
        whole = progress_bounds.total(self._source.node.memory)
        return Bound(what, progress_bounds.STALL, whole, *signs, cancelled=self.cancelled)

    def bound_to_send(
        self,
        what: str,
        stream: Stream,
        *signs: Sign,
        frozen: bool = True,
        cancelled: Callable[[], object] | None = None,
    ) -> Bound:
        """The bound of a step that sends to the other host."""
        stall = progress_bounds.stall_sending(self.rate_limit.rate, stream.round_trip())
        if not frozen:
            stall = progress_bounds.while_it_runs(stall)
        whole = progress_bounds.total(self._source.node.memory, self.rate_limit.rate)
        return Bound(what, stall, whole, *signs, cancelled=cancelled or self.cancelled)

    def close(self) -> None:
        """Closes connections and ends receivers. Idempotent."""
        for stream in self.streams.values():
            stream.close()
        self.streams = {}
        if self._connections is not None:
            self._connections.close()
            self._connections = None


def end_receivers(directory: Path) -> None:
    """Kills receivers that a killed daemon left, so that CRIU fails now, and not when everything has been sent."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if f"{directory}/".encode() in words and any(word in words for word in _RECEIVERS):
                os.kill(int(entry.name), signal.SIGKILL)
