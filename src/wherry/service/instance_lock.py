"""The lock that admits one daemon per instance, and another that admits one standby.

Invariant: the daemon is the process that holds the lock on the file named `run/lock`, the standby who holds the one on
`run/standby`. The kernel releases the lock when the process dies, however it dies. The file holds the process id of the
holder.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance

LEADER, STANDBY = "lock", "standby"
"""Names of the files."""
_TRY_SECONDS, _LOOKED_AT_SECONDS = 0.5, 30.0
"""Seconds for which a lock is tried that a process has for itself; and a lock that clients only look at, who hold it
for an instant, and longer when they get no processor."""


class InstanceLock:
    """Held from construction until `release` or the end of the process. WRONG_STATE when another process has it and
    does not release it within `patience` seconds."""

    def __init__(self, instance: Instance, name: str = LEADER, patience: float = _TRY_SECONDS) -> None:
        path = instance.run / name
        self._patience = patience
        while True:
            instance.run.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not self._acquire():
                os.close(self._file)
                why = f"process {_holder(path) or '?'} holds {path}"
                what = f"a {'daemon' if name == LEADER else 'standby'} of this instance runs already"
                raise Refused(Code.WRONG_STATE, what, why, "wherry daemon stop")
            if self._is_named(path):
                break
            os.close(self._file)  # a purge, which held it, has removed the file: the next holder locks a new one
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def _acquire(self) -> bool:
        """Tries for a moment: clients hold a shared lock for an instant to find out whether a daemon runs."""
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                waited = time.monotonic() - began
                if waited >= self._patience and (waited >= _LOOKED_AT_SECONDS or not self._is_looked_at()):
                    return False
                time.sleep(0.02)

    def _is_looked_at(self) -> bool:
        """Whether its holders share it, as clients do."""
        if not self._patience:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def _is_named(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Releases the lock. The file stays: if it were removed, two processes could lock two files."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def leader_of(instance: Instance) -> int:
    """Process id that the holder of the instance's lock has written; 0 when there is none. It may be a dead one's."""
    text = _holder(instance.run / LEADER)
    return int(text) if text.isdecimal() else 0


def holder_text(pid: int) -> str:
    """A process as a lease names it: its id, and when it started, in ticks since boot."""
    return json.dumps({"process": pid, "started": _started(pid)})


def _started(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def is_held(instance: Instance, name: str = LEADER) -> bool:
    """Whether a process has the lock now. Leaves no file open."""
    try:
        with open(instance.run / name) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _holder(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
