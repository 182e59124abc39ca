"""When a measurement begins, beside a job whose ranks are being started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wherry.base.clock import now
from wherry.job.profile import Sample
from wherry.service.balance_sampling import BalanceSampling


class Ranks(BalanceSampling):
    """Samples in which the job's first rank appears after some."""

    def __init__(self, appears: int, age: float) -> None:
        job = SimpleNamespace(id="job-1", computes=True, created=now() - age, started=None)
        self._context = SimpleNamespace(store=SimpleNamespace(jobs_under_way=lambda: [job]))  # type: ignore[assignment]
        self.taken, self.appears = 0, appears

    def sample(self) -> Sample:
        self.taken += 1
        ranks = {("", 7): SimpleNamespace(job="job-1")} if self.taken > self.appears else {}
        return Sample(float(self.taken), {}, ranks=ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("appears", "age", "first"),
    [(0, 0.0, 1), (3, 0.0, 4), (3, 60.0, 1)],
    ids=["they run", "they are being started", "they never came"],
)
def test_it_begins_when_ranks_are_there(appears: int, age: float, first: int) -> None:
    pauses = list[float]()
    before, after = Ranks(appears, age).measure(4.0, pauses.append)
    assert (before.time, after.time) == (first, first + 1) and pauses[-1] == 4.0 and sum(pauses) < 5.0
