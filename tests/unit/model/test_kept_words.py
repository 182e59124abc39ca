"""The part of a command line that a row keeps."""

from __future__ import annotations

import pytest

from wherry.model.kept_words import KEPT, kept_words


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
