"""Timers, clocks and threads of a restored node: set as those of the frozen original would be by then."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.wait import readable
from wherry.node.container import clocks, thread_attributes, timers
from wherry.node.container.host import HOSTS_OWN, Clocks, ClocksAhead, Timer

_MS, _HOUR = 10**6, 3600 * 10**9
_libc = ctypes.CDLL(None, use_errno=True)
_NON_BLOCKING = 0o4000


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    """Two timerfds, an original and its copy."""
    both = [int(_libc.timerfd_create(time.CLOCK_MONOTONIC, _NON_BLOCKING)) for _ in range(2)]
    yield both[0], both[1]
    for timer in both:
        os.close(timer)


def ticks(timer: int) -> int:
    try:
        return int(struct.unpack("=Q", os.read(timer, 8))[0])
    except BlockingIOError:
        return 0


def armed(timer: int, first: int, interval: int, flags: int = 0) -> None:
    spec = timers.Itimerspec(timers.Timespec.of(interval), timers.Timespec.of(first))
    assert not _libc.timerfd_settime(timer, flags, ctypes.byref(spec), None)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_periodic_timer_keeps_its_grid_and_the_ticks_that_were_due(pair: tuple[int, int], absolute: bool) -> None:
    """Its first tick has come, and nobody has read it; two more are due by the restore."""
    original, copy = pair
    armed(original, time.monotonic_ns() + _MS if absolute else _MS, _HOUR, 1 if absolute else 0)
    assert readable(original, 60)
    now = timers.read(original, 7, 3)
    assert (now.process, now.number, now.interval, now.ticks) == (7, 3, _HOUR, 1)
    timers.carry(replace(now, due=now.due - 2 * _HOUR), copy)
    assert (ticks(original), ticks(copy)) == (1, 3)
    there, here = (timers.read(timer, 7, 3) for timer in pair)
    assert abs(there.due - here.due) < _HOUR / 10 < here.due - time.monotonic_ns()


def test_a_timer_that_was_due_once_is_disarmed_and_readable(pair: tuple[int, int]) -> None:
    original, copy = pair
    armed(original, 1 * _MS, 0)
    told = timers.read(original, 7, 3)
    assert readable(original, 60)
    timers.carry(told, copy)
    assert readable(copy, 60) and ticks(copy) == 1 and ticks(copy) == 0
    assert timers.read(copy, 7, 3).due == 0


@pytest.mark.parametrize("microseconds", [1, 5, 20, 100])
def test_a_fast_timer_is_never_taken_for_a_disarmed_one(pair: tuple[int, int], microseconds: int) -> None:
    """The kernel reports 0 for both when the next tick is due at this moment."""
    armed(pair[0], microseconds * 1000, microseconds * 1000)
    assert all(timers.read(pair[0], 7, 3).due for _ in range(300))


def test_a_disarmed_timer_stays_so(pair: tuple[int, int]) -> None:
    timers.carry(timers.read(pair[0], 7, 3), pair[1])
    assert timers.read(pair[1], 7, 3).due == ticks(pair[1]) == 0


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**12), st.integers(0, 5))
def test_no_tick_is_lost_or_made(due: int, interval: int, now: int, before: int) -> None:
    timer = Timer(7, 3, time.CLOCK_MONOTONIC, 0, before, interval, due)
    then = timers.advanced(timer, now)
    if interval:
        assert then.due > now and (then.due - due) % interval == 0
        assert then.ticks - before == (then.due - due) // interval >= 0
        assert then.due - interval <= now or then == timer
    else:
        assert (then.ticks, then.due) == ((before, due) if now < due else (before + 1, 0))


# How far a node's clocks are ahead of its host's, so that they continue at another kernel.


_TIMES = st.integers(0, 10**18)
_WAITS = st.integers(0, 10**10)


@given(*[_TIMES] * 5, *[_WAITS] * 4, st.integers(-(10**18), 10**18))
def test_no_clock_goes_back_and_none_is_ahead_by_more_than_the_calls_took(
    start: int, mono: int, boot: int, there: int, there_boot: int,
    to: int, back: int, to_there: int, back_there: int, ahead: int,
) -> None:  # fmt: skip
    """The daemon's clock is `start` when it asks the source, whose clocks are `mono` and `boot` then."""
    source = clocks.Told(Clocks("a", mono + to, boot + to, ClocksAhead(ahead, ahead)), start, start + to + back)
    asked = source.answered + 5
    passed = asked + to_there - start
    answer = Clocks("b", there + passed, there_boot + passed)
    destination = clocks.Told(answer, asked, asked + to_there + back_there)
    found = clocks.carried(source, destination)
    true = ClocksAhead(mono + ahead - there, boot + ahead - there_boot)
    for which in (1, 7):
        assert 0 <= found.of(which) - true.of(which) <= source.width() + destination.width()


