"""Two studies beside each other: each number of the new one as a ratio to the old one's, also across machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.lab.stats import mann_whitney, ratio
from wherry.lab.study.recipe import RESULT
from wherry.lab.study.results import Results

_NO_SIZES = (RESULT, "repetitions")


@dataclass(frozen=True)
class Difference:
    """New over old of one number of one cell. `p` is None with too few runs."""

    cell: str
    metric: str
    x: float | None
    ratio: float
    low: float
    high: float
    old_runs: int
    new_runs: int
    p: float | None

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def differences(old: Results, new: Results) -> list[Difference]:
    """Every number that both have. Refused when the two are not of one study."""
    if old.study.name != new.study.name:
        what = f"{old.directory} holds {old.study.name}, {new.directory} holds {new.study.name}"
        raise Refused(Code.USAGE, "two different studies cannot be compared", what, "wherry study compare --help")
    return list(_differences(old, new))


def _differences(old: Results, new: Results) -> Iterator[Difference]:
    for cell in new.study.cells():
        keys = dict.fromkeys((v.metric, v.x) for run in new.counted(cell) for v in run.values)
        for metric, x in keys:
            before, after = old.values(cell, metric, x), new.values(cell, metric, x)
            if metric in _NO_SIZES or not before or any(value <= 0 for value in (*before, *after)):
                continue  # nothing to divide by
            found = ratio(after, before)
            p = mann_whitney(after, before)
            counts = (len(before), len(after))
            yield Difference(str(cell), metric, x, found.value, found.low, found.high, *counts, p)


def caveats(old: Results, new: Results) -> list[str]:
    """What the reader of a comparison must know."""
    said = ["The two were not run in turns: what the machine did meanwhile is in the ratios."]
    keys = ("cpu", "cpus", "kernel", "open mpi", "mpich", "wherry")
    before, after = (results.about["sessions"][-1]["before"] for results in (old, new))
    for key in keys:
        if before.get(key) != after.get(key):
            said.append(f"{key}: {before.get(key)} before, {after.get(key)} now")
    if old.study.quick != new.study.quick:
        said.append("one was made with --quick, the other was not: only what both measured is compared")
    for cell in new.study.cells():
        results = [set(one.values(cell, RESULT)) for one in (old, new)]
        if all(results) and results[0] != results[1]:
            said.append(f"{cell}: the program's result is not the same")
    return said
