"""When a measurement begins, beside a job whose ranks are being started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wherry.base.clock import now
from wherry.job.profile import Sample
from wherry.service.balance_sampling import BalanceSampling, recent_moves


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


class Moves:
    """A store of moves that began at these times; the first of them is not finished."""

    def __init__(self, *created: float) -> None:
        self.all = [SimpleNamespace(id=f"move-{number}", created=time) for number, time in enumerate(created)]
        self.read = 0

    def moves(self, *, unfinished: bool = False) -> list[Any]:
        return self._read(self.all[:1] if unfinished else self.all)

    def newest_moves(self, number: int) -> list[Any]:
        return self._read(self.all[-number:])

    def _read(self, found: list[Any]) -> list[Any]:
        self.read += len(found)
        return found


def test_a_plan_reads_the_newest_moves_and_those_under_way() -> None:
    """Not all that there ever were, each time."""
    few, many = Moves(*range(20)), Moves(*range(1000))
    assert recent_moves(cast(Any, few)) == few.all and few.read == 20
    assert recent_moves(cast(Any, many)) == [many.all[0], *many.all[-200:]] and many.read == 201


def test_a_plan_reads_all_moves_after_which_a_node_has_to_stay() -> None:
    moves = Moves(*(now() - 300 + number / 10 for number in range(300)))
    assert recent_moves(cast(Any, moves)) == moves.all
