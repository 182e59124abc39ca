"""The end of a node's console log, for errors and events; and of a log that has become long, all that is kept.

Invariant: the text for errors is short and printable. Root in the node can write anything, such as terminal control
sequences, and as much as it likes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LINES, _MAX_CHARACTERS, _PART = 3, 200, 16384
_PANIC = "Kernel panic"
LIMIT, _KEPT = 32 << 20, 1 << 20
"""Bytes of a log that is cut, and of its end that are kept then."""


def console_tail(console: Path) -> str:
    """The last lines as one, or only that of a kernel panic, which many lines follow; empty without output."""
    try:
        with open(console, "rb") as file:
            file.seek(max(0, console.stat().st_size - _PART))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    shown = ("".join(filter(str.isprintable, line)).strip()[:_MAX_CHARACTERS] for line in text.split("\n"))
    said = [line for line in shown if line]
    panic = [line for line in said if _PANIC in line]
    return panic[-1] if panic else " | ".join(said[-_LINES:])


def cut(console: Path) -> None:
    """Cuts a log that is longer than LIMIT: a line reports that, and its end follows. Its writer appends."""
    with contextlib.suppress(FileNotFoundError):
        if (size := console.stat().st_size) <= LIMIT:
            return
        with open(console, "rb") as file:
            file.seek(size - _KEPT)
            end = file.read()
        os.truncate(console, 0)
        with open(console, "ab", buffering=0) as file:
            file.write(f"wherry: {size - _KEPT} bytes were left out here\n".encode() + end)
