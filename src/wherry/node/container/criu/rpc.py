"""One request to CRIU over its RPC (`criu swrk`): dump or restore.

The messages are a subset of CRIU's `rpc.proto` (https://criu.org/RPC), built at import from the table below, so
that no compiler is needed. A `Worker` may be started ahead of its request: exec and dynamic linking then happen
before the freeze. Invariant: when `close` returns, the worker process has ended, and if it has a cgroup, all processes
in that, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.deaths import how_it_ended
from wherry.node.container.progress_bounds import CHECK_INTERVAL, ProgressProbe, StallTimeout, work_of

DUMP, RESTORE, NOTIFY = 1, 2, 6
"""Request types (`criu_req_type`)."""

_NO_BREAKPOINTS = "130"
"""Makes CRIU trace system calls where it would set a hardware breakpoint, which costs 8 ms of a freeze inside a VM."""

_GRACE = 0.5
"""Seconds for a worker to end by itself: a dump has to release the node's processes and connections."""

IGNORE_CGROUPS = 0
NETWORK_LOCK_SKIP = 3

# name: (number, type); types: s string, i int32, u uint32, l uint64, b bool, otherwise a message; a leading * repeats.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "page_server": {"fd": (4, "i")},
    "inherit_fd": {"key": (1, "s"), "fd": (2, "i")},
    "opts": {
        "images_dir_fd": (1, "i"),
        "pid": (2, "i"),
        "leave_running": (3, "b"),
        "tcp_established": (5, "b"),
        "file_locks": (8, "b"),
        "log_level": (9, "i"),
        "log_file": (10, "s"),
        "ps": (11, "page_server"),
        "notify_scripts": (12, "b"),
        "root": (13, "s"),
        "auto_dedup": (16, "b"),
        "work_dir_fd": (17, "i"),
        "inherit_fd": (27, "*inherit_fd"),
        "manage_cgroups_mode": (34, "i"),
        "ghost_limit": (35, "u"),
        "external": (37, "*s"),
        "freeze_cgroup": (44, "s"),
        "timeout": (45, "u"),
        "lazy_pages": (48, "b"),
        "config_file": (51, "s"),
        "network_lock": (64, "i"),
        "skip_file_rwx_check": (66, "b"),
    },
    "req": {"type": (1, "i"), "opts": (2, "opts"), "notify_success": (3, "b")},
    "notify": {"script": (1, "s"), "pid": (2, "i")},
    "restored": {"pid": (1, "i")},
    "dump_stats": {"frozen_time": (2, "u")},
    "restore_stats": {"restore_time": (4, "u")},
    "stats": {"dump": (1, "dump_stats"), "restore": (2, "restore_stats")},
    "resp": {
        "type": (1, "i"),
        "success": (2, "b"),
        "restore": (4, "restored"),
        "notify": (5, "notify"),
        "cr_errno": (7, "i"),
        "cr_errmsg": (9, "s"),
    },
}


