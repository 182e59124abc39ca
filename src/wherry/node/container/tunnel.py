"""A connection of a move between two machines, encrypted for programs that are unaware of it (`wherry-tls`).

    program == pair of sockets == wherry-tls == TCP: TLS 1.3 by a key of the offer == wherry-tls == … == program

Programs read and write the end of a pair of sockets; rates, round trips and bytes are those of the TCP connection
behind it (`wire_of`). Invariant: `wherry-tls` ends when the connection does, or when both ends are closed; each byte
that was given to it before is on its way then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Iterator

from wherry.base.paths import native_program
from wherry.node.container.deaths import how_to_say
from wherry.node.container.priority import NICE

log = logging.getLogger("wherry.wire")
_UNTRUSTED = 4
"""Exit code; see native/tls/main.c."""


class Tunnel(socket.socket):
    """The end for programs; `wire` is the connection."""

    def __init__(self, wire: socket.socket, key: bytes, accepts: bool, compressed: bool = False) -> None:
        """Takes over `wire`. Each end has the same `key`; the connecting end may compress. A fault of the other end is
        found by using this one."""
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        self.wire, self.compressed = wire, compressed
        self._said = self._problem = ""
        try:
            with theirs, readable(key) as keys:
                ends = [wire.fileno(), theirs.fileno(), *keys]
                words = [str(native_program("wherry-tls")), "accept" if accepts else "connect", *map(str, ends)]
                self._process = subprocess.Popen(
                    [*words, *(["--compress"] if compressed else [])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=ends,
                    process_group=0,  # not ended by a terminal's Ctrl-C
                )
        except BaseException:
            self.close()
            raise
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        self._end = threading.Thread(target=self._await, daemon=True, name="wherry-tls")
        self._end.start()

    def shutdown(self, how: int, /) -> None:
        """As a socket's; in both directions, nothing that this end was given counts any more."""
        if how == socket.SHUT_RDWR:
            with contextlib.suppress(OSError):  # it is lost already
                self.wire.shutdown(how)
        super().shutdown(how)

    def close(self) -> None:
        """Closes this process's end. A program that has it uses it on."""
        super().close()
        self.wire.close()

    def why(self) -> str:
        """Once it has ended of itself: the fault."""
        self._end.join(1.0)
        return self._said

    def problem(self) -> str:
        """Why received data is untrusted, or none comes any more; empty while it comes, and after a good end."""
        return self._problem

    def _await(self) -> None:
        assert self._process.stderr
        with self._process.stderr as stream:
            said = stream.read().decode(errors="replace").strip()
        code = self._process.wait()
        if said:
            self._said = said.rpartition("wherry-tls: ")[2]
            log.info("%s", said)
        if code == _UNTRUSTED:
            self._problem = f"on the network between the hosts: {self._said}"
        elif code < 0:
            self._problem = f"the program that encrypts a connection {how_to_say(code)}"


def wire_of(end: socket.socket) -> socket.socket:
    """The TCP connection that carries the data of `end`."""
    return end.wire if isinstance(end, Tunnel) else end


@contextlib.contextmanager
def readable(key: bytes) -> Iterator[tuple[int, ...]]:
    """A descriptor from which the key is read; none without a key."""
    if not key:
        yield ()
        return
    reader, writer = os.pipe()
    try:
        os.write(writer, key)
        os.close(writer)
        yield (reader,)
    finally:
        os.close(reader)
