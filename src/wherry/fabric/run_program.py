"""Runs short programs such as `tc` and `wg`, and waits for the output of long ones.

Invariant: a short program that does not succeed is a `Failed` with the program's name.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Sequence
from typing import IO

from wherry.base.errors import Code, Failed


def output_of(words: Sequence[str], what: str, remedy: str, given: str | None = None, seconds: float = 20.0) -> str:
    """The standard output of a program. Failed with `what`, its error output and `remedy` when it does not succeed."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, what, f"{words[0]} did not end within {seconds:g} s", "wherry doctor") from None
    except FileNotFoundError:
        raise Failed(Code.UNSUPPORTED, what, f"{words[0]} is not installed", remedy) from None
    if done.returncode:
        raise Failed(Code.FAILED, what, done.stderr.strip() or f"{words[0]} ended with {done.returncode}", remedy)
    return done.stdout


def succeeds(words: Sequence[str], seconds: float = 20.0) -> bool:
    """True when a program that tries something ends with 0. Failed when it does not end, which proves nothing."""
    try:
        return subprocess.run(words, capture_output=True, timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        what, why = f"{' '.join(words)} did not end", f"waited {seconds:g} s, as on a busy machine"
        raise Failed(Code.TIMED_OUT, what, why, "repeat the command") from None


def readable(pipe: IO[bytes], seconds: float) -> bool:
    """True when the pipe has data or has ended, within `seconds`. With poll(2), as select(2) takes descriptors below
    1024 only, and a daemon has one for each port."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
