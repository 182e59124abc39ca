"""Levels of the study `manycore` that both its runs and its page need."""

from __future__ import annotations

from wherry.lab.study.levels import Combination

LARGEST = "360"
"""Pages that a program can grow by: with them a process has 1.5 of its 2 MiB in use."""
WORKING_SETS = ("8", "64", "all")
"""Pages that such a process goes on writing while it is moved: at these the goals are judged."""
SLAVES = 15
"""Cores for threads that a tile has at most."""
TCP = ("tcp-direct", "tcp-precopy", "tcp-faithful")
"""Between hosts in those modes; `handoff` needs memory that both tiles share."""


def combination_of(
    what: str, how: str, threads: str = "-", pages: str = "-", written: str = "", pairs: str = "-"
) -> Combination:
    """One combination; all of the pages are written unless `written` says otherwise."""
    written = written or ("-" if pages == "-" else "all")
    return Combination.of(what=what, how=how, threads=threads, pages=pages, written=written, pairs=pairs)
