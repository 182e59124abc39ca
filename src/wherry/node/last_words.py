"""The end of what a node said on its console, for errors and events."""

from __future__ import annotations

from pathlib import Path

_LINES, _PART = 3, 16384
_PANIC = "Kernel panic"


def last_words(console: Path) -> str:
    """Its last lines in one, or that of its kernel's panic, behind which there are many; empty when it said nothing."""
    try:
        with open(console, "rb") as file:
            file.seek(max(0, console.stat().st_size - _PART))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    said = [line.strip() for line in text.split("\n") if line.strip()]
    panic = [line for line in said if _PANIC in line]
    return panic[-1] if panic else " | ".join(said[-_LINES:])
