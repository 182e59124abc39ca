"""The daemon as a process: whether one runs, starting and stopping it, and the commands `doctor` and `sweep` that need
none.

Invariant: the daemon is the process that holds the lock on `run/lock`, whatever files or sockets exist. So `stop` works
also for a daemon of another version, and for a daemon that does not answer.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, LostContact, Refused, from_dict
from wherry.base.interrupts import interrupts_held
from wherry.base.paths import REMOTE, Instance, as_root
from wherry.base.remedies import setup
from wherry.base.socket_activation import is_activated, listens
from wherry.base.users import user_name
from wherry.base.wait import readable

_TOLD_SECONDS = 20.0
"""Interval of messages on a terminal while a daemon starts."""
_STOP_SECONDS = 40.0
"""Time between SIGTERM and SIGKILL, for running operations to end."""
_TAKE_OVER_SECONDS = 60.0
"""A standby takes over within ten from a daemon that died, and within forty from one without progress
(`wherry.store.lease`)."""
_PID_SECONDS = 30.0
"""How long a daemon that has just taken the lock may take to write its process id."""
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "COVERAGE_PROCESS_CONFIG")
"""Variables passed to the daemon beside WHERRY_*. It serves all users, so it gets no others of its starter's. The last
is set only while tests measure their coverage."""
_LOG_LINES = 8
_LEAST_ROOM = 64 << 10
"""Bytes: a database and a lock need a few pages."""


def answers(instance: Instance) -> bool:
    """True when a process listens at the socket. PERMISSION when this user may not connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(instance.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (BlockingIOError, TimeoutError):  # its backlog is full
            return True
        except PermissionError:
            raise _needs_root("this user may not use the daemon", str(instance.socket)) from None
    return True


def holder(instance: Instance, name: str = "lock") -> int | None:
    """Process id of the daemon, also if it does not answer yet; of the standby by the name `standby`; None when
    there is none."""
    deadline = time.monotonic() + _PID_SECONDS
    while True:
        try:
            with open(instance.run / name) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    if pid := file.read().strip():
                        return int(pid)
        except FileNotFoundError:
            return None
        except PermissionError:  # users of the daemon need not be root
            return _locker(instance.run / name)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)


def has_ended(instance: Instance) -> bool:
    """Whether no daemon answers, for a client that had one. Where systemd listens, who connects would start another
    one, so the lock is looked at first."""
    return (listens(instance.socket) and holder(instance) is None) or not answers(instance)


def serving(instance: Instance) -> int | None:
    """Process id of the daemon that answers: as `holder`, but a daemon that systemd starts for this client, which may
    have connected before there was one, is waited for."""
    deadline = time.monotonic() + _PID_SECONDS
    while (pid := holder(instance)) is None and listens(instance.socket) and time.monotonic() < deadline:
        time.sleep(0.05)
    return pid


