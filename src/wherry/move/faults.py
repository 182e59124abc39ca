"""Fault injection at a phase of a move, for system tests.

Invariant: faults are refused unless the daemon runs with WHERRY_FAULTS=1. A fault strikes at the end of its phase, when
most has to be rolled back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wherry.base.errors import Code, Failed, Refused
from wherry.model.records import Phase

_KINDS = ("fail", "kill", "pause")
_LOOK = 0.05
"""Seconds between two looks of a pause, as of every step."""


def _unwatched() -> None:
    """The `look` of a pause that nothing ends."""


@dataclass
class Fault:
    """A fault that strikes once; without a `kind` it does nothing."""

    phase: str = ""
    kind: str = ""
    seconds: float = 0.0
    struck: bool = field(default=False, init=False)

    def strike(self, phase: Phase, look: Callable[[], object] = _unwatched) -> None:
        """Raises, kills this process or pauses, if `phase` is the fault's. What `look` raises ends a pause."""
        if phase != self.phase or self.struck:
            return
        self.struck = True
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "pause":
            until = time.monotonic() + self.seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK))
                look()
        if self.kind == "fail":
            raise Failed(Code.FAILED, f"a fault was injected at {phase}", "WHERRY_FAULTS=1")


def parse_fault(text: str | None) -> Fault:
    """Parses `"restore:fail"`, `"commit:kill"` or `"rounds:pause:2.5"`; None is no fault. Refused when it is
    invalid."""
    if not text:
        return Fault()
    if os.environ.get("WHERRY_FAULTS") != "1":
        why = "the daemon runs without WHERRY_FAULTS=1"
        raise Refused(Code.UNSUPPORTED, "faults are for tests", why, "leave the fault out")
    phase, _, rest = text.partition(":")
    kind, _, seconds = rest.partition(":")
    known = [str(p) for p in Phase if p not in (Phase.DONE, Phase.ROLLED_BACK)]
    try:
        fault = Fault(phase, kind, float(seconds or 0))
    except ValueError:
        fault = Fault()
    if fault.phase not in known or fault.kind not in _KINDS or (kind == "pause") != bool(seconds):
        why = f"PHASE:KIND; phases {', '.join(known)}; kinds fail, kill, pause:SECONDS"
        raise Refused(Code.USAGE, f"{text!r} is not a fault", why, "restore:fail is one")
    return fault
