"""Identifiers: short, sortable by creation, unique within an instance."""

from __future__ import annotations

import secrets
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_lock = threading.Lock()
_last = 0
"""The number in the latest identifier of this process."""


def new_id(prefix: str) -> str:
    """`new_id("mv")` -> `mv-0m3k9x2c7fq`: milliseconds since the epoch, then 20 random bits; each later than the one
    before in this process, also when a thousand are made in a millisecond or the clock is set back."""
    global _last
    with _lock:
        number = _last = max(int(time.time() * 1000) << 20 | secrets.randbits(20), _last + 1)
    digits = []
    while number:
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return f"{prefix}-{''.join(reversed(digits))}"
