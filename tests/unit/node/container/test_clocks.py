"""How far a node's clocks are ahead of its host's, so that they continue at another kernel."""

from __future__ import annotations

import os
import time

from hypothesis import given
from hypothesis import strategies as st

from wherry.node.container import clocks, timers
from wherry.node.container.host import HOSTS_OWN, Clocks, ClocksAhead, Timer

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
