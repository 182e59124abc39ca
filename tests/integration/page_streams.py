"""A receiver of the pager's streams (native/pager/stream.h) that keeps the last contents of every page."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import struct
import threading

HEADER = struct.Struct(">IIQIIII")
PAGE = 4096
ZERO = bytes(PAGE)


def crc32c(contents: bytes) -> int:
    library = ctypes.CDLL(ctypes.util.find_library("isal"))
    library.crc32_iscsi.restype = ctypes.c_uint32
    return int(library.crc32_iscsi(contents, len(contents), ctypes.c_uint32(0xFFFFFFFF))) ^ 0xFFFFFFFF


class Receiver:
    """The destination: the last contents of every page, and whether the frames keep to the rules."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.pages: dict[int, dict[int, bytes]] = {}
        self.wrong: list[str] = []
        self.stopped = False
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

    def close(self) -> None:
        self.stopped = True
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)

    def _serve(self, number: int) -> None:
        stream, sequence = self._sockets[number].makefile("rb"), 0
        try:
            while len(header := stream.read(HEADER.size)) == HEADER.size:
                kind, pid, address, pages, length, crc, count = HEADER.unpack(header)
                payload = stream.read(length)
                self._check(crc == (crc32c(payload) if length else 0), f"the checksum of {header!r}")
                self._check(count == sequence, f"sequence {count}, not {sequence}")
                sequence += 1
                with self._lock:
                    self._take(chr(kind), pid, address, pages, payload)
        except (OSError, ValueError) as error:
            self._check(self.stopped, f"connection {number}: {error}")

    def _check(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    def _take(self, kind: str, pid: int, address: int, pages: int, payload: bytes) -> None:
        if kind in "RL":
            self._end(kind, address)
        elif kind == "X":
            self._ended.add(pid)
            self.pages.pop(pid, None)
        else:
            self._check(kind in "DZ", f"a frame {kind}")
            self._check(pid not in self._ended, f"{pid} after its end")
            contents = self.pages.setdefault(pid, {})
            for at in range(pages):
                page = address + at * PAGE
                self._check((pid, page) not in self._seen, f"{pid}: page {page:x} twice")
                self._seen.add((pid, page))
                if kind == "D":
                    contents[page] = payload[at * PAGE : (at + 1) * PAGE]
                else:
                    contents.pop(page, None)

    def _end(self, kind: str, number: int) -> None:
        key = (ord(kind), number)
        self._ends[key] = self._ends.get(key, 0) + 1
        if self._ends[key] == len(self._sockets):
            self._seen.clear()
            self._ended.clear()
            self._sockets[0].sendall(HEADER.pack(ord("A"), 0, number, 0, 0, 0, self._answers))
            self._answers += 1
