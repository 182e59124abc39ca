"""Writes what guests say on their console at a real host into files of this machine.

Invariant: a node has one follower at most, of the host where it was last followed; a follower ends with the guest, or
with the connection. What is said while nobody follows is kept by the host, as far as its buffer reaches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wherry.node.vm import virt

_PART = 65536


class Consoles:
    """The followers of one driver; `file` tells where a node's console is kept."""

    def __init__(self, file: Callable[[str], Path]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._followers: dict[str, tuple[str, threading.Thread]] = {}

    def follow(self, node: str, host: str, domain: Any) -> None:
        """Writes down what the node says from now on, unless it is written down already."""
        libvirt = virt.load()
        with self._lock:
            where, thread = self._followers.get(node, ("", None))
            if where == host and thread is not None and thread.is_alive():
                return
            stream = domain.connect().newStream(0)
            try:
                domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
            except libvirt.libvirtError:  # it is going, or its host lets nobody see it: the node is no worse for it
                return
            thread = threading.Thread(target=self._write, args=(node, stream), name=f"console-{node}", daemon=True)
            self._followers[node] = host, thread
            thread.start()

    def _write(self, node: str, stream: Any) -> None:
        libvirt, file = virt.load(), self._file(node)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            while part := stream.recv(_PART):
                with open(file, "ab") as out:
                    out.write(part)
            stream.finish()
        except libvirt.libvirtError:  # the guest or the connection has ended
            return
