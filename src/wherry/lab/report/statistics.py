"""Statistics of repeated, interleaved runs: medians, their ratios and differences, each with a 95 % interval.

A median's interval is the exact one of order statistics: whatever the distribution, the k-th smallest and the k-th
largest of n samples enclose its median with a probability that the binomial distribution gives, and k is the largest
with at least 95 %. Bootstrap intervals of a median of 6 to 10 samples, percentile and BCa, have a coverage of only 91
to 94 % (see tests/unit/lab/test_statistics.py). The ratio or difference of two medians has no exact interval; there the
percentile bootstrap (Efron 1979), whose coverage is 95 to 97 % and higher than that of BCa, is used with a fixed seed,
so that a report is reproducible from its samples.

With fewer than six samples no order-statistic interval reaches 95 % (the range of five encloses the median with 93.75
%); the range is then given, and `method` is `range`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEVEL = 0.95
_RESAMPLES = 10_000
_SEED = 20_061
_MIN_FOR_INTERVAL = 6
"""Fewest samples for which a median has a 95 % interval."""
ORDER, BOOTSTRAP, RANGE = "order statistics", "bootstrap", "range"
INTERVALS = (
    "95 % intervals (of a median by order statistics, of a ratio or difference of two by the percentile bootstrap); "
    "with fewer than six runs the interval is their range"
)
"""Sentence for reports that states how intervals were computed."""


@dataclass(frozen=True)
class Estimate:
    """A median, or a ratio or difference of two, with its interval. `count` is the size of the smaller sample."""

    value: float
    low: float
    high: float
    count: int
    method: str
    """`order statistics` or `bootstrap` (95 %), or `range`."""

    def text(self, digits: int = 3) -> str:
        """`1.02 [0.99, 1.05] n=5`."""
        value, low, high = (_rounded(number, digits) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] n={self.count}"


def _rounded(number: float, digits: int) -> str:
    """At least `digits` significant digits; exponent notation only from 1e9."""
    return f"{number:.0f}" if 10**digits <= abs(number) < 1e9 else f"{number:.{digits}g}"


def median(samples: Sequence[float]) -> Estimate:
    """Median of at least one sample."""
    data = np.sort(np.asarray(samples, dtype=float))
    count = len(data)
    if not count:
        raise ValueError("no samples")
    outside = _samples_outside(count)
    low, high = float(data[outside]), float(data[count - 1 - outside])
    return Estimate(float(np.median(data)), low, high, count, RANGE if count < _MIN_FOR_INTERVAL else ORDER)


def _samples_outside(count: int) -> int:
    """Number of samples outside the median's interval on each side: the largest with 95 % coverage, 0 for five or
    fewer. P(median < (k+1)-th smallest) = P(at most k heads in `count` tosses of a fair coin).
    """
    tail, left_out = 0.0, 0
    for heads in range(count):
        tail += math.comb(count, heads) * 0.5**count
        if tail > (1 - _LEVEL) / 2:
            break
        left_out = heads
    return left_out


def ratio(samples: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Median of `samples` over median of `base`."""
    return _bootstrap_of_two(samples, baseline, lambda data, baseline_data: data / baseline_data)


def difference(samples: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Median of `samples` less median of `base`."""
    return _bootstrap_of_two(samples, baseline, lambda data, baseline_data: data - baseline_data)


def can_reach_significance(samples: Sequence[float], baseline: Sequence[float]) -> bool:
    """Whether a two-sided test at 5 % can be significant with these sample sizes (3 and 3: p >= 2/20, so never)."""
    return math.comb(len(samples) + len(baseline), len(baseline)) >= 2 / 0.05


def mann_whitney(samples: Sequence[float], baseline: Sequence[float]) -> float | None:
    """p value of the two-sided Mann-Whitney U test. None when even complete separation would not reach 5 %."""
    if not can_reach_significance(samples, baseline):
        return None
    from scipy.stats import mannwhitneyu  # a second to import

    return float(mannwhitneyu(samples, baseline, alternative="two-sided").pvalue)


_Numbers = NDArray[np.float64]


def _bootstrap_of_two(
    samples: Sequence[float], baseline: Sequence[float], combine: Callable[[_Numbers, _Numbers], _Numbers]
) -> Estimate:
    """`combine` of two medians with its interval; `combine` rises with its first and falls with its second argument."""
    data, baseline_data = np.asarray(samples, dtype=float), np.asarray(baseline, dtype=float)
    count = min(len(data), len(baseline_data))
    if not count:
        raise ValueError("no samples")
    value = float(combine(np.median(data), np.median(baseline_data)))
    if count < _MIN_FOR_INTERVAL:
        low, high = float(combine(data.min(), baseline_data.max())), float(combine(data.max(), baseline_data.min()))
        return Estimate(value, low, high, count, RANGE)
    generator = np.random.default_rng(_SEED)
    medians = (
        np.median(sample[generator.integers(0, len(sample), (_RESAMPLES, len(sample)))], axis=-1)
        for sample in (data, baseline_data)
    )
    low, high = np.percentile(combine(*medians), [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)])
    return Estimate(value, float(low), float(high), count, BOOTSTRAP)
