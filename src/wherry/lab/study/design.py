"""The design of an experiment: what is varied, which combinations are run, how often and in which order.

Invariant: a design holds no results and starts nothing; the same design and seed give the same order of runs on every
machine. How a run is made and what a report shows of the runs is the experiment's (`experiment.Study`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from wherry.lab.interleave import interleaved
from wherry.lab.study.levels import Combination, Factor


class Design(ABC):
    """Subclasses name the factors and the combinations; `lacks` says what the measuring machine cannot do."""

    name: str
    repetitions: int = 10
    quick_repetitions: int = 3
    warmups: int = 1
    """Runs of each combination that a session begins with and that do not count; none with --quick."""
    seed: int = 20_061

    def __init__(self, quick: bool, unavailable: Mapping[str, str] | None = None) -> None:
        """`lacks` maps what this machine cannot do to the reason (see `requirements.lacking`)."""
        self.quick = quick
        self.unavailable = dict(unavailable or {})

    @abstractmethod
    def factors(self) -> Sequence[Factor]:
        """What is varied; levels that are left out are named with the reason."""

    @abstractmethod
    def combinations(self) -> Sequence[Combination]:
        """The combinations that are run."""

    def without_move(self, combination: Combination) -> Combination | None:
        """For a combination with a move, the one without; None where their results are not compared.

        A run whose `RESULT` is none of those that count there does not count.
        """
        return None

    def default_repetitions(self) -> int:
        """How often each combination is run when `--reps` does not say."""
        return self.quick_repetitions if self.quick else self.repetitions

    def default_warmups(self) -> int:
        """How often a session runs each of its combinations before those that count."""
        return 0 if self.quick else self.warmups

    def turn(self, number: int) -> list[Combination]:
        """The combinations in the order of turn `number`."""
        return interleaved(self.combinations(), f"{self.seed}/{self.name}/{number}")
