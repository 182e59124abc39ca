"""Settings of a study: sizes, classes, moments and counts by name, with values in full, with --quick and of the paper.

Invariant: a study gets only values that passed here, so a bad one is refused before anything is made.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size, parse_duration, parse_size

T = TypeVar("T", int, float, str)
MOST_NUMBERS = 1000
NPB_CLASSES = ("S", "W", "A", "B", "C")
BYTES, SECONDS, COUNT, NUMBERS, NAMES = "bytes", "seconds", "", "numbers", "names"
"""Units; a value of one may have a suffix, such as 8MiB or 1.5s. NUMBERS: several, such as 0-4,15; NAMES: some of the
choices, such as cg,ep."""
LONGEST_WAIT = 1500.0
"""Most seconds from a program's begin to its move: a run ends after half an hour."""
_NUMBER = re.compile(r"\s*([-+]?\d+(?:\.\d+)?(?:e\d{1,3})?)\s*([A-Za-z]*)\s*", re.IGNORECASE)
_LARGEST = 1e15
"""Larger numbers are read as this one."""
_MISTYPED = 0.8
"""Least similarity (difflib's ratio) of a name with a typing error to the right name."""
_PLAIN_BYTES = 1024
"""A size without a unit is taken for bytes from here on."""
_SIZES = ("MiB", "KiB", "GiB", "TiB", "MB", "KB", "GB", "TB", "B")
_TIMES = ("s", "ms", "us", "m", "h", "d")
"""Units by which a text is repaired; the first is that of one without."""


@dataclass(frozen=True)
class Setting(Generic[T]):
    """`paper` is None where the paper has no such value, or the same as `full`; `least` and `most` are the limits
    of the program and of a run's limit of time. `allowed`: the only numbers that the program takes;
    `many`: how many numbers one of NUMBERS has at most."""

    name: str
    text: str
    full: T
    quick: T
    paper: T | None = None
    unit: str = COUNT
    choices: tuple[str, ...] = ()
    least: float = 1
    most: float = float("inf")
    allowed: tuple[int, ...] = ()
    many: int = MOST_NUMBERS

    def default(self, quick: bool, paper: bool) -> T:
        if paper and self.paper is not None:
            return self.paper
        return self.quick if quick else self.full

    def parse(self, typed: str, command: str = "") -> T:
        """Refused (USAGE) for a text that is no value, with the nearest one; `command` is the command of the option."""
        try:
            return self._value(typed)
        except ValueError as error:
            what, next_ = f"{self.name}={typed} is not valid", f"{command}--set {self.name}={self.nearest(typed)}"
            raise Refused(Code.USAGE, what, str(error), next_) from None

    def _value(self, typed: str) -> T:
        value: Any
        if self.unit == NAMES:
            words = names(typed)
            if not words or not set(words) <= set(self.choices):
                raise ValueError(f"it is some of {', '.join(self.choices)}, with commas between")
            value = ",".join(name for name in self.choices if name in words)
            return cast(T, value)
        if self.choices:
            value = typed.upper()
            if value not in self.choices:
                raise ValueError(f"it is one of {', '.join(self.choices)}")
            return cast(T, value)
        if self.unit == NUMBERS:
            found = numbers(typed)
            if len(found) > self.many:
                raise ValueError(f"it is {self.many} numbers at most, not {len(found)}")
            self._check(found[0])
            self._check(found[-1])
            value = several(typed)
            return cast(T, value)
        try:
            if self.unit == BYTES:
                value = parse_size(typed)
            elif self.unit == SECONDS:
                value = parse_duration(typed) if typed[-1:].isalpha() else float(typed)
            else:
                value = type(self.full)(typed)
        except ValueError as error:
            whole = "it is a whole number" if self.unit == COUNT and isinstance(self.full, int) else ""
            raise ValueError(whole or str(error)) from None
        self._check(value)
        return cast(T, value)

    def nearest(self, typed: str) -> str:
        """The valid text that is nearest to an invalid one: a usual value where nothing of it can be read."""
        if self.unit == NAMES:
            near = {_nearest_choice(word, self.choices) for word in names(typed)}
            return ",".join(name for name in self.choices if name in near) or self.shown(self.full)
        if self.choices:
            return _nearest_choice(typed.upper(), self.choices)
        if self.unit == NUMBERS:
            found = {min(max(int(word), self.least), self.most) for word in re.findall(r"\d{1,9}", typed)}
            return _ranges(tuple(sorted(map(int, found)))[: self.many]) if found else self.shown(self.full)
        match = _NUMBER.fullmatch(typed)
        if not match:
            return self.shown(self.full)
        number = math.copysign(min(abs(float(match[1])), _LARGEST), float(match[1]))
        if self.unit != COUNT:
            units = _SIZES if self.unit == BYTES else _TIMES
            plain = self.unit == BYTES and not match[2] and number >= _PLAIN_BYTES
            unit = "B" if plain else _nearest_unit(match[2], units)
            parse = parse_size if self.unit == BYTES else parse_duration
            number = math.copysign(parse(f"{abs(number):f}{unit}"), number)
        elif match[2]:
            return self.shown(self.full)
        if self.allowed:
            return str(min(self.allowed, key=lambda one: abs(one - number)))
        within = min(max(number, self.least), self.most)
        return self.shown(round(within) if isinstance(self.full, int) else within)

    def limits(self) -> str:
        """The possible values, for documents."""
        if self.choices:
            return f"{', '.join(self.choices)}{', several' if self.unit == NAMES else ''}"
        if self.allowed:
            return ", ".join(map(str, self.allowed))
        most = f" to {self._limit(self.most)}" if self.most < float("inf") else " or more"
        several = f", {self.many} at most" if self.many < MOST_NUMBERS else ", several" if self.unit == NUMBERS else ""
        return f"{self._limit(self.least)}{most}{several}"

    def _check(self, value: float) -> None:
        if self.allowed and value not in self.allowed:
            raise ValueError(f"it is one of {', '.join(map(str, self.allowed))}")
        if not self.least <= value <= self.most or value == float("inf"):
            most = f", the largest {self._limit(self.most)}" if self.most < float("inf") else ""
            raise ValueError(f"the least value is {self._limit(self.least)}{most}")

    def _limit(self, value: float) -> str:
        return _plain(value) if self.unit == NUMBERS else self.shown(value)

    def shown(self, value: object) -> str:
        """The value as it is typed."""
        if self.unit == BYTES:
            return _size_text(int(str(value)))
        if self.unit == NUMBERS:
            return _ranges(numbers(str(value)))
        text = _plain(value) if isinstance(value, float) else str(value)
        return f"{text}s" if self.unit == SECONDS else text


