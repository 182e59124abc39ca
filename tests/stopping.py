"""Stops processes of Wherry for a while, one at a time, as a machine does that gives them no processor.

Of a run of tests (`killed_runs`): the daemons, the agents at hosts, the libvirtds, and the helpers that stay. Not
programs in nodes, nor the tests' own, nor the programs of a move's steps in which a node is frozen: such a step that
hangs is to end after a second (F3), and it hangs if its program is stopped (`node/container/progress_bounds`).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import killed_runs

MODULES = {b"wherry.service.daemon": "wherryd", b"wherry.agent": "agent"}
PROGRAMS = {
    "libvirtd", "virtlogd", "openvpn", "vpnserver", "wireguard-go",
    "wherry-connect", "wherry-hold", "wherry-launch", "wherry-link", "wherry-reap", "wherry-rsh", "wherry-tiles",
}  # fmt: skip
SHORTEST, LONGEST = 5.0, 20.0
"""Seconds for which one is stopped."""
PAUSES = 2.0, 6.0
"""Seconds between two of them, at least and at most."""
RARE, PATIENCE = "wherry-hold", 15.0
"""A program of short life is waited for so long each third time, as it would seldom be met."""
_LOOK = 0.05


def candidates(run: str, instances: set[str]) -> dict[str, list[int]]:
    """The processes of a run and of its instances that may be stopped, by the name of their program; without processes
    that are stopped already."""
    marks = {f"{killed_runs.VARIABLE}={run}".encode(), *(f"WHERRY_INSTANCE={name}".encode() for name in instances)}
    found = dict[str, list[int]]()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            what = _what(_words(pid, "cmdline"))
            if what and _is_of_run(pid, marks) and _stat(pid)[0] not in "TtZX":
                found.setdefault(what, []).append(pid)
    return found


def instances(run: str) -> set[str]:
    """The names that the run has given: a daemon has nothing of the run's environment but its instance's name."""
    return {file.name for file in killed_runs.NAMES.glob("*") if _text(file) == run}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it was removed
        return ""


def _is_of_run(pid: int, marks: set[bytes]) -> bool:
    """Whether it or one of its ancestors is marked: sshd gives its sessions another environment."""
    while pid > 1:
        if not marks.isdisjoint(_words(pid, "environ")):
            return True
        pid = int(_stat(pid)[1])
    return False


def _what(words: list[bytes]) -> str:
    if (name := os.path.basename(words[0]).decode(errors="replace")) in PROGRAMS:
        return name
    modules = [words[number + 1] for number, word in enumerate(words[:-1]) if word == b"-m"]
    what = MODULES.get(modules[0], "") if modules else ""
    return what if what != "wherryd" or b"serve" in words else ""


def _words(pid: int, file: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


class Stopping(threading.Thread):
    """Stops one process after the other until `end`; the same `seed` decides the same, as far as the processes are the
    same. `tell` gets a line for each."""

    def __init__(self, run: str, seed: int, tell: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self._run, self._random, self._tell = run, random.Random(seed), tell  # noqa: S311 - no secret
        self._ending, self._instances = threading.Event(), set[str]()
        self.stopped = dict[str, int]()
        """How often each program was stopped."""

    def run(self) -> None:
        while not self._ending.wait(self._random.uniform(*PAUSES)):
            seconds, which = self._random.uniform(SHORTEST, LONGEST), self._random.random()
            rare, until = self._random.random() < 1 / 3, time.monotonic() + PATIENCE
            found: dict[str, list[int]] = {}
            while not found and not self._ending.wait(_LOOK):
                self._instances |= instances(self._run)  # another run in this checkout gives the same names later
                found = candidates(self._run, self._instances)
                if rare and time.monotonic() < until:
                    found = {what: pids for what, pids in found.items() if what == RARE}
            if found:
                what = sorted(found)[int(which * len(found))]
                self._have_it_stand(what, self._random.choice(found[what]), seconds)

    def end(self) -> None:
        """Continues the stopped process, and returns when it runs."""
        self._ending.set()
        self.join()

    def _have_it_stand(self, what: str, pid: int, seconds: float) -> None:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            words = b" ".join(_words(pid, "cmdline")).decode(errors="replace")
            self._tell(f"{time.strftime('%H:%M:%S')} {what} {pid} stands for {seconds:.1f} s: {words[:100]}")
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            self.stopped[what] = self.stopped.get(what, 0) + 1
            self._ending.wait(seconds)
        except (OSError, ProcessLookupError):
            return
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
            os.close(process)