def test_offsets_are_read_as_the_kernel_writes_them() -> None:
    assert clocks.parsed(["monotonic           5         0", "boottime           -1 999999900"]) == ClocksAhead(
        5 * 10**9, -100
    )
    assert clocks.parsed(["1 2 3", "7 0 9"]) == ClocksAhead(2 * 10**9 + 3, 9)
    assert clocks.parsed([]) == HOSTS_OWN


def test_a_process_of_this_namespace_needs_no_other() -> None:
    assert clocks.of_process(os.getpid()) == HOSTS_OWN and clocks.entered(os.getpid()) == ()
    assert clocks.entered(None) == clocks.made(HOSTS_OWN) == ()
    assert clocks.made(ClocksAhead(5, -7)) == ("--clocks", "5:-7")
    told = clocks.of_host(None)
    assert told.boot == clocks.boot() and 0 <= time.monotonic_ns() - told.monotonic < 10**10


def test_offsets_are_those_of_their_clocks_and_wall_clocks_have_none() -> None:
    ahead = ClocksAhead(3, 5)
    assert [ahead.of(clock) for clock in (0, 1, 7, 8, 9)] == [0, 3, 5, 0, 5]


def test_relative_times_of_wall_clocks_run_on_others() -> None:
    assert [timers.runs_on(clock, 0) for clock in (0, 1, 7, 8, 9)] == [1, 1, 7, 7, 7]
    assert [timers.runs_on(clock, 1) for clock in (0, 1, 7, 8, 9)] == [0, 1, 7, 0, 7]


def test_a_timer_crosses_in_the_clock_of_its_node() -> None:
    """From a node whose clock is an hour ahead to one where the same clock is a day behind its host's."""
    hour, day = 3600 * 10**9, 86400 * 10**9
    for flags, clock in ((0, time.CLOCK_MONOTONIC), (1, time.CLOCK_MONOTONIC), (0, time.CLOCK_REALTIME)):
        number = _timerfd(clock)
        first = time.clock_gettime_ns(clock) + 5 * 10**9 if flags else 5 * 10**9
        timers.write(number, Timer(7, number, clock, flags, 0, 0, _due(flags, clock, first)))
        told = timers.read(number, 7, number, ClocksAhead(hour, 0))
        assert abs(told.due - time.monotonic_ns() - 5 * 10**9 - hour) < 10**9
        there = Timer(7, number, clock, flags, 0, 0, told.due - hour - day)  # the same moment where it is a day behind
        timers.carry(there, number, ClocksAhead(-day, 0))
        assert abs(timers.read(number, 7, number).due - (told.due - hour)) < 10**9
        os.close(number)


def _due(flags: int, clock: int, first: int) -> int:
    return first if flags else first + time.monotonic_ns()


def _timerfd(clock: int) -> int:
    return int(timers._libc.timerfd_create(clock, 0o4000))


# Attributes of a thread that CRIU does not restore are read as somebody set them, whatever the nice value.


BEST_EFFORT_6 = 2 << 13 | 6
_SET, _PROCESS = 251, 1


@pytest.mark.parametrize("nice", [0, 10])
@pytest.mark.parametrize("set_to", [0, BEST_EFFORT_6])
def test_an_io_priority_is_told_when_it_was_set(nice: int, set_to: int) -> None:
    """A nice value of 10 also leads to the priority 6 of best effort."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        assert ctypes.CDLL(None).syscall(_SET, _PROCESS, process.pid, set_to) == 0
        if thread_attributes._tells_what_follows():
            pytest.skip("this kernel does not separate set values from default ones")
        assert thread_attributes.read(process.pid).io_priority == set_to
    finally:
        process.kill()
        process.wait()
