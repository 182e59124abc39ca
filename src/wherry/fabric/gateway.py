"""A process that is one end of a VPN, in its site's namespace.

It outlives the daemon that started it. Invariant: it is told by the file of its process id, and is ours only when its
command line has a word that nobody else's has: so a daemon that was killed finds it again, and a process that was
given the same number is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.paths import native_program


class Gateway:
    """The process of one side (0 or 1), whether it runs or not. `mark` is the word of its command line."""

    def __init__(self, directory: Path, side: int, netns: str, mark: str) -> None:
        self._log, self._number = directory / f"{side}.log", directory / f"{side}.pid"
        self._netns = netns
        self._mark = mark
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts it; what an earlier one said is forgotten."""
        self._log.unlink(missing_ok=True)
        with open(self._log, "wb") as log:
            self._child = subprocess.Popen(
                inside(self._netns, *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                cwd="/",
            )
        self._number.write_text(str(self._child.pid))

    def pid(self) -> int | None:
        """Its process id while it runs."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None  # reaped
        try:
            pid = int(self._number.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (OSError, ValueError):
            return None
        starts = not words and state != "Z"  # the kernel shows no words while a program takes another's place
        return pid if starts or self._mark.encode() in words else None

    def end(self) -> None:
        """Ends it; also when it does not run."""
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def said(self) -> str:
        """Its output."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def inside(netns: str, *words: str) -> list[str]:
    """The command that runs these words in the namespace at path `netns`."""
    return [str(native_program("wherry-ns")), "--net", netns, "--", *words]
