"""Client of `wherry-init`, the first process of a node: ping it, run a short program there.

The protocol is described in native/include/wherry/wire.h. Invariant: a connection is made inside the network namespace
of the cluster's head, since a cluster's addresses mean nothing anywhere else; the calling thread never changes its own.
The answering machine may have been changed by its user: any answer, however slow, ends in time, in an AgentError.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from wherry.job import sealed_frames
from wherry.model.owner import Owner
from wherry.model.records import CONTROL_PORT
from wherry.node.netns_socket import in_netns

_FRAME_LIMIT = 4 << 20  # bytes in the largest frame
_HELLO_LIMIT = 512  # bytes in one of the frames before the session
_PART = 64 << 10  # bytes of input in one frame: the agent keeps whole frames
_OUTPUT_LIMIT = 16 << 20  # bytes that a program may write: it is the node's user's, and its output is kept here
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_CHECK_SECONDS = 0.1  # between two looks whether the caller was cancelled
_RETRY_SECONDS = 0.1  # while a node's first process does not listen yet


class Readable(Protocol):
    """Data that is read in parts."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class AgentError(Exception):
    """The node did not answer, or refused. The text is the reason."""


@dataclass(frozen=True)
class Ended:
    """How a program on a node ended: exit code (128 + signal) and output."""

    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class AgentEndpoint:
    """Where a node's first process listens, seen from the namespace `netns`. `key` is 64 hex digits."""

    netns: str
    address: str
    key: str = field(repr=False)
    port: int = CONTROL_PORT

    def ping(self, seconds: float) -> int:
        """The number of the init's children. Tries until `seconds` are over; then AgentError with the last reason."""
        end, reason = time.monotonic() + seconds, ""
        while (left := end - time.monotonic()) > 0:
            try:
                with self._connected(left) as talk:
                    talk.send(b"P", b"")
                    return _number(talk.expect(b"P"))
            except AgentError as error:
                reason = str(error)
                time.sleep(min(_RETRY_SECONDS, max(0.0, end - time.monotonic())))
        raise AgentError(reason or f"no answer within {seconds:.0f} s")

    def kill_job(self, id: str, seconds: float) -> int:
        """Kills the processes of the node's user that belong to a job; how many there were. AgentError."""
        with self._connected(seconds) as talk:
            talk.send(b"J", id.encode())
            return _number(talk.expect(b"P"))

    def run(
        self,
        argv: Sequence[str],
        who: Owner,
        env: dict[str, str],
        seconds: float,
        data: Readable | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Ended:
        """Runs a program to its end; `data` is its standard input, which is empty without it.

        AgentError when it cannot be run, or not to its end within so many seconds. Its output while it still reads must
        be little. `check` is called several times a second; an exception that it raises ends the session, and with it
        the program.
        """
        user = [str(who.uid), str(who.gid), ",".join(map(str, who.groups)), who.cwd]
        request = [*user, "", str(len(argv)), *argv]  # it inherits from the agent
        request += [f"{name}={value}" for name, value in env.items()]
        streams = {b"O": bytearray(), b"E": bytearray()}
        with self._connected(seconds, check) as talk:
            talk.send(b"R", b"".join(part.encode(errors="surrogateescape") + b"\0" for part in request))
            talk.expect(b"S")
            while part := data.read(_PART) if data else b"":
                talk.send(b"I", part)
            talk.send(b"I", b"")
            while True:
                kind, payload = talk.receive()
                if kind == b"X":
                    how, _, number = payload.decode(errors="replace").partition(" ")
                    code = _number(number) + (128 if how == "signal" else 0)
                    return Ended(code, bytes(streams[b"O"]), bytes(streams[b"E"]))
                if kind in streams:
                    streams[kind] += payload
                if sum(map(len, streams.values())) > _OUTPUT_LIMIT:
                    raise AgentError(f"{argv[0]} wrote more than {_OUTPUT_LIMIT >> 20} MiB")

    @contextmanager
    def _connected(self, seconds: float, check: Callable[[], None] = lambda: None) -> Iterator[_Session]:
        try:
            with in_netns(self.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as connection:
                talk = _Session(connection, time.monotonic() + seconds, check)
                talk.open(self.address, self.port)
                talk.prove(self.key)
                yield talk
        except TimeoutError:
            raise AgentError(f"no answer within {seconds:.0f} s") from None
        except OSError as error:
            raise AgentError(error.strerror or str(error)) from None
        except sealed_frames.Untrusted as error:
            raise AgentError(str(error)) from None


class _Session:
    """A connection whose every word comes before one deadline (of time.monotonic); else TimeoutError. `check` is called
    at least every _CHECK_SECONDS."""

    def __init__(self, connection: socket.socket, deadline: float, check: Callable[[], None]) -> None:
        self._connection, self._deadline, self._check = connection, deadline, check
        self._session: sealed_frames.Session | None = None

    def open(self, address: str, port: int) -> None:
        self._connection.setblocking(False)
        if self._connection.connect_ex((address, port)):
            self._await(select.POLLOUT)
            if number := self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number))

    def prove(self, key: str) -> None:
        """The handshake: from its end on every frame is sealed."""
        session = sealed_frames.answer(key, self._wanted(b"C"))
        self.send(b"H", session.answer)
        session.require(self._wanted(b"A"))
        self._session = session

    def send(self, kind: bytes, payload: bytes) -> None:
        session = self._session
        frame = (
            session.to_agent.close(kind, payload)
            if session
            else sealed_frames.HEADER.pack(kind, len(payload)) + payload
        )
        left = memoryview(frame)
        while left:
            self._await(select.POLLOUT)
            left = left[self._connection.send(left) :]

    def receive(self) -> tuple[bytes, bytes]:
        header = self._exactly(sealed_frames.HEADER.size)
        kind, length = sealed_frames.HEADER.unpack(header)
        if length > (_FRAME_LIMIT if self._session else _HELLO_LIMIT):
            raise AgentError(f"it sent a frame of {length} bytes")
        if self._session is None:
            return kind, self._exactly(length)
        return kind, self._session.to_client.open(header, self._exactly(length + sealed_frames.TAG))

    def expect(self, wanted: bytes) -> str:
        return self._wanted(wanted).decode(errors="replace")

    def _wanted(self, wanted: bytes) -> bytes:
        kind, payload = self.receive()
        if kind != wanted:
            raise AgentError(payload.decode(errors="replace") or f"it answered {kind!r}")
        return payload

    def _exactly(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            self._await(select.POLLIN)
            part = self._connection.recv(count - len(got))
            if not part:
                raise AgentError("it closed the connection")
            got += part
        return bytes(got)

    def _await(self, event: int) -> None:
        """Returns when the connection is ready for the event, or has failed."""
        poller = select.poll()
        poller.register(self._connection, event)
        while True:
            self._check()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if poller.poll(min(left, _CHECK_SECONDS) * 1000):
                return


def _number(text: str) -> int:
    """The number that the agent sent, or AgentError."""
    if not _NUMBER.fullmatch(text):
        raise AgentError(f"it sent {text[:40]!r} instead of a number")
    return int(text)
