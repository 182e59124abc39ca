"""The end of a node's console log, for errors and events.

Invariant: the text is short and printable. Root in the node can write anything, such as terminal control sequences.
"""

from __future__ import annotations

from pathlib import Path

_LINES, _LONGEST, _PART = 3, 200, 16384
_PANIC = "Kernel panic"


def console_tail(console: Path) -> str:
    """The last lines as one, or only that of a kernel panic, which many lines follow; empty without output."""
    try:
        with open(console, "rb") as file:
            file.seek(max(0, console.stat().st_size - _PART))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    shown = ("".join(filter(str.isprintable, line)).strip()[:_LONGEST] for line in text.split("\n"))
    said = [line for line in shown if line]
    panic = [line for line in said if _PANIC in line]
    return panic[-1] if panic else " | ".join(said[-_LINES:])
