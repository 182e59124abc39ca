"""The design of an experiment: factors, treatments (combinations of levels), repetitions and the order of runs.

Invariant: a design holds no results and starts nothing; the order of runs depends on design and seed alone. Making a
run and reporting are defined by `experiment.Study`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from wherry.lab.interleave import interleaved
from wherry.lab.study.levels import Combination, Factor


class Design(ABC):
    """A randomised complete block design: a turn is a block, in which each combination is run once in random order."""

    name: str
    repetitions: int = 10
    quick_repetitions: int = 3
    warmups: int = 1
    """Warm-up runs of each combination at the start of a session, which do not count; none with --quick."""
    seed: int = 20_061

    def __init__(self, quick: bool, unavailable: Mapping[str, str] | None = None) -> None:
        """`unavailable` maps features that this machine lacks to the reason (see
        `requirements.unavailable_features`)."""
        self.quick = quick
        self.unavailable = dict(unavailable or {})

    @abstractmethod
    def factors(self) -> Sequence[Factor]:
        """The factors with all their levels; those that are not measured have a reason."""

    @abstractmethod
    def combinations(self) -> Sequence[Combination]:
        """The treatments that are run."""

    def without_move(self, combination: Combination) -> Combination | None:
        """The combination without a move that the result of this one is compared with; None if it is not compared. A
        run counts only if its RESULT_CHECKSUM is among those of counted runs without a move.
        """
        return None

    def default_repetitions(self) -> int:
        """Repetitions of each combination without `--reps`."""
        return self.quick_repetitions if self.quick else self.repetitions

    def default_warmups(self) -> int:
        """Warm-up runs of each combination in a session."""
        return 0 if self.quick else self.warmups

    def turn(self, number: int) -> list[Combination]:
        """The order of runs of turn (block) `number`."""
        return interleaved(self.combinations(), f"{self.seed}/{self.name}/{number}")
