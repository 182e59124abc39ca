"""The end of what a node said on its console, for errors and events.

Who is root in the node can write anything there: nothing of it may steer a terminal, nor be long.
"""

from __future__ import annotations

from pathlib import Path

_LINES, _LONGEST, _PART = 3, 200, 16384
_PANIC = "Kernel panic"


def console_tail(console: Path) -> str:
    """Its last lines in one, or that of its kernel's panic, behind which there are many; empty when it said nothing."""
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
