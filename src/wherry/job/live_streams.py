"""The streams of a program whose output nobody keeps: frames in a pipe, which wherry-launch fills with `--stream`.

The format: native/launch/job_files.h. Invariant: the program waits while the pipe is full, and is ended when nobody
reads it any more.
"""

from __future__ import annotations

from wherry.job.holder_files import FRAME_LIMIT, HEADER, STREAMS

Output = tuple[str, bytes]
"""Stream (`stdout` or `stderr`) and bytes."""


class OutputFrames:
    """Takes frames apart, from pieces of any length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[Output]:
        """The output of the frames that are whole with this piece. ValueError when it is no frame."""
        self._rest += piece
        found: list[Output] = []
        at = 0
        while len(self._rest) - at >= HEADER.size:
            stream, _, length = HEADER.unpack_from(self._rest, at)
            if stream not in STREAMS or length > FRAME_LIMIT:
                raise ValueError("no frame of output begins here")
            end = at + HEADER.size + length
            if len(self._rest) < end:
                break
            found.append((STREAMS[stream], bytes(self._rest[at + HEADER.size : end])))
            at = end
        del self._rest[:at]
        return found
