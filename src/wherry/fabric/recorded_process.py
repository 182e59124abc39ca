"""A process that outlives the daemon that started it, found again by a file with its process id and start time.

Invariant: `wherry-ns` writes the file before it executes the program. So a daemon finds the process whenever its
predecessor was killed, and does not take a later process with the same id for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from wherry.base.errors import Code, Failed

_KILLED = 60.0
"""Seconds that a process may take to end after SIGKILL; it takes milliseconds."""


class RecordedProcess:
    """The process of one file, whether it runs or not."""

    def __init__(self, number: Path) -> None:
        self._number = number
        self.child: subprocess.Popen[bytes] | None = None
        """The process if this object's owner started it, to be reaped here."""

    def pid(self) -> int | None:
        """Its process id; None when it does not run."""
        child = self.child
        if child is not None and child.poll() is not None:
            self.child = None  # `poll` has reaped it
        with self._opened() as found:
            return found[0] if found else None

    def end(self, grace: float = 0.0) -> None:
        """Kills the process unless it ends within `grace` seconds. TIMED_OUT when it outlives SIGKILL."""
        with self._opened() as found:
            if found is not None and not _ended(found[1], grace):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(found[1], signal.SIGKILL)
                if not _ended(found[1], _KILLED):
                    raise _unkillable(found[0])
        child, self.child = self.child, None  # another thread's `pid` may set it to None
        if child is not None:
            child.kill()  # it has ended, or never wrote its file
            try:
                child.wait(_KILLED)
            except subprocess.TimeoutExpired:
                raise _unkillable(child.pid) from None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[int, int] | None]:
        """The process id with a pidfd, which never refers to another process; None when it does not run."""
        try:
            pid, started = map(int, self._number.read_text().split())
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError):
            yield None
            return
        try:
            yield (pid, descriptor) if _runs_since(pid) == started else None
        finally:
            os.close(descriptor)


def _unkillable(pid: int) -> Failed:
    why = f"it outlived SIGKILL for {_KILLED:g} s"
    return Failed(Code.TIMED_OUT, f"process {pid} could not be ended", why, f"cat /proc/{pid}/stack")


def _ended(descriptor: int, seconds: float) -> bool:
    death = select.poll()
    death.register(descriptor, select.POLLIN)
    return bool(death.poll(seconds * 1000))


def _runs_since(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot (proc(5), fields 3 and 22); None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, IndexError):
        return None
