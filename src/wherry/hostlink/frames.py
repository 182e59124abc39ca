"""Frames on the stream between the daemon and the agent of a host: four bytes of length, then one JSON object.

Pure. Invariant: whatever arrives, `feed` returns objects or raises Malformed, and keeps at most one frame.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

LARGEST = 16 << 20
"""Bytes of the largest frame: the frozen state of a node with ten thousand open files has about a tenth of it."""
_LENGTH = struct.Struct("!I")


class Malformed(ValueError):
    """The other side sent something that it may not send."""


def pack(message: Mapping[str, Any]) -> bytes:
    """The frame of a message. Malformed when it is too large, or nothing that JSON has."""
    try:
        text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"it cannot be sent: {error}") from None
    if len(text) > LARGEST:
        raise Malformed(f"it has {len(text)} bytes, and a frame at most {LARGEST}")
    return _LENGTH.pack(len(text)) + text


class Splitter:
    """Splits a stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with `data`. Malformed ends the stream."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LARGEST:
                raise Malformed(f"a frame of {length} bytes was announced, and {LARGEST} are the most")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_parsed(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text.decode("ascii"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a frame is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise Malformed("a frame is no JSON object")
    return message


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
