"""One agent works at a host at a time, and for one daemon: the newest of that daemon ends its predecessor.

Invariant: the holder of the lock on the file `agent` in the instance's directory is the host's agent; its text names
the agent's daemon, also when no agent runs. An agent that was cut off from its daemon does not act beside the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from wherry.agent import guard
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.fabric import named_netns
from wherry.hostlink.entrance import HostSetup

LOG = "agent.log"
"""The agent's log, beside the lock."""
_ENDS = 30.0
"""Seconds that an earlier agent may take to end, which is killed."""


def take_over(setup: HostSetup) -> int:
    """The descriptor that holds the host for this process. Refused when it works for another daemon or under another
    name; Failed when an earlier agent does not end."""
    instance = Instance(setup.instance)
    path = instance.run / "agent"
    while True:
        instance.run.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(lock, setup)
        except BaseException:
            os.close(lock)
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                break
        os.close(lock)  # its agent has left meanwhile
    try:
        known = _read(lock)
        if known and known != _words(setup) and _in_use(instance, known):
            raise _taken(setup, known)
        text = json.dumps({**_words(setup), "pid": os.getpid()}).encode()
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def leave(setup: HostSetup) -> None:
    """Removes the files of this agent, who has the lock, when the instance has nothing at the host any more."""
    instance = Instance(setup.instance)
    if not named_netns.exists(f"{instance.prefix}-{setup.name}"):
        for name in (LOG, *guard.FILES, "agent"):
            (instance.run / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is the daemon's, too
            instance.run.rmdir()


def _lock(lock: int, setup: HostSetup) -> None:
    until = time.monotonic() + _ENDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            known = _read(lock, whole=True)
        if {**known, "pid": 0} != {**_words(setup), "pid": 0}:
            raise _taken(setup, known)
        _kill(known.get("pid"))
        if time.monotonic() > until:
            what = f"host {setup.name} has an agent already"
            raise Failed(Code.WRONG_STATE, what, f"process {known.get('pid')} does not end", "wherry host list")
        time.sleep(0.01)


def _kill(pid: Any) -> None:
    """Kills the process, if it is an agent: the file may be older than it."""
    if not isinstance(pid, int) or pid < 2 or pid == os.getpid():
        return
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if b"wherry.agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _words(setup: HostSetup) -> dict[str, Any]:
    return {"identity": setup.identity, "host": setup.name}


def _read(lock: int, whole: bool = False) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(lock, 4096, 0) or b"{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return found if whole else {name: word for name, word in found.items() if name != "pid"}


def _in_use(instance: Instance, known: dict[str, Any]) -> bool:
    """Whether the host still has objects of an earlier agent."""
    return named_netns.exists(f"{instance.prefix}-{known.get('host')}")


def _taken(setup: HostSetup, known: dict[str, Any]) -> Refused:
    if known.get("identity") == setup.identity:
        what = f"hosts {known.get('host')} and {setup.name} are the same machine"
        return Refused(Code.INVALID_FILE, what, "both are reached at it", "name each machine once in the fabric file")
    what = f"host {setup.name} works for another daemon"
    why = f"the instance {setup.instance} of another machine has it"
    return Refused(Code.WRONG_STATE, what, why, "wherry down --all there, or another WHERRY_INSTANCE here")
