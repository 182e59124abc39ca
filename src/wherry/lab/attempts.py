"""Runs that fail, of studies and of benchmarks: why, and when the machine is at fault."""

from __future__ import annotations

import subprocess

from wherry.base.errors import Code, Failed, WherryError

_MOST_IN_A_ROW = 5


def problem_of(error: Exception) -> str:
    """Why the run failed that raised it. KeyboardInterrupt when that was Ctrl-C during a wait for an operation."""
    if isinstance(error, WherryError):
        if error.code == Code.CANCELLED:
            raise KeyboardInterrupt from error
        return str(error)
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not end within {error.timeout:.0f} s"
    return f"{type(error).__name__}: {error}"  # e.g. a full disk, truncated output, a bug


def is_expected(error: Exception) -> bool:
    """Whether its text is all that there is to know; else its traceback is kept."""
    return isinstance(error, WherryError | subprocess.TimeoutExpired)


class FailuresInARow:
    """Ends a measurement after too many: the machine is then likely at fault."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, problem: str) -> None:
        """After each run; without a problem it counts. Failed after too many in a row."""
        self._count = self._count + 1 if problem else 0
        if self._count >= _MOST_IN_A_ROW:
            remedy = "repair it, then repeat the command: it continues here"
            raise Failed(Code.FAILED, f"{self._count} runs in a row failed", problem, remedy)