def build(package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    """Message classes by name, from a table as above; fields that it omits are preserved."""
    field = descriptor_pb2.FieldDescriptorProto
    scalar = {
        "s": field.TYPE_STRING,
        "i": field.TYPE_INT32,
        "u": field.TYPE_UINT32,
        "l": field.TYPE_UINT64,
        "b": field.TYPE_BOOL,
    }
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in fields.items():
            plain = kind.lstrip("*")
            entry = message.field.add(
                name=key, number=number, label=field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            )
            if plain in scalar:
                entry.type = scalar[plain]
            else:
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{n}")) for n in messages}


_CLASSES = build("wherry.criu", _MESSAGES)
_LAST_VICTIM = "-999"
"""oom_score_adj: killed last when memory is exhausted. Restored processes inherit it until they get their own; -1000
(never) would leave the OOM killer without a victim in a node with too little memory, and the restore would hang."""


class Worker:
    """A `criu swrk` process that waits for its one request.

    `argv` starts CRIU (a prefix may enter a namespace); `keep` are descriptors that the worker inherits under the same
    numbers, by which the request refers to them. With `sends` SIGPIPE is ignored, so that CRIU gets an error when its
    connection is cut.

    The worker of a restore has a `group`, a cgroup of its own. When CRIU dies, the processes that it forked cannot be
    found by their parent, and they keep CRIU's end of the socket open, so there is no end of file: the process is
    watched by a pidfd, and the cgroup is killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        keep: Sequence[int] = (),
        sends: bool = False,
        group: Cgroup | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._group = group
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as undo:
            self._socket = undo.enter_context(ours)
            with theirs:
                self._process = subprocess.Popen(
                    [*argv, "swrk", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(), *keep),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "CRIU_FAULT": _NO_BREAKPOINTS, **(extra or {})},
                    restore_signals=not sends,  # this process ignores it
                )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._death = os.pidfd_open(self._process.pid)
            undo.pop_all()
        with contextlib.suppress(OSError):  # without CAP_SYS_RESOURCE it keeps the default
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text(_LAST_VICTIM)

    def open_mounts(self) -> int:
        """A descriptor of its mount namespace. While it is open, the worker ends without removing its mounts, which
        takes the kernel milliseconds."""
        return os.open(f"/proc/{self._process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def problem(self) -> str:
        """How it ended without having been waited for; empty while it runs, and when it has done its work."""
        return how_it_ended(self._process, told=False)

    def work(self) -> ProgressProbe:
        """A probe of CRIU and the processes in its cgroup."""
        return work_of(self.pids)

    def pids(self) -> list[int]:
        """CRIU, and the processes in its cgroup."""
        return self._group.pids() if self._group else [self._process.pid]

    def _receive(self, timeout: StallTimeout) -> bytes:
        """The next message; empty when CRIU has ended without one."""
        either = select.poll()
        either.register(self._socket, select.POLLIN)
        either.register(self._death, select.POLLIN)
        while True:
            ready = dict(either.poll(CHECK_INTERVAL * 1000))
            if self._socket.fileno() in ready:
                return self._socket.recv(1 << 16)
            if ready:
                return b""
            timeout.check()

    def begin(self, kind: int, opts: Mapping[str, Any]) -> None:
        """Sends the request. CRIU works until its first notification, before it has touched a process."""
        request = _CLASSES["req"](type=kind)
        _fill(request.opts, {**opts, "notify_scripts": True})
        try:
            self._socket.send(request.SerializeToString())
        except OSError as error:
            raise Failed(Code.MOVE_FAILED, "the connection to CRIU broke", str(error)) from None

    def finish(self, timeout: StallTimeout, notify: Callable[[str, int], None]) -> int:
        """Serves CRIU's notifications until it answers; returns the restored PID (or 0).

        `notify(script, pid)` is called at each stage; an exception aborts CRIU and is re-raised here. Failed when CRIU
        reports an error, dies or exceeds its timeout. Exceptions of the timeout are passed on.
        """
        failure: BaseException | None = None
        try:
            while True:
                data = self._receive(timeout)
                if not data:
                    raise Failed(Code.MOVE_FAILED, "CRIU ended without an answer", f"exit {self._process.wait(_GRACE)}")
                answer = _CLASSES["resp"].FromString(data)
                if answer.type != NOTIFY:
                    break
                timeout.advance()
                try:
                    notify(answer.notify.script, answer.notify.pid)
                except BaseException as error:  # CRIU gets its answer first
                    failure = error
                reply = _CLASSES["req"](type=NOTIFY, notify_success=failure is None)
                self._socket.send(reply.SerializeToString())
        except subprocess.TimeoutExpired:
            raise Failed(Code.MOVE_FAILED, "CRIU closed its connection and did not end") from None
        except OSError as error:
            raise failure or Failed(Code.MOVE_FAILED, "the connection to CRIU broke", str(error)) from None
        if failure is not None:
            raise failure
        if not answer.success:
            raise Failed(Code.MOVE_FAILED, "CRIU reported an error", answer.cr_errmsg or f"errno {answer.cr_errno}")
        return int(answer.restore.pid)

    def kill(self) -> None:
        """Kills the worker of a restore with all processes in its cgroup."""
        if self._group is not None:
            self._group.kill()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Waits for the worker to end, and kills it after the grace period. Idempotent."""
        self._socket.close()
        if self._death >= 0:
            death = select.poll()  # the node is frozen meanwhile, and Popen.wait sleeps up to 50 ms too long
            death.register(self._death, select.POLLIN)
            if not death.poll(_GRACE * 1000):
                self._process.kill()
            self._process.wait()
            os.close(self._death)
            self._death = -1
        if self._group is not None:
            self._group.remove()


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _fill(getattr(message, key), value)
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, Mapping):
                    _fill(getattr(message, key).add(), item)
                else:
                    getattr(message, key).append(item)
        else:
            setattr(message, key, value)


def first_error(log: Path) -> str:
    """The first error in a CRIU log, without its time stamp; empty when there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        if "Error (" in line and "Can't setup RLIMIT_NOFILE" not in line:
            return line.split("Error (", 1)[1].split("): ", 1)[-1].strip()
    return ""


def engine_seconds(statistics: Path) -> float | None:
    """Seconds according to CRIU's `stats-dump` (tasks frozen) or `stats-restore` (restore); None if it is missing.

    The file: two magic numbers of 32 bits, the length of the message, the message.
    """
    try:
        found = _CLASSES["stats"].FromString(statistics.read_bytes()[12:])
    except (OSError, DecodeError):
        return None
    return float(found.dump.frozen_time + found.restore.restore_time) / 1e6


def open_directory(path: str | os.PathLike[str]) -> int:
    """A descriptor of a directory that a worker inherits."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
