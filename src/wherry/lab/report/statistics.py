"""Statistics of repeated, interleaved runs: median with its interval, and the ratio of two medians with its own.

Intervals are percentile bootstraps (Efron 1979) with a fixed seed, so that a report made twice from the same samples
says the same. With fewer than six samples the interval is the range of the samples, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 10_000
_SEED = 20_061
_FEW = 6
"""Below so many samples a bootstrap is the range by another name: in 5.8 % of the resamples of five the median is their
least, so the 2.5th percentile is. And the range of five has the median in it in 93.75 % of all cases, not in 95."""


@dataclass(frozen=True)
class Estimate:
    """A median with its interval from `count` samples: `method` is `bootstrap` (95 %) or `range`."""

    value: float
    low: float
    high: float
    count: int
    method: str

    def text(self, digits: int = 3) -> str:
        """`1.02 [0.99, 1.05] n=5`."""
        value, low, high = (_plain(number, digits) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] n={self.count}"


def _plain(number: float, digits: int) -> str:
    """At least `digits` digits that count; without an exponent as far as people read numbers."""
    return f"{number:.0f}" if 10**digits <= abs(number) < 1e9 else f"{number:.{digits}g}"


def median(samples: Sequence[float]) -> Estimate:
    """Median of at least one sample."""
    data = np.asarray(samples, dtype=float)
    return _estimate([data], lambda draws: np.median(draws[0], axis=-1))


def ratio(samples: Sequence[float], base: Sequence[float]) -> Estimate:
    """Median of `samples` over median of `base`."""
    data = [np.asarray(samples, dtype=float), np.asarray(base, dtype=float)]
    return _estimate(data, lambda draws: np.median(draws[0], axis=-1) / np.median(draws[1], axis=-1))


def difference(samples: Sequence[float], base: Sequence[float]) -> Estimate:
    """Median of `samples` less median of `base`."""
    data = [np.asarray(samples, dtype=float), np.asarray(base, dtype=float)]
    return _estimate(data, lambda draws: np.median(draws[0], axis=-1) - np.median(draws[1], axis=-1))


def compared(samples: Sequence[float], base: Sequence[float]) -> tuple[str, str, str]:
    """Both medians and their ratio, for three cells of a table; samples may be lacking."""
    ours, theirs = (median(found).text() if found else "not measured" for found in (samples, base))
    return ours, theirs, ratio(samples, base).text() if samples and base else "not measured"


def can_tell(samples: Sequence[float], base: Sequence[float]) -> bool:
    """Whether there are so many samples that a test at 5 % could show a difference at all (3 and 3: at best 2/20)."""
    return math.comb(len(samples) + len(base), len(base)) >= 2 / 0.05


def mann_whitney(samples: Sequence[float], base: Sequence[float]) -> float | None:
    """Probability of a difference as large when both have one distribution (two-sided Mann-Whitney U test).

    None with so few samples that even complete separation would not be below 5 %.
    """
    if not can_tell(samples, base):
        return None
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(samples, base, alternative="two-sided").pvalue)


Statistic = Callable[[list[NDArray[np.float64]]], NDArray[np.float64]]


def _estimate(data: list[NDArray[np.float64]], statistic: Statistic) -> Estimate:
    count = min(len(d) for d in data)
    if not count:
        raise ValueError("no samples")
    value = float(statistic([d[None, :] for d in data])[0])
    if count < _FEW:
        low, high = _range(data, statistic)
        return Estimate(value, low, high, count, "range")
    generator = np.random.default_rng(_SEED)
    draws = [d[generator.integers(0, len(d), (_RESAMPLES, len(d)))] for d in data]
    low, high = np.percentile(statistic(draws), [2.5, 97.5])
    return Estimate(value, float(low), float(high), count, "bootstrap")


def _range(data: list[NDArray[np.float64]], statistic: Statistic) -> tuple[float, float]:
    """The least and the most that single samples give: it falls with the second's."""
    ours, *base = data
    low = [np.min(ours), *map(np.max, base)]
    high = [np.max(ours), *map(np.min, base)]
    least, most = (float(statistic([end.reshape(1, 1) for end in ends])[0]) for ends in (low, high))
    return least, most
