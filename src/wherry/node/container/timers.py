"""Gives a restored node the clocks that CRIU itself has, and its timerfds the state of the frozen originals.

Clocks: CRIU creates a time namespace in which CLOCK_MONOTONIC and CLOCK_BOOTTIME stop from the dump to the restore. A
moved rank would measure less time than its peers, by the downtime of each move, and absolute timeouts would come late.
CRIU is run with the node's own clocks (`clocks`), so the copy uses those directly.

Timers: CRIU dumps a timerfd from /proc/PID/fdinfo, which is not sufficient. A periodic timer that expired unread shows
an it_value of 0 until it is queried (the kernel re-arms it lazily: fs/timerfd.c), and restoring 0 disarms it for ever.
An absolute timer is restored up to a second early: CRIU adds only the seconds of the clock to the remaining time. A
relative timer is late by the time between dump and restore, and the ticks of that time are lost.

So each timer of the frozen source is read with timerfd_gettime, which re-arms it in its original phase and counts the
ticks that were due; after the restore the copy's timer is set to the state that the original would have by then. The
program sees the same as after not being scheduled for so long. A time that crosses is of the node's own clocks; this
process has those of its host, from which they may differ. A relative time on the wall clock runs on also when that
clock is set, and the wall clocks of two hosts may differ, so it crosses as one of CLOCK_MONOTONIC (of CLOCK_BOOTTIME
for an alarm). Invariant: the source's timers do not change, as timerfd_gettime keeps the ticks unread; so a roll-back
has nothing to undo.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.node.container.fd_identity import inner_pid
from wherry.node.container.host import HOSTS_OWN, ClocksAhead, Timer

_SYS_PIDFD_GETFD = 438
_TARGET = "anon_inode:[timerfd]"
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
"""TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET, linux/timerfd.h."""
_SET_TICKS = 0x40085400
"""TFD_IOC_SET_TICKS, linux/timerfd.h."""
_OF_ALARMS = {8: time.CLOCK_REALTIME, 9: time.CLOCK_BOOTTIME}
"""The clock that CLOCK_REALTIME_ALARM and CLOCK_BOOTTIME_ALARM show, which not every machine lets read."""
_RUNS_ON = {time.CLOCK_REALTIME: time.CLOCK_MONOTONIC, 8: time.CLOCK_BOOTTIME}
"""The clock on which a relative time on a wall clock runs."""
_TRIES = 8
"""Attempts for a timer that expires while it is copied, as one of 100 µs occasionally does."""
_SETTLED = 0.0005
"""Seconds after which a timer that has just expired shows it."""
_SECOND = 10**9
_libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, nanoseconds: int) -> Timespec:
        return cls(*divmod(max(nanoseconds, 0), _SECOND))

    def total(self) -> int:
        return int(self.seconds) * _SECOND + int(self.nanoseconds)


class Itimerspec(ctypes.Structure):
    _fields_ = (("interval", Timespec), ("value", Timespec))


def keep_clocks(images: Path) -> None:
    """Removes the time namespace from images whose processes used CRIU's own (number 0)."""
    (images / "timens-0.img").unlink(missing_ok=True)


def read_all(pids: list[int], ahead: ClocksAhead = HOSTS_OWN) -> tuple[Timer, ...]:
    """The timerfds of a frozen node, whose clocks are so far `ahead`. Failed when one cannot be read."""
    found = []
    for pid in pids:
        for descriptor in timer_descriptors(pid):
            inside = inner_pid(pid)
            try:
                with borrowed(pid, descriptor) as timer:
                    found.append(read(timer, inside, descriptor, ahead))
            except OSError as error:
                raise _not_carried(inside, descriptor, error) from None
    return tuple(found)


def carry_to(pids: list[int], timers: Sequence[Timer], ahead: ClocksAhead = HOSTS_OWN) -> None:
    """Sets the timers of the restored processes, whose clocks are so far `ahead`. Failed when one cannot be set."""
    copies = {inner_pid(pid): pid for pid in pids} if timers else {}
    for timer in timers:
        try:
            with borrowed(copies[timer.process], timer.number) as copy:
                carry(timer, copy, ahead)
        except (OSError, KeyError) as error:
            raise _not_carried(timer.process, timer.number, error) from None


def _not_carried(process: int, descriptor: int, error: Exception) -> Failed:
    what = f"the timer of process {process} of the node, descriptor {descriptor}, could not be carried over"
    return Failed(Code.MOVE_FAILED, what, str(error), "repeat the move")


