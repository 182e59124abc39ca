"""Finds the words of a command line that belong to the program: all after the program's name, as for mpirun, also
without `--`.
"""

from __future__ import annotations

from collections.abc import Sequence

_WORDS_BEFORE = {"run": 1, "exec": 1}
"""Commands that take a program, and the number of words before its name that are no options."""
_ALONE = {
    "--detach", "--no-profile", "--plain", "--site-collectives", "--deterministic", "--place-spawned",
    "--host-memory", "--help", "-h", "--version",
}  # fmt: skip
"""Options of these commands without a value; every other one takes the next word, unless it has an `=`."""


def cut(words: Sequence[str]) -> list[str]:
    """The words with `--` before the program's name, where it was left out."""
    if not words or words[0] not in _WORDS_BEFORE:
        return list(words)
    before, at = _WORDS_BEFORE[words[0]], 1
    if any(word == "--up" or word.startswith("--up=") for word in words[1 : _end(words)]):
        before -= 1  # the file names the cluster
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words)
        if word.startswith("-") and word != "-":
            at += 1 if word in _ALONE or "=" in word or _is_joined(word) else 2
        elif before:
            before, at = before - 1, at + 1
        else:
            return [*words[:at], "--", *words[at:]]
    return list(words)


def _is_joined(word: str) -> bool:
    """A short option with its value in one word, such as -n4."""
    return not word.startswith("--") and len(word) > 2 and word[:2] in ("-n", "-o", "-x") and word != "-np"


def _end(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)
