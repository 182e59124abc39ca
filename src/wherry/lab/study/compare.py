"""Compares two results of one study, possibly from different machines: each metric as a ratio of new to old.

Invariant: every metric that only one of them has, and every difference of the environments, is mentioned in the
caveats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.lab.report.statistics import can_reach_significance, mann_whitney, ratio
from wherry.lab.study.analysis import multiple_testing_remarks
from wherry.lab.study.levels import RESULT_CHECKSUM, Combination
from wherry.lab.study.results import Results, own_hosts_text

_NOT_COMPARED = (RESULT_CHECKSUM, "repetitions")


@dataclass(frozen=True)
class Difference:
    """Ratio of new to old for one metric of one combination (`cell`). `p` is None with too few runs."""

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
        """The fields as a JSON object."""
        return asdict(self)


def differences(old: Results, new: Results) -> list[Difference]:
    """One Difference for each metric that both have. Refused for different studies or sizes, or quick with full."""
    if old.study.name != new.study.name:
        what = f"{old.directory} holds {old.study.name}, {new.directory} holds {new.study.name}"
        raise Refused(Code.USAGE, "two different studies cannot be compared", what, "wherry study compare --help")
    if old.study.quick != new.study.quick:
        quick, whole = (old, new) if old.study.quick else (new, old)
        why = f"{quick.directory} was made with --quick, whose problems are smaller; {whole.directory} was not"
        other = f"wherry study run {old.study.name}{'' if whole is old else ' --quick'} --out DIR"
        raise Refused(Code.USAGE, "a short study cannot be compared with a whole one", why, other)
    if (sizes := new.study.changed_settings()) != old.study.changed_settings():
        words = [f"--set {name}={value}" for name, (value, _) in sizes.items()]
        said = " ".join(words) or "the usual sizes"
        other = " ".join(
            ["wherry study run", old.study.name, *words, *(["--quick"] if old.study.quick else []), "--out DIR"]
        )
        why = f"{new.directory} has {said}, {old.directory} has others"
        raise Refused(Code.USAGE, "studies of different sizes cannot be compared", why, other)
    return list(_differences(old, new))


@dataclass(frozen=True)
class _PairedMetric:
    """Samples of one metric of one combination from both results; either may be empty."""

    combination: Combination
    metric: str
    x: float | None
    before: list[float]
    after: list[float]

    @property
    def has_ratio(self) -> bool:
        """False if any sample is zero, e.g. a number of rounds."""
        return all(value > 0 for value in (*self.before, *self.after))


def _paired_metrics(old: Results, new: Results) -> Iterator[_PairedMetric]:
    for combination in dict.fromkeys([*new.study.combinations(), *old.study.combinations()]):
        runs = [*new.counted(combination), *old.counted(combination)]
        for metric, x in dict.fromkeys((v.metric, v.x) for run in runs for v in run.values):
            if metric not in _NOT_COMPARED:
                yield _PairedMetric(
                    combination, metric, x, old.values(combination, metric, x), new.values(combination, metric, x)
                )


def _differences(old: Results, new: Results) -> Iterator[Difference]:
    for number in _paired_metrics(old, new):
        if number.before and number.after and number.has_ratio:
            estimate, p = ratio(number.after, number.before), mann_whitney(number.after, number.before)
            counts = (len(number.before), len(number.after))
            yield Difference(
                str(number.combination),
                number.metric,
                number.x,
                estimate.value,
                estimate.low,
                estimate.high,
                *counts,
                p,
            )


def caveats(old: Results, new: Results) -> list[str]:
    """Remarks that a reader needs to interpret the comparison."""
    remarks = [*_places(old, new), "The two were not run in turns: changes of the machine's load are in the ratios."]
    numbers = list(_paired_metrics(old, new))
    both = [number for number in numbers if number.before and number.after]
    remarks += multiple_testing_remarks(
        sum(can_reach_significance(number.before, number.after) for number in both if number.has_ratio)
    )
    zero = Counter(number.metric for number in both if not number.has_ratio)
    remarks += [f"{metric}: {count} without a ratio, as some runs have 0 there" for metric, count in zero.items()]
    before, after = old.machine_facts(), new.machine_facts()
    for key in dict.fromkeys([*before, *after]):
        texts = ["; then ".join(estimate.get(key, ["not noted"])) for estimate in (before, after)]
        if texts[0] != texts[1]:
            remarks.append(f"{key}: {texts[0]} before, {texts[1]} now")
    for combination in dict.fromkeys([*new.study.combinations(), *old.study.combinations()]):
        remarks += _combination_caveats(
            old, new, combination, [number for number in numbers if number.combination == combination]
        )
    return remarks


def _places(old: Results, new: Results) -> list[str]:
    """Hosts of the user and emulated ones are not the same experiment."""
    if bool(old.study.own_hosts) == bool(new.study.own_hosts):
        return []
    where = " and ".join(f"{one.directory} was made on {own_hosts_text(one)}" for one in (old, new))
    return [
        f"{where}. Native ranks talk over the wire of the one and inside the machine of the other: a ratio of native "
        "to native compares two networks."
    ]


def _combination_caveats(
    old: Results, new: Results, combination: Combination, numbers: list[_PairedMetric]
) -> Iterator[str]:
    runs = [results.counted(combination) for results in (old, new)]
    if all(runs):
        for results, count in ((old, sum(not n.after for n in numbers)), (new, sum(not n.before for n in numbers))):
            if count:
                yield f"{combination}: {count} of its numbers are in {results.directory} alone"
        crcs = [set(results.values(combination, RESULT_CHECKSUM)) for results in (old, new)]
        if all(crcs) and crcs[0] != crcs[1]:
            yield f"{combination}: the program's result is not the same"
    elif any(runs):
        have, lack = (old, new) if runs[0] else (new, old)
        failed = [run.problem for run in lack.failed() if run.combination == combination]
        why = f"its {len(failed)} runs there failed, the last: {failed[-1]}" if failed else "it was not run there"
        yield f"{combination}: only {have.directory} measured it; {lack.directory} did not ({why})"
