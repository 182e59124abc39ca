"""Finds the programs of a move that have ended before their time.

A step waits for one program and sees that one's death at once, by its pidfd. The others wait meanwhile for their turn:
their deaths are found here, at each look (every 50 ms of every step), so that no node is frozen, or stays frozen, for a
move that cannot succeed. Invariant: nothing is waited for; an exit code stays for the step that judges it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Protocol


class Watched(Protocol):
    """A program of a move."""

    def problem(self) -> str:
        """How it ended before its time; empty when it has not."""


def first_problem(*programs: Watched | None) -> str:
    """That of the first program that has one; empty when none has."""
    return next((why for program in programs if program and (why := program.problem())), "")


def how_it_ended(process: subprocess.Popen[bytes], told: bool = True) -> str:
    """How a program ended too early; empty while it runs, when it ended well, and when a step has waited for it.

    With `told` exit codes count as well ended: the step that waits for such a program has words for them.
    """
    if process.returncode is not None:
        return ""
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # waited for by another thread just now
        return ""
    if ended is None or (ended.si_code == os.CLD_EXITED and (told or not ended.si_status)):
        return ""
    return how_to_say(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def how_to_say(code: int) -> str:
    """A `returncode` of `subprocess` in words."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
