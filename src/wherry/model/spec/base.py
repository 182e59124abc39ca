"""Shared by all specs: the base model, quantities, names, suggestions for misspelt words.

Invariant: sizes, durations and rates have units; the error for a bare number shows how to write it.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from wherry.base.units import parse_duration, parse_rate, parse_share, parse_size

MOST_SITES, MOST_HOSTS = 512, 1024
"""Of a fabric."""
NAME = re.compile(r"[a-z][a-z0-9]{0,14}(-[a-z0-9]+)*")


def size_of(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else _needs_unit(value, "512MiB")


def duration_of(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else _needs_unit(value, "30s")


def _rate(value: object) -> object:
    return parse_rate(value) if isinstance(value, str) else _needs_unit(value, "100Mbit/s")


def _share(value: object) -> object:
    return parse_share(value) if isinstance(value, str) else value


def _needs_unit(value: object, example: str) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write it as {example}")
    return value


def name_of(value: str) -> str:
    if not NAME.fullmatch(value) or len(value) > 20:
        raise ValueError(
            f"{value!r} is not a name: at most 20 lower-case letters, digits and inner hyphens, a letter first"
        )
    return value


def _interface(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", value):
        raise ValueError(
            f"{value[:40]!r} is not a name of a network interface: at most 15 letters, digits, '_', '.', '-'"
        )
    return value


Size = Annotated[int, BeforeValidator(size_of)]
Duration = Annotated[float, BeforeValidator(duration_of)]
Rate = Annotated[int, BeforeValidator(_rate)]
Share = Annotated[float, BeforeValidator(_share)]
Name = Annotated[str, BeforeValidator(lambda v: name_of(v) if isinstance(v, str) else v)]
Interface = Annotated[str, AfterValidator(_interface)]
"""The name of a network interface of Linux."""
ShortText = Annotated[str, Field(min_length=1, max_length=64)]


class Spec(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def require_unique(noun: str, names: list[str]) -> set[str]:
    """The names as a set. ValueError when one is given twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {noun}s are named {name!r}")
    return set(names)


def nearest(word: str, known: set[str] | list[str]) -> str:
    """The end of an error about an unknown word: the most similar known word, or all known words."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(sorted(known))})"
