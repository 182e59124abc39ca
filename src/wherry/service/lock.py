"""One daemon per instance.

Invariant: who holds the lock on `run/lock` is the daemon; the kernel releases it when the process dies, however it
dies. The file holds the process id of the holder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance


class InstanceLock:
    """Held from construction until `release` or the end of the process. WRONG_STATE when another process has it."""

    def __init__(self, instance: Instance) -> None:
        instance.run.mkdir(mode=0o711, parents=True, exist_ok=True)
        path = instance.run / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            why = f"process {_holder(path) or '?'} holds {path}"
            what = "a daemon of this instance runs already"
            raise Refused(Code.WRONG_STATE, what, why, "wherry daemon stop") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Lets another process have it. The file stays, as removing it would let two processes lock two files."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def _holder(path: Path) -> str:
    return path.read_text().strip()
