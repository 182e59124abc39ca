"""The user's terminal, while a program on a node has one.

Keys go to the program as they are, Ctrl-C among them: its own terminal makes a signal of it. They are sent in the
frames of native/terminal/frames.h, with the size of the terminal whenever that changes.
Invariant: the terminal's modes are as before when the block ends, however it ends.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_KEYS = 4096
"""Bytes of keys that are sent at once, for pasted text."""
_SIZE_UNKNOWN = (24, 80)


def size() -> tuple[int, int]:
    """Rows and columns."""
    try:
        found = os.get_terminal_size(0)
    except OSError:
        return _SIZE_UNKNOWN
    return (found.lines, found.columns) if found.lines and found.columns else _SIZE_UNKNOWN


@contextmanager
def raw() -> Iterator[Callable[[], bytes]]:
    """Yields a reader of the terminal's next frame, b"" at its end. Keys are not interpreted in the block."""
    before = termios.tcgetattr(0)
    resized, resize = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def note(_number: int, _frame: FrameType | None) -> None:
        os.write(resize, b"w")

    handler = signal.signal(signal.SIGWINCH, note)
    tty.setraw(0)
    try:
        yield lambda: _next_frame(resized)
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _next_frame(resized: int) -> bytes:
    ready, _, _ = select.select([0, resized], [], [])
    if resized in ready:
        os.read(resized, _KEYS)
        return b"W" + struct.pack(">HHH", 4, *size())
    try:
        keys = os.read(0, _KEYS)
    except OSError:  # the terminal is gone
        return b""
    return b"D" + struct.pack(">H", len(keys)) + keys if keys else b""
