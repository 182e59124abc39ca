"""When the thread that profiles programs takes samples, and when it ends the counting of frames."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wherry.base.errors import Code, LostContact
from wherry.job.profile import Sample
from wherry.service import program_profiler
from wherry.service.program_profiler import _ATTEMPTS, ProgramProfiler, _Window


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
