"""Two studies beside each other: each number of the new one as a ratio to the old one's, also across machines.

Invariant: nothing that only one of them measured goes without a word, and neither does anything that the two were not
measured alike in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.lab.report.statistics import can_tell, mann_whitney, ratio
from wherry.lab.study.analysis import by_chance
from wherry.lab.study.levels import RESULT, Combination
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
    """Every number that both have. Refused when the two are not of one study, or not of one size."""
    if old.study.name != new.study.name:
        what = f"{old.directory} holds {old.study.name}, {new.directory} holds {new.study.name}"
        raise Refused(Code.USAGE, "two different studies cannot be compared", what, "wherry study compare --help")
    if old.study.quick != new.study.quick:
        quick, whole = (old, new) if old.study.quick else (new, old)
        why = f"{quick.directory} was made with --quick, whose problems are smaller; {whole.directory} was not"
        other = f"wherry study run {old.study.name}{'' if whole is old else ' --quick'} --out DIR"
        raise Refused(Code.USAGE, "a short study cannot be compared with a whole one", why, other)
    return list(_differences(old, new))


@dataclass(frozen=True)
class _Number:
    """The samples of one number of one cell, of which either may have none."""

    cell: Combination
    metric: str
    x: float | None
    before: list[float]
    after: list[float]

    @property
    def divides(self) -> bool:
        """False where one of them is zero: rounds, for instance."""
        return all(value > 0 for value in (*self.before, *self.after))


def _numbers(old: Results, new: Results) -> Iterator[_Number]:
    for cell in dict.fromkeys([*new.study.combinations(), *old.study.combinations()]):
        runs = [*new.counted(cell), *old.counted(cell)]
        for metric, x in dict.fromkeys((v.metric, v.x) for run in runs for v in run.values):
            if metric not in _NO_SIZES:
                yield _Number(cell, metric, x, old.values(cell, metric, x), new.values(cell, metric, x))


def _differences(old: Results, new: Results) -> Iterator[Difference]:
    for one in _numbers(old, new):
        if one.before and one.after and one.divides:
            found, p = ratio(one.after, one.before), mann_whitney(one.after, one.before)
            counts = (len(one.before), len(one.after))
            yield Difference(str(one.cell), one.metric, one.x, found.value, found.low, found.high, *counts, p)


def caveats(old: Results, new: Results) -> list[str]:
    """What the reader of a comparison must know."""
    said = ["The two were not run in turns: what the machine did meanwhile is in the ratios."]
    numbers = list(_numbers(old, new))
    both = [one for one in numbers if one.before and one.after]
    said += by_chance(sum(can_tell(one.before, one.after) for one in both if one.divides))
    zero = Counter(one.metric for one in both if not one.divides)
    said += [f"{metric}: {count} without a ratio, as some runs have 0 there" for metric, count in zero.items()]
    before, after = old.machine(), new.machine()
    for key in dict.fromkeys([*before, *after]):
        texts = ["; then ".join(found.get(key, ["not noted"])) for found in (before, after)]
        if texts[0] != texts[1]:
            said.append(f"{key}: {texts[0]} before, {texts[1]} now")
    for cell in dict.fromkeys([*new.study.combinations(), *old.study.combinations()]):
        said += _of_a_cell(old, new, cell, [one for one in numbers if one.cell == cell])
    return said


def _of_a_cell(old: Results, new: Results, cell: Combination, numbers: list[_Number]) -> Iterator[str]:
    runs = [one.counted(cell) for one in (old, new)]
    if all(runs):
        for alone, count in ((old, sum(not n.after for n in numbers)), (new, sum(not n.before for n in numbers))):
            if count:
                yield f"{cell}: {count} of its numbers are in {alone.directory} alone"
        crcs = [set(one.values(cell, RESULT)) for one in (old, new)]
        if all(crcs) and crcs[0] != crcs[1]:
            yield f"{cell}: the program's result is not the same"
    elif any(runs):
        have, lack = (old, new) if runs[0] else (new, old)
        failed = [run.problem for run in lack.failed() if run.cell == cell]
        why = f"its {len(failed)} runs there failed, the last: {failed[-1]}" if failed else "it was not run there"
        yield f"{cell}: only {have.directory} measured it; {lack.directory} did not ({why})"