def timer_descriptors(pid: int) -> list[int]:
    """The descriptors of a process that are timerfds."""
    found = []
    with contextlib.suppress(OSError):  # a process that ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") == _TARGET:
                found.append(int(name))
    return found


@contextmanager
def borrowed(pid: int, descriptor: int) -> Iterator[int]:
    """A duplicate of a descriptor of another process."""
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(_SYS_PIDFD_GETFD, process, descriptor, 0)
        _check(copy)
    finally:
        os.close(process)
    try:
        yield copy
    finally:
        os.close(copy)


def carry(timer: Timer, copy: int, ahead: ClocksAhead = HOSTS_OWN) -> None:
    """Sets a timerfd as the original would be now."""
    clock = runs_on(timer.clock, timer.flags)
    for _ in range(_TRIES):
        state = advanced(timer, _now(clock, ahead))
        write(copy, state, ahead)
        if not state.due or _now(clock, ahead) < state.due:
            return  # else it expired before the ticks were set, which overwrote that tick


def runs_on(clock: int, flags: int) -> int:
    """The clock that a timer of `clock` runs on, by whether its time is absolute."""
    running = clock if flags & _ABSOLUTE else _RUNS_ON.get(clock, clock)
    return _OF_ALARMS.get(running, running)


def _now(clock: int, ahead: ClocksAhead) -> int:
    """A clock of a node."""
    return time.clock_gettime_ns(clock) + ahead.of(clock)


def advanced(timer: Timer, now: int) -> Timer:
    """The timer at a later time, with the ticks that were due meanwhile."""
    if not timer.due or now < timer.due:
        return timer
    if not timer.interval:
        return replace(timer, ticks=timer.ticks + 1, due=0)
    ticks = (now - timer.due) // timer.interval + 1
    return replace(timer, ticks=timer.ticks + ticks, due=timer.due + ticks * timer.interval)


def read(timer: int, process: int, number: int, ahead: ClocksAhead = HOSTS_OWN) -> Timer:
    """The state of a timerfd. Re-arms a timer that expired unread, as a read by its program would. OSError when it is
    cancelled."""
    told = _fdinfo(timer)
    if _is_cancelled(told) and was_cancelled(timer):
        raise OSError(errno.ECANCELED, "its clock was set, which its program has not read yet")
    clock, flags = int(told["clockid"]), int(told["settime flags"], 8)
    running = runs_on(clock, flags)
    before: int | None = None
    runs = False
    for _ in range(_TRIES):
        spec = Itimerspec()
        _check(_libc.timerfd_gettime(timer, ctypes.byref(spec)))
        now = _now(running, ahead)
        shown = _fdinfo(timer)
        left, ticks = spec.value.total(), int(shown["ticks"])
        runs = runs or left > 0 or (before is not None and ticks > before)
        if (left and shown["it_value"] != "(0, 0)") or (not left and before is not None):
            break  # else it expired between the two
        if not left:  # disarmed, or armed and due at this moment, which looks the same
            before = ticks
            time.sleep(_SETTLED)
    interval = spec.interval.total()
    due = now + left if left or (interval and runs) else 0
    return Timer(process, number, clock, flags, ticks, interval, due)


def write(timer: int, state: Timer, ahead: ClocksAhead = HOSTS_OWN) -> None:
    """Arms a timerfd according to the state, including unread ticks. An absolute time is given in this process's clock,
    as the kernel takes it."""
    value, clock = state.due, runs_on(state.clock, state.flags)
    if value:
        value = max(1, value - (ahead.of(clock) if state.flags & _ABSOLUTE else _now(clock, ahead)))
    spec = Itimerspec(Timespec.of(state.interval), Timespec.of(value))
    _check(_libc.timerfd_settime(timer, state.flags, ctypes.byref(spec), None))
    if state.ticks:
        fcntl.ioctl(timer, _SET_TICKS, struct.pack("=Q", state.ticks))


def was_cancelled(descriptor: int, pid: int | str = "self") -> bool:
    """Whether the clock of a timerfd was set and its program has not read that (TFD_TIMER_CANCEL_ON_SET). Two looks, as
    it may expire in the midst of one."""
    return all(_is_cancelled(_fdinfo(descriptor, pid)) for _ in range(2))


def _is_cancelled(told: dict[str, str]) -> bool:
    """That is a tick more than a timer that expires once can have; a periodic timer does not show it."""
    once = int(told["settime flags"], 8) & _CANCEL_ON_SET and told["it_interval"] == "(0, 0)"
    return bool(once) and int(told["ticks"]) > (told["it_value"] == "(0, 0)")


def _fdinfo(descriptor: int, pid: int | str = "self") -> dict[str, str]:
    lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
