"""The part of a command line that rows keep; a whole one may have megabytes, and lists read rows whole."""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 4096
"""Characters of all words together, with a space behind each: a whole path, at least."""


def kept_words(words: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The first words, the last of them cut and with an ellipsis where they are too many; and how many characters were
    left out."""
    found, room = list[str](), KEPT
    for number, word in enumerate(words):
        if len(word) + 1 > room:
            return (*found, f"{word[:room]}…"), sum(len(left) + 1 for left in words[number:]) - room
        found.append(word)
        room -= len(word) + 1
    return tuple(found), 0
