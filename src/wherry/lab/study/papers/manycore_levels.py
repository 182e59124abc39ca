"""Levels of the study `manycore` that are shared by its runs and its page."""

from __future__ import annotations

from wherry.lab.study.levels import Combination

LARGEST = "360"
"""Maximum number of pages that a program can grow by; the process then uses 1.5 of its 2 MiB."""
WORKING_SETS = ("8", "64", "all")
"""Working sets: pages that such a process keeps rewriting during the move; the goals apply to these."""
SLAVES = 15
"""Maximum number of a tile's cores for threads."""
TCP = ("tcp-direct", "tcp-precopy", "tcp-faithful")
"""Modes of moves between hosts over TCP; `handoff` needs memory that both tiles share."""


def combination_of(
    what: str, how: str, threads: str = "-", pages: str = "-", written: str = "", pairs: str = "-"
) -> Combination:
    """A combination by its levels; by default all pages are written."""
    written = written or ("-" if pages == "-" else "all")
    return Combination.of(what=what, how=how, threads=threads, pages=pages, written=written, pairs=pairs)