def _locker(path: Path) -> int | None:
    """Process id of who has the lock of a file that this user may not open, as the kernel lists it (proc_locks(5))."""
    try:
        about = path.stat()
        locks = Path("/proc/locks").read_text()
    except FileNotFoundError:
        return None
    except PermissionError:
        raise _needs_root("this user may not use the daemon", str(path.parent)) from None
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    held = [words for words in map(str.split, locks.splitlines()) if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"]]
    return next((int(words[4]) for words in held if words[5] == name), None)


def start_standby(instance: Instance, group: str | None = None) -> None:
    """Starts a second daemon, which waits for the place of the first. WRONG_STATE when there is one already."""
    if os.geteuid() != 0:
        raise _needs_root("starting a daemon needs root", "")
    if running := holder(instance, "standby"):
        what, why = "a standby runs already", f"process {running}"
        raise Refused(Code.WRONG_STATE, what, why, "wherry daemon status")
    leader = holder(instance)
    if is_activated(leader) if leader else listens(instance.socket):
        what, why = "a standby cannot take the place of this daemon", f"systemd listens at {instance.socket}"
        raise Refused(Code.WRONG_STATE, what, why, "systemctl disable --now wherryd.socket wherryd; then again")
    started = _wherryd("serve", "--detach", "--standby", *(["--group", group] if group else []))
    if started.returncode:
        raise _error(started)


def _taken_over(instance: Instance) -> bool:
    """True once a standby answers in place of a daemon that died; false when there is none, or it does not."""
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while holder(instance, "standby") is not None or holder(instance) is not None:
        if answers(instance):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return False


def _awaited(instance: Instance) -> bool:
    """True once the daemon answers; false when no process has its lock. A daemon that starts is waited for as long as
    it lives: hosts that are silent and moves that are rolled back or finished delay it."""
    began = time.monotonic()
    told = began
    while not answers(instance):
        pid, now = holder(instance), time.monotonic()
        if pid is None:
            return False
        if now - told >= _TOLD_SECONDS and sys.stderr.isatty():
            told = now
            text = f"the daemon (process {pid}) is not ready yet after {now - began:.0f} s; it may have moves to finish"
            print(f"{text} or hosts to wait for (see {instance.state / 'log'})", file=sys.stderr, flush=True)
        time.sleep(0.05)
    return True


def start(instance: Instance, group: str | None = None, resume: bool = False) -> None:
    """Starts the daemon in the background and returns when it answers; a daemon that starts already, or a standby, is
    waited for instead, as long as it lives. The error has the end of its log.

    With `resume`, for a client whose daemon has ended: TAKEN_DOWN when the instance was removed meanwhile. WRONG_STATE
    when another starter's daemon was first, and does not serve `group`.
    """
    if resume:
        _require_not_removed(instance)
    if not (holder(instance, "standby") is not None and _taken_over(instance)) and not _awaited(instance):
        _start_one(instance, group, resume)
    if group and not _serves(instance, group):
        raise group_refused(group)


def _start_one(instance: Instance, group: str | None, resume: bool) -> None:
    if resume:  # perhaps while an earlier one was waited for
        _require_not_removed(instance)
    if os.geteuid() != 0:
        raise _needs_root("no daemon runs, and starting it needs root", "")
    if sys.stderr.isatty():  # it takes a second or two
        print("starting the daemon wherryd", file=sys.stderr, flush=True)
    options = (["--group", group] if group else []) + (["--resume"] if resume else [])
    started = _wherryd("serve", "--detach", *options)
    if started.returncode:
        if resume:  # the daemon looks again, and who removes an instance is known here
            _require_not_removed(instance)
        raise _error(started)
    if not _awaited(instance):  # a daemon that was started has the lock by now
        if resume:
            _require_not_removed(instance)
        why, remedy = _log_end(instance), f"see {instance.state / 'log'}"
        if full := _without_room(instance):
            why, remedy = f"{full} is full, so its log has no more details", f"df -h {full}"
        raise LostContact(Code.UNREACHABLE, "the daemon did not start", why, remedy)


def group_refused(group: str) -> Refused:
    """The error for a group that the running daemon was not started with."""
    what = "the daemon runs already, so its group cannot be chosen"
    return Refused(Code.WRONG_STATE, what, "", f"wherry daemon stop && wherry daemon start --group {group}")


def _serves(instance: Instance, group: str) -> bool:
    """True when the daemon's socket is open to this group."""
    try:
        found = instance.socket.stat()
    except FileNotFoundError:  # that daemon has ended again
        return False
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid == grp.getgrnam(group).gr_gid


def stop(instance: Instance) -> int | None:
    """Ends the standby and the daemon, and returns the daemon's process id when it is gone; None when there was none.
    Nodes and jobs run on."""
    standby = holder(instance, "standby")
    if standby is not None:  # first: it would take over
        _end(standby)
    pid = holder(instance)
    return None if pid is None else _end(pid)


def _end(pid: int) -> int:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, 60.0)):
            signal.pidfd_send_signal(process, number)
            if readable(process, seconds):
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
    """The findings of `wherry doctor`."""
    findings: list[dict[str, str]] = _document(_wherryd("doctor"))["findings"]
    return findings


