"""A program whose memory is a file of its node: a treatment for each size, which should cost as other memory."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.base.units import format_size
from wherry.lab.bench.definition import Comparison, Levels
from wherry.lab.bench.samples import Samples

FILE = "/dev/shm/wherry-writer"  # noqa: S108 - in a node
_SHARE = 0.75
"""Of a node's memory, what files may have (node/container/mounts.py)."""


def room_for(size: int) -> int:
    """Bytes of memory of a node that may have a file of this size."""
    return int(size / _SHARE)


def file_levels(sizes: Sequence[int]) -> list[Levels]:
    """A treatment for each size."""
    return [{"part": "files", "by": "wherry", "memory": size} for size in sizes]


def file_comparisons(samples: Samples, sizes: Sequence[int]) -> list[Comparison]:
    """The gap of each size, beside that of a program with as much private memory, where that was measured."""
    rows = []
    for size in sizes:
        gaps = samples.values("gap", part="files", by="wherry", memory=size)
        private = samples.values("gap", part="size", by="wherry", memory=size)
        label = f"{format_size(size)} in a shared file, gap that the program sees, s"
        rows.append(Comparison(f"{label}, beside private memory" if private else label, gaps, private))
    return rows
