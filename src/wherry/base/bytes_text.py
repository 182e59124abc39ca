"""Words and variables of programs, which are bytes, as text that JSON and databases take.

Bytes that are not UTF-8 are characters of the private use area, U+EF80 for 0x80 to U+EFFF for 0xFF; so are the bytes of
these characters where they occur themselves. Invariant: `to_native(to_text(word)) == word` for every word of this
process (os.fsdecode), and UTF-8 without such characters is the same text.
"""

from __future__ import annotations

import os
import re

_ESCAPED = 0xEF00
_RAW = re.compile(r"[\udc80-\udcff\uef80-\uefff]")
_SHOWN_BYTES = re.compile(r"[\uef80-\uefff]")


def is_text(native: str) -> bool:
    """False for a word of this process with bytes that are not UTF-8."""
    return native.isascii() or not _RAW.search(os.fsencode(native).decode(errors="surrogateescape"))


def to_text(native: str) -> str:
    """The text for a word of this process, in which bytes that cannot be decoded are surrogates."""
    return native if native.isascii() else _RAW.sub(_shown, os.fsencode(native).decode(errors="surrogateescape"))


def to_bytes(text: str) -> bytes:
    """The bytes that the text stands for."""
    return _SHOWN_BYTES.sub(lambda found: chr(0xDC00 + ord(found[0]) - _ESCAPED), text).encode(errors="surrogateescape")


def to_native(text: str) -> str:
    """The word of this process that the text stands for."""
    return text if text.isascii() else os.fsdecode(to_bytes(text))


def _shown(found: re.Match[str]) -> str:
    return "".join(chr(_ESCAPED + byte) for byte in found[0].encode(errors="surrogateescape"))
