"""Levels of the study `manycore` that are shared by its runs and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wherry.lab.study.levels import Combination

LARGEST = "360"
"""Maximum number of pages that a program can grow by; the process then uses 1.5 of its 2 MiB."""
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


@dataclass(frozen=True)
class Axes:
    """The varied numbers, in increasing order, as the combinations have them."""

    created: str
    threads: tuple[str, ...]
    pages: tuple[str, ...]
    written: tuple[str, ...]
    pairs: tuple[str, ...]
    pair_threads: tuple[str, ...]

    @staticmethod
    def of(combinations: Sequence[Combination]) -> Axes:
        moves = [one for one in combinations if one["what"] == "move" and one["how"] not in TCP]
        grid = [one for one in moves if one["pages"] != LARGEST]
        parallel = [one for one in combinations if one["what"] == "parallel"]
        return Axes(
            next(one["threads"] for one in combinations if one["what"] == "threads"),
            _sorted(grid, "threads"),
            _sorted(grid, "pages"),
            tuple(dict.fromkeys(one["written"] for one in moves if one["pages"] == LARGEST)),
            _sorted(parallel, "pairs"),
            _sorted(parallel, "threads"),
        )

    @property
    def few(self) -> str:
        """The least threads beside the first that the paper could have had: one, where it is measured."""
        return next((count for count in self.threads if count != "0"), self.threads[0])

    def creation(self, how: str) -> Combination:
        return combination_of("threads", how, self.created)

    def parallel(self, how: str, pairs: str, threads: str) -> Combination:
        return combination_of("parallel", how, threads, self.pages[-1], pairs=pairs)


def _sorted(combinations: Sequence[Combination], factor: str) -> tuple[str, ...]:
    return tuple(sorted({one[factor] for one in combinations}, key=int))
