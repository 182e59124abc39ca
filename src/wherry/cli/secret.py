"""Passwords and other secrets: typed at a terminal without being shown, or a line of standard input. Never a word of a
command."""

from __future__ import annotations

import getpass
import sys

from wherry.base.errors import Code, Refused


def ask(prompt: str, kind: str = "password", repeat: bool = False) -> str:
    """A password, or another kind of secret. USAGE when there is none, or when it is repeated otherwise."""
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\n")
        if not text:
            raise Refused(Code.USAGE, f"no {kind} was given", "standard input has none", "type it at a terminal")
        return text
    text = getpass.getpass(f"{prompt}: ")
    if repeat and getpass.getpass(f"{prompt}, again: ") != text:
        raise Refused(Code.USAGE, "the two are not the same", "nothing was changed", "repeat the command")
    return text
