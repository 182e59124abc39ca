"""Timerfds of a restored node: set as the frozen original would be by then."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.wait import readable
from wherry.node.container import timers
from wherry.node.container.host import Timer

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
