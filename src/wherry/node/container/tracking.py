"""How writes of a node are tracked while its memory is sent in rounds (native/pager/tracking.h).

The best way that the kernel has, or the way in WHERRY_TRACKING, for tests and benchmarks. Each way finds every page;
they differ in how long the node is frozen and in the cost of the rounds.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wherry.base.paths import native_program
from wherry.base.remembered import Undecided, remembered

VARIABLE = "WHERRY_TRACKING"
_PROBE_TIMEOUT = 60.0
"""Seconds for an answer that takes milliseconds. A late answer is asked for again in the next move."""


class Tracking(StrEnum):
    """The best first."""

    WP_ASYNC = "wp-async"
    COMPARISON = "comparison"

    @property
    def engine(self) -> str:
        """The name in forecasts of the pager that tracks so: a forecast uses moves by the same engine."""
        return "pager" if self == Tracking.WP_ASYNC else f"pager-{self}"


@dataclass(frozen=True)
class Probed:
    """The ways of the kernel: the best one, or None because of `obstacle`; why each better one is not there."""

    tracking: Tracking | None
    obstacle: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)


def chosen() -> Probed:
    """The way in which nodes of this process are tracked."""
    return probed(os.environ.get(VARIABLE, ""))


@remembered()
def probed(name: str = "") -> Probed:
    """The best way of this machine's kernel; whether it has the named one."""
    try:
        said, obstacle = _said("send", *(("--tracking", name) if name else ()), "--probe")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Undecided(Probed(None, str(error)), str(error)) from None
    if obstacle:
        return Probed(None, obstacle)
    best, *others = said.splitlines()
    return Probed(Tracking(best), lacks=dict(line.split(": ", 1) for line in others))


@remembered()
def receiver_obstacle() -> str:
    """Why this machine's kernel does not let the pager give restored processes their memory; empty when it does. That
    needs no tracking."""
    try:
        return _said("receive", "--probe")[1]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Undecided(str(error), str(error)) from None


def _said(*words: str) -> tuple[str, str]:
    """The output of `wherry-pager`, and why it fails. TimeoutExpired or OSError when there is none."""
    command = [str(native_program("wherry-pager")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False)
    if done.returncode:
        return "", "; ".join(done.stderr.splitlines()) or f"exit code {done.returncode}"
    return done.stdout, ""
