"""/proc/meminfo and /proc/cpuinfo of a node: lxcfs shows each node its own memory and processors there.

    RUN/lxcfs/
      users/NODE@HOST    placements that have it; when the last one leaves it is ended and removed
      mount/             the file system of lxcfs
      pid lock log       of its process

lxcfs finds the cgroup of the first process of the reader's node. Every node has mounts at both paths: where there is no
lxcfs they show the machine's own files, so a node can go to such a host and back.
Invariants: lxcfs outlives the daemon and is found again by its file, without a cgroup, which hosts of tests have in
common. A dead lxcfs is restarted for the next placement, and a node that had its files has those of the new one after
its next move.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from wherry.base.paths import Instance, native_program
from wherry.fabric.recorded_process import RecordedProcess
from wherry.node.container.mounts import remove_tree, unmount_below

PROGRAM = "lxcfs"
FILES = ("/proc/meminfo", "/proc/cpuinfo")
_FUSE = Path("/dev/fuse")
_START_SECONDS = 30.0
_NEVER_KILLED = "-1000"
"""All nodes lose their files with it, so a machine without memory ends something else."""
_lock = threading.Lock()
_failures: dict[Path, str] = {}
"""Why it did not start, by directory."""


@dataclass(frozen=True)
class ShownProc:
    """The lxcfs in `directory`."""

    directory: Path

    @property
    def mount(self) -> Path:
        """Where its files are."""
        return self.directory / "mount"

    def obstacle(self) -> str:
        """Why nodes see the machine's files; empty when they see their own."""
        return obstacle() or _failures.get(self.directory, "")

    def join(self, user: str) -> None:
        """Starts it for this placement, unless it runs. Where it does not start nodes see the machine's files."""
        with _lock:
            users = self.directory / "users"
            users.mkdir(parents=True, exist_ok=True, mode=0o700)
            (users / user).touch()
            if obstacle() or (self._process().pid() is not None and self._shows()):
                return
            self._end()
            why = self._start()
            if why and not _failures.get(self.directory):
                logging.warning("nodes see the machine's memory in /proc/meminfo: lxcfs did not start: %s", why)
            _failures[self.directory] = why

    def leave(self, user: str) -> None:
        """Removes it, if no other placement has it. Idempotent."""
        with _lock:
            users = self.directory / "users"
            (users / user).unlink(missing_ok=True)
            if users.exists() and not os.listdir(users):
                self._end()
                remove_tree(self.directory)

    def remove(self) -> None:
        """Removes it, also from placements that have it."""
        with _lock:
            self._end()
            remove_tree(self.directory)

    def mounts(self) -> dict[str, str]:
        """The path of this machine that a node sees at each of the paths."""
        shows = self._shows()
        return {path: f"{self.mount}{path}" if shows else path for path in FILES}

    def _shows(self) -> bool:
        return os.path.ismount(self.mount) and all(os.path.exists(f"{self.mount}{path}") for path in FILES)

    def _process(self) -> RecordedProcess:
        return RecordedProcess(self.directory / "pid")

    def _end(self) -> None:
        self._process().end()
        unmount_below(self.mount)

    def _start(self) -> str:
        """Why it did not start; empty when it did."""
        self.mount.mkdir(exist_ok=True)
        ours = [str(native_program("wherry-ns")), "--number", str(self.directory / "pid"), "--"]
        theirs = [PROGRAM, "-f", "-u", "--enable-cfs", "-p", str(self.directory / "lock"), str(self.mount)]
        with open(self.directory / "log", "wb") as log:
            child = subprocess.Popen(
                [*ours, *theirs], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        with contextlib.suppress(OSError):  # without CAP_SYS_RESOURCE
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(_NEVER_KILLED)
        deadline = time.monotonic() + _START_SECONDS
        while not self._shows():
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                self._end()
                said = (self.directory / "log").read_text(errors="replace").splitlines()
                return said[-1] if said else f"it ended with code {child.returncode}"
            time.sleep(0.01)
        return ""


def of(instance: Instance) -> ShownProc:
    """That of an instance at this machine."""
    return ShownProc(instance.run / "lxcfs")


def obstacle() -> str:
    """Why there is no lxcfs at this machine; empty when there is one."""
    if not shutil.which(PROGRAM):
        return "lxcfs is not installed"
    return "" if _FUSE.exists() else "this machine has no /dev/fuse"
