"""Signals that end a command, at the lines that they must not cut."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from wherry.base.interrupts import interrupts_held, signals_as_interrupt


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Begun by nohup, pytest ignores SIGHUP, and a command then does as well."""
    interrupt, hangup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hangup)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_comes_after_the_lines_that_it_must_not_cut(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        with interrupts_held():
            os.kill(os.getpid(), number)
            done.append("line")
        done.append("later")
    assert done == ["line"]


def test_the_handlers_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with interrupts_held():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
