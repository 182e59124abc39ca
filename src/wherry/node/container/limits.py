"""Resource limits of a node's processes (setrlimit(2)): those that the daemon was started with, less what a move
needs."""

from __future__ import annotations

from wherry.base import open_files as our_open_files

_CRIU = 1024
"""Descriptors behind those of a program that a restore needs: CRIU has some thirty of its own for each table of
descriptors, and rounds. A program may have descriptors at the very end, as valgrind has."""
_LEAST = 4096
"""A limit below this is left as it is."""


def open_files() -> list[dict[str, object]]:
    """The limit on open files, as OCI's runtime configuration has it."""
    soft, hard = our_open_files.limits()
    if hard < _LEAST:
        return []
    hard -= _CRIU
    return [{"type": "RLIMIT_NOFILE", "soft": min(soft, hard), "hard": hard}]
