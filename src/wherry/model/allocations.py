"""Allocations of hosts by a batch system."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Allocation:
    """An allocation: its number, whether it runs, which hosts it has then, the seconds that are left (None: it has
    no end), and why it waits, where that is known."""

    id: int
    runs: bool
    hosts: tuple[str, ...] = ()
    left: float | None = None
    why: str = ""
