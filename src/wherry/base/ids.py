"""Identifiers: short, sortable by creation, unique within an instance."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """`new_id("mv")` -> `mv-0m3k9x2c7fq`: milliseconds since the epoch, then 20 random bits."""
    number = (int(time.time() * 1000) << 20) | secrets.randbits(20)
    digits = []
    while number:
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return f"{prefix}-{''.join(reversed(digits))}"
