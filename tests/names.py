"""Names of what tests make on the machine. Another checkout's differ, so the tests of both can run at the same time."""

from __future__ import annotations

import zlib
from pathlib import Path

_CHECKOUT = zlib.crc32(str(Path(__file__).parent).encode()) & 0xFFFF


def own_name(role: str) -> str:
    """A name for an instance, which has 8 letters at most: those of `role`, at most 4, and this checkout's."""
    assert len(role) <= 4, role
    return f"{role}{_CHECKOUT:04x}"
