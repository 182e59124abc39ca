"""One daemon per instance.

Invariant: who holds the lock on `run/lock` is the daemon; the kernel releases it when the process dies, however it
dies. The file holds the process id of the holder.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance

_PATIENCE = 0.5  # seconds


class InstanceLock:
    """Held from construction until `release` or the end of the process. WRONG_STATE when another process has it."""

    def __init__(self, instance: Instance) -> None:
        instance.run.mkdir(mode=0o711, parents=True, exist_ok=True)
        path = instance.run / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._taken():
            os.close(self._file)
            why = f"process {_holder(path) or '?'} holds {path}"
            what = "a daemon of this instance runs already"
            raise Refused(Code.WRONG_STATE, what, why, "wherry daemon stop")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def _taken(self) -> bool:
        """Tries for a moment, as clients hold a shared lock for an instant to see whether a daemon is there."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.02)

    def release(self) -> None:
        """Lets another process have it. The file stays, as removing it would let two processes lock two files."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def _holder(path: Path) -> str:
    return path.read_text().strip()
