"""When a measurement begins, beside a job whose ranks are being started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

import waiting
from wherry.base.clock import now
from wherry.base.errors import Code, LostContact, WherryError
from wherry.client import Client
from wherry.job.profile import Sample
from wherry.service import program_profiler
from wherry.service.balance_sampling import BalanceSampling, recent_moves
from wherry.service.program_profiler import _ATTEMPTS, ProgramProfiler, _Window


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


# A balancing that measures is cancelled while it does so, by a user and by the daemon's end.


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """That a measurement has begun, which takes a day."""
    begun, measure = threading.Event(), BalanceSampling.measure

    def long(view: BalanceSampling, _seconds: float, pause: Callable[[float], object]) -> Any:
        def paused(seconds: float) -> None:
            begun.set()
            pause(seconds)

        return measure(view, 86_400.0, paused)

    monkeypatch.setattr(BalanceSampling, "measure", long)
    return begun


@pytest.fixture
def service(tmp_path: Path, measuring: threading.Event) -> Iterator[Service]:
    with running(tmp_path, fabric=False) as made, Client(made.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
        client.wait(client.up(CLUSTER, "FILE").id)
        yield made


def test_by_its_user(service: Service, measuring: threading.Event) -> None:
    with Client(service.place, start=False) as client:
        begun = client.begin_balance("hello")
        measuring.wait()
        client.cancel(begun.id)
        with pytest.raises(WherryError) as cancelled:
            client.wait(begun.id)
        assert cancelled.value.code is Code.CANCELLED


def test_by_the_end_of_the_daemon(service: Service, measuring: threading.Event) -> None:
    with Client(service.place, start=False) as client:
        begun = client.begin_balance("hello")
    measuring.wait()
    service.context.operations.close(waiting.bound())
    assert service.context.operations.get(begun.id).state == "cancelled"


# When the thread that profiles programs takes samples, and when it ends the counting of frames.


class Silent:
    """A view whose nodes do not answer."""

    managers = object()

    def __init__(self) -> None:
        self.samples = self.closed = 0

    def sample(self) -> Sample:
        self.samples += 1
        raise LostContact(Code.UNREACHABLE, "it does not answer")

    def close(self) -> None:
        self.closed += 1


def test_nothing_is_sampled_before_its_time_and_an_error_ends_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_profiler, "time", SimpleNamespace(monotonic=lambda: 100.0))
    view, job = Silent(), SimpleNamespace(id="job-1")
    profiler = ProgramProfiler(SimpleNamespace(managers=Silent.managers))  # type: ignore[arg-type]
    profiler._window = _Window(view, Sample(100.0, {}), (job,))  # type: ignore[arg-type]
    profiler.run_once()
    assert (view.samples, view.closed) == (0, 0)
    profiler._window = _Window(view, Sample(97.0, {}), (job,))  # type: ignore[arg-type]
    with pytest.raises(LostContact):
        profiler.run_once()
    assert (view.samples, view.closed) == (1, 1) and profiler._window is None and profiler._taken == {}
    for _ in range(_ATTEMPTS - 1):
        profiler._window = _Window(view, Sample(97.0, {}), (job,))  # type: ignore[arg-type]
        with pytest.raises(LostContact):
            profiler.run_once()
    assert profiler._taken == {"job-1": 1} and profiler._attempts == {}, "it is not tried for ever"
