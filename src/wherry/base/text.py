"""Texts that users choose, such as names of files and processes, made fit to be shown and stored."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with escapes for characters that a terminal should not get (control sequences) or JSON cannot carry
    (the bytes of a name that is not UTF-8). Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
