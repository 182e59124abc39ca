"""A receiver of the pager's streams (native/pager/stream.h) that keeps the last contents of every page."""

from __future__ import annotations

import socket
import struct
import threading
from typing import BinaryIO

from stream_codec import HEADER, PAGE, TAG, Seal, crc32c, packed, unpacked, unpacked_pages

import waiting

__all__ = ["HEADER", "PAGE", "ZERO", "Receiver", "crc32c", "packed", "unpacked"]
ZERO = bytes(PAGE)


class Receiver:
    """The destination: the last contents of every page, and whether the frames keep to the rules."""

    def __init__(self, sockets: list[socket.socket], key: bytes = b"") -> None:
        self._seals = [Seal(key, number) for number in range(len(sockets))] if key else []
        self._answers_seal = Seal(key, 0, to_source=True) if key else None
        self.compressed = self.received = 0
        """Frames that were; bytes of all."""
        self.pages: dict[int, dict[int, bytes]] = {}
        self.order: list[tuple[int, int]] = []
        """Process and page of all that came."""
        self.wrong: list[str] = []
        self.stopped, self.answers = False, True
        self.awaited: set[tuple[int, int]] = set()
        """With post-copy: process and page of memory that is still at the source."""
        self.came: list[tuple[int, int]] = []
        """Such pages, in the order in which they came."""
        self._late = False
        self._sockets, self._lock = sockets, threading.Lock()
        self._seen: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        self._ends: dict[tuple[int, int], int] = {}
        self._answers = 0
        self._threads = [
            threading.Thread(target=self._serve, args=[number], daemon=True) for number in range(len(sockets))
        ]
        for thread in self._threads:
            thread.start()

    def say(self, kind: str, pid: int = 0, address: int = 0) -> None:
        """A request for a page (Q), or the end (F)."""
        with self._lock:
            self._say(kind, pid, address, int(kind == "Q"))

    def _say(self, kind: str, pid: int, address: int, pages: int) -> None:
        frame = packed(kind, pid, address, pages, 0, 0, self._answers)
        self._sockets[0].sendall(self._answers_seal.frame(frame, b"") if self._answers_seal else frame)
        self._answers += 1

    def close(self) -> None:
        self.stopped = True
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_RDWR)

    def await_end(self, kind: str, number: int) -> None:
        """Returns when a round has ended on all connections."""
        waiting.until(lambda: self._ends.get((ord(kind), number), 0) >= len(self._sockets), f"{kind} {number}")

    def reset(self, number: int) -> None:
        """Ends a connection at once, whatever is still to come."""
        self.stopped = True
        self._sockets[number].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sockets[number].shutdown(socket.SHUT_RD)
        self._threads[number].join(waiting.bound())
        self._sockets[number].close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(waiting.bound())

    def _serve(self, number: int) -> None:
        stream, sequence = self._sockets[number].makefile("rb"), 0
        try:
            while frame := self._frame(stream, self._seals[number] if self._seals else None):
                header, payload = frame
                kind, pid, address, pages, length, crc, count = unpacked(header)
                self._check(crc == (crc32c(payload) if length else 0), f"the checksum of {header!r}")
                self._check(count == sequence, f"sequence {count}, not {sequence}")
                sequence += 1
                with self._lock:
                    self._take(kind, pid, address, pages, payload)
        except (OSError, ValueError, AssertionError) as error:
            self._check(self.stopped, f"connection {number}: {error}")

    def _frame(self, stream: BinaryIO, seal: Seal | None) -> tuple[bytes, bytes] | None:
        """The next header and payload, as they were before they were sealed."""
        size = HEADER.size + (TAG if seal else 0)
        if len(header := stream.read(size)) < size:
            return None
        if not seal:
            return header, stream.read(unpacked(header)[4])
        header = seal.header(header)
        length = unpacked(header)[4]
        return header, seal.payload(stream.read(TAG), stream.read(length)) if length else b""

    def _check(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    def _take(self, kind: str, pid: int, address: int, pages: int, payload: bytes) -> None:
        if kind in "RLP":
            self._end(kind, address)
        elif kind == "M":
            bits = int.from_bytes(b"".join(payload[at : at + 8][::-1] for at in range(0, 64, 8)), "little")
            self.awaited |= {(pid, address + at * PAGE) for at in range(pages) if bits >> at & 1}
        elif kind == "X":
            self._ended.add(pid)
            self.pages.pop(pid, None)
        else:
            self._check(kind in "DCZ", f"a frame {kind}")
            self.received += len(payload)
            if kind == "C":
                self.compressed += 1
                payload = unpacked_pages(payload, pages)
            self._check(pid not in self._ended, f"{pid} after its end")
            contents = self.pages.setdefault(pid, {})
            for at in range(pages):
                page = address + at * PAGE
                self._check((pid, page) not in self._seen, f"{pid}: page {page:x} twice")
                self._seen.add((pid, page))
                self.order.append((pid, page))
                if self._late:
                    self._check((pid, page) in self.awaited, f"{pid}: page {page:x} was not to come")
                    self.awaited.discard((pid, page))
                    self.came.append((pid, page))
                if kind in "DC":
                    contents[page] = payload[at * PAGE : (at + 1) * PAGE]
                else:
                    contents.pop(page, None)

    def _end(self, kind: str, number: int) -> None:
        key = (ord(kind), number)
        self._ends[key] = self._ends.get(key, 0) + 1
        if self._ends[key] == len(self._sockets) and self.answers:
            self._seen.clear()
            self._ended.clear()
            self._late = kind == "P"
            self._say("A", 0, number, 0)