def install() -> dict[str, Any]:
    """Has the packages that Wherry runs installed, and a CRIU found that works: their names, and its version."""
    return _document(_wherryd("install"))


def taken_down_by(instance: Instance) -> str:
    """That the instance is being removed or was, and by whom if that is known; empty when it is not."""
    taken = "its clusters were taken down"
    try:
        return f"{taken} by {instance.ending.read_text() or 'root'} (wherry down --all)"
    except (FileNotFoundError, PermissionError):
        return "" if instance.keeps_records() else f"{taken} (wherry down --all)"


def _require_not_removed(instance: Instance) -> None:
    if by := taken_down_by(instance):
        raise Refused(Code.TAKEN_DOWN, f"instance {instance.name} was removed", by, "wherry up FILE")


def forbid_resuming(instance: Instance) -> None:
    """Keeps waiting clients from starting the daemon again, until the instance is removed or used anew."""
    try:
        instance.ending.touch()
        instance.ending.chmod(0o644)
        with suppress(OSError):  # the disk is full, perhaps: it is the file that counts
            instance.ending.write_text(os.environ.get("SUDO_USER") or user_name(os.getuid()))
    except FileNotFoundError:
        return
    except PermissionError:
        raise _needs_root("removing an instance needs root", "") from None


def backup(file: Path) -> dict[str, Any]:
    """Writes the records of the instance to a file, while the daemon runs or not."""
    return _keep_records("backup", str(file.absolute()))


def restore(file: Path, keys: Path | None = None) -> dict[str, Any]:
    """Replaces the records of the instance by those of a backup, whose secrets `keys` opens, too. WRONG_STATE while a
    daemon runs."""
    return _keep_records("restore", str(file.absolute()), *([f"--keys={keys.absolute()}"] if keys else []))


def migrate(revision: str) -> dict[str, Any]:
    """Migrates the records to a revision of the schema. WRONG_STATE while a daemon runs."""
    return _keep_records("migrate", revision)


def _keep_records(command: str, argument: str, *options: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise _needs_root("the records are root's", "")
    return _document(_wherryd(*options, command, "--", argument))


def sweep(place: Instance | None = None) -> dict[str, list[str]]:
    """Removes everything of this or another instance, and returns the removed objects, by kind. WRONG_STATE while a
    daemon runs."""
    if os.geteuid() != 0:
        raise _needs_root("removing an instance needs root", "")
    removed: dict[str, list[str]] = _document(_wherryd("sweep", place=place))["removed"]
    return removed


def _wherryd(*words: str, place: Instance | None = None) -> subprocess.CompletedProcess[str]:
    ours = {name for name in os.environ if name.startswith("WHERRY_") and name not in REMOTE}
    kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES or name in ours}
    if place:
        kept["WHERRY_INSTANCE"] = place.name
    command = [sys.executable, "-P", "-m", "wherry.service.daemon", *words]
    child = None
    try:
        with interrupts_held():
            child = subprocess.Popen(
                command,
                env=kept,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        out, err = child.communicate()
    except KeyboardInterrupt:
        if child and words[0] == "doctor":
            child.kill()
        if child:  # a start that is killed midway leaves a daemon that comes up later
            child.communicate()
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


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
        return LostContact(Code.UNREACHABLE, "wherryd did not start", why[0], setup(installed="wherryd serve"))


def _needs_root(what: str, why: str) -> Refused:
    return Refused(Code.PERMISSION, what, why or f"this is user {os.getuid()}", as_root(sys.argv[1:]))


def _without_room(instance: Instance) -> Path | None:
    """The instance's directory in which nothing can be written, if there is one."""
    for directory in (instance.state, instance.run):
        try:
            if shutil.disk_usage(directory).free < _LEAST_ROOM:
                return directory
        except OSError:
            continue
    return None


def _log_end(instance: Instance) -> str:
    try:
        lines = (instance.state / "log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return "the end of its log:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
