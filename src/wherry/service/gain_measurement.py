"""Gains of plans of balancing: a thread that measures, when the moves of a plan are done, the time of an iteration
beside that before; where iterations are not seen, the messages that the jobs exchange in a second, as a program
exchanges as many in each of its steps, wherever its nodes are.

Invariants: the measurement claims nothing, so it is in nobody's way; failing to measure a gain is no error, and the
reason is kept with the moves.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from wherry.base.errors import WherryError
from wherry.job.profile import Sample
from wherry.model.balance import Verdict
from wherry.model.profile import Profile
from wherry.service.balance_sampling import BalanceSampling, sampling, unmeasurable
from wherry.service.context import Carried, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 4.0
"""Seconds of the measurement, as of automatic balancing before the moves."""
_MIN_RATE = 5.0
"""Messages per second below which a program looks the same as one without messages just then."""


class GainMeasurement(PeriodicTask):
    """Does nothing while no plan was carried out."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("gain", every)
        self._context = context
        self._begun: tuple[BalanceSampling, Sample, Sequence[Carried]] | None = None

    def run_once(self) -> None:
        """Takes the first sample of the plan that was just carried out, or the second one."""
        if self._begun is None:
            self._begin()
        else:
            view, before, plans = self._begun
            try:
                with self._told(plans):
                    after = view.sample()
                for verdict, moves in plans:
                    self._keep(moves, *self._step(view, verdict, before, after))
            finally:
                self.close()

    def close(self) -> None:
        """Ends the counting of frames."""
        if self._begun is not None:
            view, *_ = self._begun
            self._begun = None
            view.close()

    def _begin(self) -> None:
        plans = list[Carried]()
        try:
            while True:
                verdict, moves = self._context.carried_out.get_nowait()
                if why := _obstacle(verdict):
                    self._keep(moves, None, why)
                else:
                    plans.append((verdict, moves))
        except queue.Empty:
            if plans:
                self._take_first(plans)

    def _take_first(self, plans: Sequence[Carried]) -> None:
        with self._told(plans), ExitStack() as undo:
            view = sampling(self._context)
            undo.callback(view.close)
            self._begun = view, view.sample(), plans
            undo.pop_all()

    @contextmanager
    def _told(self, plans: Sequence[Carried]) -> Iterator[None]:
        """Keeps with the moves of these plans why nothing could be measured."""
        try:
            yield
        except Exception as error:
            for _, moves in plans:
                self._keep(moves, None, str(error))
            raise

    def _step(self, view: BalanceSampling, verdict: Verdict, before: Sample, after: Sample) -> tuple[float | None, str]:
        """The time of a step beside that before the moves, or why it is not known."""
        if why := unmeasurable(before, after, self._context.store.nodes(verdict.cluster)):
            return None, why
        try:
            found = view.profile(before, after, verdict.cluster)
        except WherryError as error:
            return None, str(error)
        return step_beside(verdict, found)

    def _keep(self, moves: Sequence[str], measured: float | None, unmeasured: str) -> None:
        """Writes it into the rows of the plan's moves."""
        for id in moves:
            move = self._context.store.move(id)
            if move and move.gain:
                gain = move.gain.model_copy(update={"measured": measured, "unmeasured": unmeasured})
                self._context.store.put_move(move.model_copy(update={"gain": gain}))


def step_beside(verdict: Verdict, found: Profile) -> tuple[float | None, str]:
    """The time of a step in the profile, beside that before the verdict's moves; or why it is not known."""
    if found.jobs != verdict.jobs:
        return None, "its jobs ended, or others began"
    if verdict.period and found.period and found.steps == verdict.steps:
        return found.period / verdict.period, ""
    if why := _uncountable(verdict):
        return None, why
    if not found.messages:
        return None, found.uncounted or "its ranks exchanged no messages after the moves"
    return (verdict.rate or 0.0) / found.messages, ""


def _obstacle(verdict: Verdict) -> str:
    """Why the gain of a plan cannot be measured; empty when it can."""
    return "" if verdict.period else _uncountable(verdict)


def _uncountable(verdict: Verdict) -> str:
    """Why it cannot be measured by messages."""
    if verdict.rate is None:
        return "messages are not counted here"
    if verdict.rate < _MIN_RATE:
        return f"its ranks exchanged {verdict.rate:.1f} messages a second, too few to measure its speed"
    return ""
