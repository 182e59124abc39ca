"""Fault injection at a phase of a move, for system tests.

Invariant: faults are refused unless the daemon runs with WHERRY_FAULTS=1. A fault strikes at the end of its phase, when
most has to be rolled back, or within the transfer, at CRIU's `post-dump`. A pause creates its file when it begins and
ends when that file is gone, so that a test can see and end it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.model.records import Phase

_KINDS = ("fail", "kill", "pause")
_WITHIN = ("post-dump",)
"""The engine's message in a transfer when CRIU has written all and still has the node's processes and connections."""
_LOOK = 0.05
"""Seconds between two looks of a pause, as of every step."""


def _unwatched() -> None:
    """The `look` of a pause that nothing ends."""


@dataclass
class Fault:
    """A fault that strikes once; without a `kind` it does nothing."""

    phase: str = ""
    kind: str = ""
    file: str = ""
    """Of a pause: an absolute path at which nothing is."""
    struck: bool = field(default=False, init=False)

    def strike(self, phase: str, look: Callable[[], object] = _unwatched) -> None:
        """Raises, kills this process or pauses, if `phase` is the fault's. An exception of `look` ends a pause."""
        if phase != self.phase or self.struck:
            return
        self.struck = True
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "pause":
            self._pause(Path(self.file), look)
        if self.kind == "fail":
            raise Failed(Code.FAILED, f"a fault was injected at {phase}", "WHERRY_FAULTS=1")

    @staticmethod
    def _pause(file: Path, look: Callable[[], object]) -> None:
        file.touch(0o600, exist_ok=False)
        try:
            while file.exists():
                look()
                time.sleep(_LOOK)
        finally:
            file.unlink(missing_ok=True)


def parse_fault(text: str | None) -> Fault:
    """Parses `"restore:fail"`, `"commit:kill"` or `"rounds:pause:/run/file"`; None is no fault. Refused when it is
    invalid."""
    if not text:
        return Fault()
    if os.environ.get("WHERRY_FAULTS") != "1":
        why = "the daemon runs without WHERRY_FAULTS=1"
        raise Refused(Code.UNSUPPORTED, "faults are for tests", why, "leave the fault out")
    phase, _, rest = text.partition(":")
    kind, _, file = rest.partition(":")
    known = [*(str(p) for p in Phase if p not in (Phase.DONE, Phase.ROLLED_BACK)), *_WITHIN]
    takes_file = file.startswith("/") if kind == "pause" else rest == kind
    if phase not in known or kind not in _KINDS or not takes_file:
        why = f"PHASE:KIND; phases {', '.join(known)}; kinds fail, kill, pause:FILE"
        raise Refused(Code.USAGE, f"{text!r} is not a fault", why, "restore:fail is one")
    return Fault(phase, kind, file)