def _plain(value: float) -> str:
    """A number as it is typed: with all its digits, and without an exponent."""
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of `0-4,15`, in order, each once. ValueError."""
    found: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or dash and not last.isdecimal() or len(word) > 9:
            raise ValueError("it is numbers and ranges of numbers with commas between, such as 0-4,15")
        one, other = int(first), int(last or first)
        if other < one or other - one > MOST_NUMBERS:
            raise ValueError(f"{word.strip()} is no range of at most {MOST_NUMBERS} numbers")
        found.update(range(one, other + 1))
    return tuple(sorted(found))


def names(text: str) -> tuple[str, ...]:
    """The words of `cg, ep`, in lower case."""
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def several(text: str) -> str:
    """The value of a setting of NUMBERS: `0-2,5` as `0,1,2,5`. ValueError."""
    return ",".join(map(str, numbers(text)))


def _ranges(found: tuple[int, ...]) -> str:
    """Numbers as a user writes them: three or more neighbours as a range."""
    runs: list[list[int]] = []
    for number in found:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _size_text(size: int) -> str:
    """Rounded only where that is the same size."""
    text = format_size(size).replace(" ", "").replace(".0", "")
    return text if parse_size(text) == size else f"{size // 10**6}MB" if size % 10**6 == 0 else f"{size}B"


def _nearest_choice(typed: str, choices: Sequence[str]) -> str:
    """The most similar one, else the nearest in the alphabet."""
    similar = difflib.get_close_matches(typed, choices, 1)
    return similar[0] if similar else min(choices, key=lambda one: abs(ord(one[0]) - ord(typed[0])))


def _nearest_unit(typed: str, units: Sequence[str]) -> str:
    """The unit with the same letters, or whose letters it begins with or are its begin, or the most similar one; else
    the first."""
    lower = typed.lower()
    for alike in (str.__eq__, str.startswith, lambda text, unit: unit.startswith(text)):
        for unit in units:
            if alike(lower, unit.lower()):
                return unit
    return (difflib.get_close_matches(typed, units, 1) or units)[0]


Settings = Mapping[str, Any]
"""Values by name."""


def resolve(
    study: str, settings: Iterable[Setting[Any]], quick: bool, paper: bool, given: Mapping[str, str]
) -> dict[str, Any]:
    """The value of each setting; `given` are texts as a user typed them. Refused (USAGE) with the nearest name."""
    known = {setting.name: setting for setting in settings}
    for name, value in given.items():
        if name not in known:
            near = _nearest_names(name, list(known))
            why = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
            again = f"wherry study run {study} --set {near[0]}={value}" if near else f"wherry study show {study}"
            raise Refused(Code.USAGE, f"the study {study} has no setting {name}", why, again)
    return {
        name: setting.parse(given[name], f"wherry study run {study} ")
        if name in given
        else setting.default(quick, paper)
        for name, setting in known.items()
    }


def _nearest_names(typed: str, names: Sequence[str]) -> list[str]:
    """Names with a part that was typed alone (`class`), else a name with a typing error, else names with the same last
    part (`move.after`), else the most similar name."""
    lower = typed.lower()
    parts = [name for name in names if lower in name.split(".")]
    same_end = [name for name in names if name.rpartition(".")[2] == lower.rpartition(".")[2]]
    mistyped = difflib.get_close_matches(lower, names, 1, _MISTYPED)
    return parts or mistyped or same_end or difflib.get_close_matches(lower, names, 1)


def parse_words(words: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE words by name. Refused (USAGE)."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise Refused(Code.USAGE, f"--set {word} is not valid", "it is NAME=VALUE", "wherry study show NAME")
        found[name] = value
    return found
