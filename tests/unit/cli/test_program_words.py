"""Words behind a program's name are the program's, also without `--`; and no word of ours becomes its."""

from __future__ import annotations

import inspect

import pytest

from wherry.cli import program_words
from wherry.cli.exec import exec_
from wherry.cli.run import run


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("run c -n 2 echo --detach -o json", 4),
        ("run -n 2 c echo", 4),
        ("run -n=2 c echo -n 3", 3),
        ("run c -n2 echo -n", 3),
        ("run c -np 2 --map-by node --detach -x A=b echo", 9),
        ("run --up f -n 2 echo a : -n 1 b", 5),
        ("run --up=f -n 2 echo --up g", 4),
        ("run c -n 1 --launcher-args --tag-output echo", 6),
        ("run c -n 1 a -- b", 4),
        ("exec c-0 ls --help", 2),
        ("exec --wdir / c-0 ls", 4),
    ],
)
def test_the_program_begins_where_mpirun_would_see_it(words: str, before: int) -> None:
    typed = words.split()
    assert program_words.cut(typed) == [*typed[:before], "--", *typed[before:]]


@pytest.mark.parametrize(
    "words",
    ["", "run", "run c", "run c -n 2", "run c -n 2 -- echo --detach", "status c", "run --help", "exec c-0 -- ls"],
)
def test_other_words_stay(words: str) -> None:
    assert program_words.cut(words.split()) == words.split()


def test_every_option_without_a_value_is_known() -> None:
    flags = {
        f"--{name.replace('_', '-')}"
        for command in (run, exec_)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if parameter.default is False
    }
    assert flags == program_words._ALONE - {"--help", "-h", "--version"}
