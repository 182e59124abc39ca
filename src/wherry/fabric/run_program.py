"""Runs short programs such as `tc` and `wg`.

Invariant: a short program that does not succeed is a `Failed` with the program's name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from wherry.base.errors import Code, Failed


def output_of(
    words: Sequence[str],
    what: str,
    remedy: str,
    given: str | None = None,
    seconds: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The standard output of a program. Failed with `what`, its error output and `remedy` when it does not succeed."""
    try:
        done = subprocess.run(
            words, input=given, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, what, f"{words[0]} did not end within {seconds:g} s", "wherry doctor") from None
    except FileNotFoundError:
        raise Failed(Code.UNSUPPORTED, what, f"{words[0]} is not installed", remedy) from None
    if done.returncode:
        raise Failed(Code.FAILED, what, done.stderr.strip() or f"{words[0]} ended with {done.returncode}", remedy)
    return done.stdout


def succeeds(words: Sequence[str], what: str, seconds: float = 20.0) -> bool:
    """True when a program ends with 0. Failed with `what` when it hangs: then nothing is known."""
    try:
        output_of(words, what, "repeat the command", seconds=seconds)
    except Failed as error:
        if error.code == Code.TIMED_OUT:
            raise
        return False
    return True
