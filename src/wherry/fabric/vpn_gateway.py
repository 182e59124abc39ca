"""A process that is one end of a VPN, in its site's namespace.

It outlives the daemon that started it. Invariant: `wherry-ns` writes the process id and start time into a file before
it executes the gateway. So a daemon finds the gateway whenever its predecessor was killed, and does not take a later
process with the same id for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.paths import native_program


class Gateway:
    """The process of one side (0 or 1), whether it runs or not."""

    def __init__(self, directory: Path, side: int, netns: str) -> None:
        self._log, self._number = directory / f"{side}.log", directory / f"{side}.pid"
        self._netns = netns
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts the process; discards the output of an earlier one."""
        for left in (self._log, self._number):
            left.unlink(missing_ok=True)
        with open(self._log, "wb") as log:
            child = self._child = subprocess.Popen(
                inside(self._netns, *words, number=self._number),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                cwd="/",
            )
        while not self._number.exists() and child.poll() is None:
            time.sleep(0.002)

    def pid(self) -> int | None:
        """Its process id; None when it does not run."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None  # `poll` has reaped it
        try:
            pid, started = map(int, self._number.read_text().split())
            state, since = _stat(pid)
        except (OSError, ValueError):
            return None
        return pid if state != "Z" and since == started else None

    def end(self) -> None:
        """Kills the process, if it runs."""
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child, self._child = self._child, None  # another thread's `pid` may set it to None
        if child is not None:
            child.wait()

    def output(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def _stat(pid: int) -> tuple[str, int]:
    """State of a process, and its start time in clock ticks since the boot (proc(5), fields 3 and 22)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return fields[0], int(fields[19])


def inside(netns: str, *words: str, number: Path | None = None) -> list[str]:
    """The command that runs `words` in the namespace at path `netns`; it writes process id and start time to
    `number`."""
    option = [] if number is None else ["--number", str(number)]
    return [str(native_program("wherry-ns")), "--net", netns, *option, "--", *words]
