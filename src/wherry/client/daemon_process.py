"""The daemon as a process: whether there is one, starting and stopping it, and its two acts that need none running.

Invariant: who holds the lock on `run/lock` is the daemon, whatever files or sockets lie about; so `stop` works also
for a daemon of another version, and for one that does not answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from wherry.base.errors import Code, LostContact, Refused, from_dict
from wherry.base.paths import Instance, as_root

_START = 20.0
_STOP = 40.0
"""Seconds for what is under way to come to an end after SIGTERM, before SIGKILL."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "COVERAGE_PROCESS_CONFIG")
"""Variables that the daemon takes over beside those of Wherry: it serves every later user, not only who started it.
The last one is set only while tests measure their coverage, which is the daemon's, too."""
_LOG_LINES = 8


def answers(instance: Instance) -> bool:
    """True when something listens at the socket. PERMISSION when this user may not connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(instance.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except PermissionError:
            raise _needs_root("this user may not use the daemon", str(instance.socket)) from None
    return True


def holder(instance: Instance) -> int | None:
    """Process id of the daemon, also of one that does not answer yet; None when there is none."""
    try:
        with open(instance.run / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or 0) or None
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError:
        raise _needs_root("this user may not use the daemon", str(instance.run)) from None
    return None


def start(instance: Instance, group: str | None = None, resume: bool = False) -> None:
    """Starts the daemon in the background and returns when it answers. Its log's last lines are in the error.

    `resume` is for who was served already: NOT_FOUND when the instance was taken down since.
    """
    if os.geteuid() != 0:
        raise _needs_root("no daemon runs, and starting it needs root", "")
    options = (["--group", group] if group else []) + (["--resume"] if resume else [])
    started = _wherryd("serve", "--detach", *options)
    if started.returncode:
        raise _error(started)
    deadline, seen = time.monotonic() + _START, False
    while not answers(instance):
        here = holder(instance) is not None
        if time.monotonic() > deadline or (seen and not here):
            what = "the daemon is not ready yet" if here else "the daemon did not start"
            raise LostContact(Code.UNREACHABLE, what, _log_end(instance), f"see {instance.state / 'log'}")
        seen = seen or here
        time.sleep(0.05)


def stop(instance: Instance) -> int | None:
    """Ends the daemon and returns its process id when it is gone; None when there was none. Nodes and jobs run on."""
    pid = holder(instance)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        for number, seconds in ((signal.SIGTERM, _STOP), (signal.SIGKILL, 10.0)):
            signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], seconds)[0]:
                return pid
    except ProcessLookupError:
        return pid
    except PermissionError:
        raise _needs_root("this user may not stop the daemon", f"process {pid}") from None
    finally:
        os.close(process)
    raise LostContact(
        Code.TIMED_OUT, "the daemon does not end", f"process {pid} outlived SIGKILL", f"cat /proc/{pid}/stack"
    )


def examine() -> list[dict[str, str]]:
    """What the machine can and cannot do (see `wherry doctor`)."""
    findings: list[dict[str, str]] = _document(_wherryd("doctor"))["findings"]
    return findings


def forbid_resuming(instance: Instance) -> None:
    """Keeps clients that wait from starting the daemon again, until the instance is removed or used anew."""
    try:
        instance.ending.touch()
    except FileNotFoundError:
        return
    except PermissionError:
        raise _needs_root("removing an instance needs root", "") from None


def sweep() -> dict[str, list[str]]:
    """Removes everything of the instance; what it was, by kind. No daemon may run."""
    if os.geteuid() != 0:
        raise _needs_root("removing an instance needs root", "")
    removed: dict[str, list[str]] = _document(_wherryd("sweep"))["removed"]
    return removed


def _wherryd(*words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("WHERRY_")}
    command = [sys.executable, "-P", "-m", "wherry.service.daemon", *words]
    return subprocess.run(
        command, env=kept, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode:
        raise _error(done)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _error(done: subprocess.CompletedProcess[str]) -> Exception:
    try:
        return from_dict(json.loads(done.stdout)["error"])
    except (ValueError, KeyError, TypeError):
        why = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return LostContact(Code.UNREACHABLE, "wherryd did not start", why[0], "make setup")


def _needs_root(what: str, why: str) -> Refused:
    return Refused(Code.PERMISSION, what, why or f"this is user {os.getuid()}", as_root(sys.argv[1:]))


def _log_end(instance: Instance) -> str:
    try:
        lines = (instance.state / "log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return "the end of its log:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
