"""Lists of processors as the kernel writes them: `0-3,8`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_MAX_CPUS = 8192
"""CONFIG_NR_CPUS of the largest kernels."""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers, in order and each once. ValueError with the reason when the text is not a list."""
    found = set[int]()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            raise ValueError(f"{text!r} is no list of CPUs: write it as 0-3 or 0,2")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MAX_CPUS:
            raise ValueError(f"{part.strip()!r} is no range of CPUs below {_MAX_CPUS}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The text of these numbers."""
    parts = []
    for _, run in groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)
