"""Writes what guests say on their console at a real host into files of this machine.

It is done by libvirt's thread of events: a thread that waited for a guest's next word would hold up for seconds all
else that is asked on the same connection. Invariant: a node has one stream at most, of the host where it was last
followed; it ends with the guest, or with the connection. What is said while nobody follows is kept by the host, as far
as its buffer reaches.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wherry.node.vm import libvirt_client

_PART = 65536
_NOTHING_YET = -2
"""What a stream that does not wait gives when there is nothing to read."""


class Consoles:
    """The streams of one driver; `file` tells where a node's console is kept."""

    def __init__(self, file: Callable[[str], Path]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[str, Any, Any]] = {}
        """By node: the host, the connection and the stream."""
        self._opening: set[str] = set()

    def follow(self, node: str, host: str, domain: Any) -> None:
        """Writes down what the node says from now on, unless it is written down already."""
        with self._lock:  # not while the host is asked, which may be silent: `_heard` of other nodes wants it
            where, connection, old = self._streams.get(node, ("", None, None))
            if node in self._opening or (where == host and connection.isAlive()):
                return
            self._opening.add(node)
        try:
            self._file(node).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._open(node, host, domain) and old is not None:
                _end(old)
        finally:
            with self._lock:
                self._opening.discard(node)

    def _open(self, node: str, host: str, domain: Any) -> bool:
        """False when it is going, or its host lets nobody see it: the node is no worse for it."""
        libvirt, stream = libvirt_client.load(), None
        try:
            connection = domain.connect()
            stream = connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
            domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
            with self._lock:
                self._streams[node] = host, connection, stream
            ends = libvirt.VIR_STREAM_EVENT_ERROR | libvirt.VIR_STREAM_EVENT_HANGUP
            stream.eventAddCallback(libvirt.VIR_STREAM_EVENT_READABLE | ends, self._heard, node)
        except libvirt.libvirtError:
            self._drop(node, stream)
            return False
        return True

    def _drop(self, node: str, stream: Any) -> None:
        with self._lock:
            if stream is not None and self._streams.get(node, ("", None, None))[2] is stream:
                del self._streams[node]

    def _heard(self, stream: Any, _events: int, node: str) -> None:
        libvirt = libvirt_client.load()
        try:
            part = stream.recv(_PART)
        except libvirt.libvirtError:  # the guest or the connection has ended
            part = b""
        if part:
            if part != _NOTHING_YET:
                with contextlib.suppress(OSError), open(self._file(node), "ab") as out:  # the instance is just removed
                    out.write(part)
            return
        _end(stream)
        self._drop(node, stream)


def put_aside(file: Path) -> None:
    """The node of this console starts anew: what it said until then, a panic perhaps, is kept until the next time."""
    with contextlib.suppress(FileNotFoundError):
        file.replace(_aside(file))


def both(file: Path) -> list[Path]:
    """What was put aside, and the console itself; as far as they are there."""
    return [path for path in (_aside(file), file) if path.exists()]


def remove(file: Path) -> None:
    """The node is no more."""
    for path in both(file):
        path.unlink(missing_ok=True)


def _aside(file: Path) -> Path:
    return file.with_suffix(f".1{file.suffix}")


def _end(stream: Any) -> None:
    """Nothing is read from it any more. The host is told beside, as it may not answer for long."""
    libvirt = libvirt_client.load()
    with contextlib.suppress(libvirt.libvirtError):
        stream.eventRemoveCallback()

    def abort() -> None:
        with contextlib.suppress(libvirt.libvirtError):
            stream.abort()

    threading.Thread(target=abort, name="console-end", daemon=True).start()
