"""CPU seconds of the ranks of one job on this machine, also of ranks in containers, and across a move.

A rank is found by its program and working directory, which no two jobs share; after a move it is another process, whose
CPU seconds are added to those of the first one. The kernel counts them in nanoseconds (/proc/PID/schedstat).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")


class RankCpu:
    """The ranks of `program`, `count` of them, that work in `directory`."""

    def __init__(self, program: str, directory: Path, count: int, proc: Path = Path("/proc")) -> None:
        self._program, self._directory, self._count, self._proc = program, directory, count, proc
        self._ranks: dict[int, int] = {}
        """Process -> rank."""
        self._last: dict[int, float] = {}
        self._seconds: dict[int, float] = {}
        self.replaced: set[int] = set()
        """Ranks that continued as another process, as after a move."""

    def sample(self) -> list[float]:
        """CPU seconds of each rank since it was first seen; empty until all ranks have been seen."""
        for pid in list(self._ranks):
            seconds = self._cpu(pid)
            if seconds is None:
                del self._ranks[pid]
            else:
                self._seconds[self._ranks[pid]] += seconds - self._last[pid]
                self._last[pid] = seconds
        if len(self._ranks) < self._count:
            self._find()
        return [self._seconds[rank] for rank in range(self._count)] if len(self._seconds) == self._count else []

    def _find(self) -> None:
        present = set(self._ranks.values())
        for entry in os.listdir(self._proc):
            if entry.isdigit() and int(entry) not in self._ranks:
                rank, seconds = self._rank(int(entry)), self._cpu(int(entry))
                if rank is not None and rank not in present and rank < self._count and seconds is not None:
                    if rank in self._seconds:
                        self.replaced.add(rank)
                    self._seconds.setdefault(rank, 0.0)
                    self._ranks[int(entry)], self._last[int(entry)] = rank, seconds

    def _rank(self, pid: int) -> int | None:
        process = self._proc / str(pid)
        with suppress(OSError):  # it ended meanwhile, or is a thread of the kernel
            if (process / "comm").read_text(errors="replace").strip() == self._program:
                found = _RANK.search((process / "environ").read_bytes())
                if found and os.path.samefile(process / "cwd", self._directory):
                    return int(found[1])
        return None

    def _cpu(self, pid: int) -> float | None:
        try:
            return int((self._proc / str(pid) / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return None
