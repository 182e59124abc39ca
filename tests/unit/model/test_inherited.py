"""Properties that programs inherit from the command that starts them, and the part of a command line in a row."""

from __future__ import annotations

import os
import resource

import pytest
from pydantic import ValidationError

from wherry.client import identity
from wherry.model.inherited import Inherited
from wherry.model.kept_words import KEPT, kept_words


def test_the_agent_reads_it_as_text() -> None:
    assert Inherited().text == "umask=18"
    limits = {"core": (0, None), "stack": (None, None), "nofile": (7, 8)}
    wanted = "umask=63,nice=-5,core=0:unlimited,stack=unlimited:unlimited,nofile=7:8"
    assert Inherited(umask=0o77, nice=-5, limits=limits).text == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"umask": 0o1000},
        {"nice": 20},
        {"limits": {"nproc": (1, 1)}},
        {"limits": {"core": (2, 1)}},
        {"limits": {"core": (None, 1)}},
        {"limits": {"core": (-1, 1)}},
    ],
)
def test_what_no_process_has_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Inherited.model_validate(wrong)


def test_a_command_says_what_it_has() -> None:
    before = os.umask(0o27)
    try:
        found = Inherited.model_validate(identity.inherited())
    finally:
        os.umask(before)
    assert found.umask == 0o27 and found.nice == os.getpriority(os.PRIO_PROCESS, 0)
    assert found.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert os.umask(before) == before


# The part of a command line that a row keeps.


@pytest.mark.parametrize("words", [(), ("true",), ("a", "", "b c"), ("x" * (KEPT - 1),), ("",) * KEPT])
def test_a_short_command_line_is_kept(words: tuple[str, ...]) -> None:
    assert kept_words(words) == (words, 0)


@pytest.mark.parametrize(
    ("words", "kept", "left"),
    [
        (("prog", "x" * KEPT, "yz"), ("prog", "x" * (KEPT - 5) + "…"), 5 + 1 + 3),
        (("x" * (KEPT - 1), "y"), ("x" * (KEPT - 1), "…"), 2),
        (("x" * KEPT,), ("x" * KEPT + "…",), 1),
        (("",) * (KEPT + 1), (*("",) * KEPT, "…"), 1),
    ],
)
def test_of_a_long_one_the_beginning_is_kept(words: tuple[str, ...], kept: tuple[str, ...], left: int) -> None:
    assert kept_words(words) == (kept, left)
