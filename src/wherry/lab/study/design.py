"""The design of an experiment: factors, treatments (combinations of levels), repetitions and the order of runs.

Invariant: a design holds no results and starts nothing; the order of runs depends on design and seed alone. Making a
run and reporting are defined by `experiment.Study`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from wherry.lab.interleave import interleaved
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.own_hosts import OwnHosts, require_runs_there
from wherry.lab.study.settings import Setting, T, resolve


class Design(ABC):
    """A randomised complete block design: a turn is a block, in which each combination is run once in random order."""

    name: str
    repetitions: int = 10
    quick_repetitions: int = 3
    warmups: int = 1
    """Warm-up runs of each combination at the start of a session, which do not count; none with --quick."""
    seed: int = 20_061
    settings: ClassVar[tuple[Setting[Any], ...]] = ()
    """The settings that a user may give."""
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {}
    """This study's options of `ranks`, `sites` and `hosts`, and the settings that each stands for."""
    why_not_on_own_hosts: ClassVar[str] = "it is made for emulated hosts"
    """Why it cannot be run on hosts of the user; empty where it can."""

    def __init__(
        self,
        quick: bool,
        unavailable: Mapping[str, str] | None = None,
        given: Mapping[str, str] | None = None,
        paper: bool = False,
        recorded: Mapping[str, Any] | None = None,
        own_hosts: OwnHosts | None = None,
    ) -> None:
        """`unavailable` maps features that this machine lacks to the reason (see
        `requirements.unavailable_features`); `given` are values of settings, the others are those of the `paper`, of
        --quick or in full. Refused (USAGE) for a bad one. `recorded` are all values of a study that was begun before,
        by the version of that time: they are not checked again, and settings that are newer have this version's.
        `own_hosts` are the user's, in place of emulated ones; refused (UNSUPPORTED) where they do not do."""
        self.quick, self.paper, self.given = quick, paper, dict(given or {})
        self.unavailable = dict(unavailable or {})
        self.own_hosts = own_hosts
        self._recorded = recorded
        typed = self.given if recorded is None else {}
        self._values = resolve(self.name, self.settings, quick, paper, typed)
        self._values |= {name: value for name, value in (recorded or {}).items() if name in self._values}
        if recorded is None:
            self.require_compatible_settings()
        if own_hosts:
            require_runs_there(self.name, self.why_not_on_own_hosts)
            self.require_own_hosts(own_hosts)

    def require_compatible_settings(self) -> None:  # noqa: B027 (most have none)
        """Refuses (USAGE) settings that are right each and do not go together; there are none by default."""

    def require_own_hosts(self, hosts: OwnHosts) -> None:  # noqa: B027 (most run on none)
        """Refuses (UNSUPPORTED) hosts of the user that are too few or too small."""

    def used_hosts(self) -> int:
        """So many of the user's hosts are used, the first ones of their file."""
        return len(self.own_hosts.spec.hosts) if self.own_hosts else 0

    def value(self, setting: Setting[T]) -> T:
        """That of a setting of this design."""
        value: T = self._values[setting.name]
        return value

    def values(self) -> dict[str, Any]:
        """The value of each setting, by its name."""
        return dict(self._values)

    def numbers(self, setting: Setting[str]) -> tuple[str, ...]:
        """Those of a setting of NUMBERS, in order, as names of levels."""
        return tuple(self.value(setting).split(","))

    def chosen(self, setting: Setting[str], levels: Iterable[Level]) -> tuple[Level, ...]:
        """A factor's levels; levels that a setting of NAMES does not name are left out."""
        named, why = self.value(setting).split(","), f"not among `{setting.name}`"
        return tuple(
            level if level.name in named else replace(level, left_out=level.left_out or why) for level in levels
        )

    def lacking(self, **more: str) -> Self:
        """The same design on a machine that lacks more."""
        lacks = {**self.unavailable, **more}
        return type(self)(self.quick, lacks, self.given, self.paper, self._recorded, self.own_hosts)

    def changed_settings(self) -> dict[str, tuple[str, str]]:
        """Settings with another value than usual: that value, and the usual one."""
        return {
            setting.name: (setting.shown(self.value(setting)), setting.shown(setting.default(self.quick, False)))
            for setting in self.settings
            if self.value(setting) != setting.default(self.quick, False)
        }

    @abstractmethod
    def factors(self) -> Sequence[Factor]:
        """The factors with all their levels; levels that are not measured have a reason."""

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

    def repetitions_of(self, combination: Combination, asked: int) -> int:
        """Runs of a combination in a study that is `asked` for so many of each."""
        return asked

    def default_warmups(self) -> int:
        """Warm-up runs of each combination in a session."""
        return 0 if self.quick else self.warmups

    def warms_up(self, combination: Combination) -> bool:
        """Whether a combination has warm-up runs: a program that runs for long is warm most of the time."""
        return True

    def turn(self, number: int) -> list[Combination]:
        """The order of runs of turn (block) `number`."""
        return interleaved(self.combinations(), f"{self.seed}/{self.name}/{number}")
