"""Acts beside others: repeated ones."""

from __future__ import annotations

import threading

import pytest

from wherry.node.container.background import Repeated


def test_an_act_is_called_at_once_and_again_until_it_is_stopped() -> None:
    called = threading.Semaphore(0)
    repeated = Repeated(called.release, 0.001)
    assert called.acquire(blocking=False)
    assert called.acquire(timeout=30)
    repeated.stop()
    repeated.stop()
    while called.acquire(blocking=False):
        pass
    assert not called.acquire(timeout=0.05)


def test_an_act_that_fails_at_first_is_not_repeated_and_later_failures_end_it() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError

    Repeated(fail, 0.001).stop()
    with pytest.raises(OSError):
        Repeated(fail, 0.001)
