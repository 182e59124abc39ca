"""A process that is one end of a VPN, in its site's namespace.

It outlives the daemon that started it, and the next one finds it (see `recorded_process`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric.recorded_process import RecordedProcess

START_TIMEOUT = 60.0
"""Seconds within which a gateway must have been executed, which takes milliseconds."""


class Gateway(RecordedProcess):
    """The process of one side (0 or 1), whether it runs or not."""

    def __init__(self, directory: Path, side: int, netns: str) -> None:
        super().__init__(directory / f"{side}.pid")
        self._log = directory / f"{side}.log"
        self._netns = netns

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts the process, and discards the output of an earlier one. Returns when it is recorded or has ended.
        TIMED_OUT when neither happens."""
        for left in (self._log, self._number):
            left.unlink(missing_ok=True)
        with open(self._log, "wb") as log:
            child = self.child = subprocess.Popen(
                inside(self._netns, *words, number=self._number),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._number.exists() and child.poll() is None:
            if time.monotonic() > deadline:
                self.end()
                why = f"waited {START_TIMEOUT:g} s"
                raise Failed(Code.TIMED_OUT, f"the VPN gateway {words[0]} was not started", why, "wherry doctor")
            time.sleep(0.002)

    def output(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def inside(netns: str, *words: str, number: Path | None = None) -> list[str]:
    """The command that runs `words` in the namespace at path `netns`; it writes process id and start time to
    `number`."""
    option = [] if number is None else ["--number", str(number)]
    return [str(native_program("wherry-ns")), "--net", netns, *option, "--", *words]
