"""Copies the consoles of guests on real hosts into files of this machine.

Streams are read by callbacks in libvirt's event thread: a blocking read would delay all other calls on the same
connection for seconds. Invariant: a node has at most one stream, to the host where it was last followed; it ends with
the guest or the connection. Output that is written while no stream is open is kept by the host, up to its buffer size.
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
"""Returned by a non-blocking stream when no data is available."""


class Consoles:
    """The console streams of one driver; `file` gives the path of a node's console log."""

    def __init__(self, file: Callable[[str], Path]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[str, Any, Any]] = {}
        """Host, connection and stream by node."""
        self._opening: set[str] = set()

    def follow(self, node: str, host: str, domain: Any) -> None:
        """Appends the node's console output to its log from now on, unless that is done already."""
        with self._lock:  # not held while the host is contacted: callbacks of other nodes need it
            where, connection, old = self._streams.get(node, ("", None, None))
            if node in self._opening or (where == host and libvirt_client.is_alive(connection)):
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
        """False when the domain is ending or its host offers no console, which does not affect the node."""
        libvirt, stream = libvirt_client.load(), None
        try:
            connection = domain.connect()
            stream = connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
            domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
            with self._lock:
                self._streams[node] = host, connection, stream
            ends = libvirt.VIR_STREAM_EVENT_ERROR | libvirt.VIR_STREAM_EVENT_HANGUP
            stream.eventAddCallback(libvirt.VIR_STREAM_EVENT_READABLE | ends, self._readable, node)
        except libvirt.libvirtError:
            self._drop(node, stream)
            return False
        return True

    def _drop(self, node: str, stream: Any) -> None:
        with self._lock:
            if stream is not None and self._streams.get(node, ("", None, None))[2] is stream:
                del self._streams[node]

    def _readable(self, stream: Any, _events: int, node: str) -> None:
        libvirt = libvirt_client.load()
        try:
            part = stream.recv(_PART)
        except libvirt.libvirtError:  # the guest or the connection has ended
            part = b""
        if part:
            if part != _NOTHING_YET:
                with contextlib.suppress(OSError), open(self._file(node), "ab") as out:  # the instance is being removed
                    out.write(part)
            return
        _end(stream)
        self._drop(node, stream)


def put_aside(file: Path) -> None:
    """Rotates the console log before a node starts: the previous one, which may show a panic, is kept."""
    with contextlib.suppress(FileNotFoundError):
        file.replace(_aside(file))


def both(file: Path) -> list[Path]:
    """The previous and the current console log, if they exist."""
    return [path for path in (_aside(file), file) if path.exists()]


def remove(file: Path) -> None:
    """Removes the console logs of a removed node."""
    for path in both(file):
        path.unlink(missing_ok=True)


def _aside(file: Path) -> Path:
    return file.with_suffix(f".1{file.suffix}")


def _end(stream: Any) -> None:
    """Stops reading a stream. It is aborted in a thread, as its host may be slow to answer."""
    libvirt = libvirt_client.load()
    with contextlib.suppress(libvirt.libvirtError):
        stream.eventRemoveCallback()

    def abort() -> None:
        with contextlib.suppress(libvirt.libvirtError):
            stream.abort()

    threading.Thread(target=abort, name="console-end", daemon=True).start()
