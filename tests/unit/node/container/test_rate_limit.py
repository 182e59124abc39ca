"""The rate of a move: its budget, and the link's spare rate beside it while no queue grows."""

from __future__ import annotations

import threading

import pytest

import waiting
from wherry.node.container import rate_limit
from wherry.node.container.rate_limit import RateLimit


class Sending:
    """A connection: its rate limit, and the queue on its way in seconds."""

    rate, queue, closed = 0.0, 0.0, False

    def limit_rate(self, rate: float) -> None:
        if self.closed:
            raise OSError("closed")
        self.rate = rate

    def round_trip(self) -> float:
        if self.closed:
            raise OSError("closed")
        return 0.01 + self.queue


def watches() -> int:
    return sum(thread.name == "link-queue" for thread in threading.enumerate())


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> RateLimit:
    monkeypatch.setattr(rate_limit, "_LOOK", 0.001)
    return RateLimit(90e6, 4e6)


def test_a_move_takes_what_a_link_has_left_until_a_queue_grows(limit: RateLimit) -> None:
    one, other = Sending(), Sending()
    with limit.sending(one):
        waiting.until(lambda: one.rate == 94e6, "all of the link")
        with limit.sending(other):
            waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
            other.queue = 0.0025
            waiting.until(lambda: one.rate == other.rate == 45e6, "half of the budget")
            other.queue = 0.0015
            waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
        assert other.rate == 90e6, "what is still buffered keeps to the budget"
    assert one.rate == 90e6
    waiting.until(lambda: watches() == 0, "the end of the watch")


def test_a_connection_that_was_closed_ends_the_watch_alone(limit: RateLimit) -> None:
    one, other = Sending(), Sending()
    with limit.sending(one), limit.sending(other):
        waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
        one.closed = True
        waiting.until(lambda: watches() == 0, "the end of the watch")
        assert other.rate == 45e6, "the others keep to the budget"


def test_a_rate_that_was_asked_for_is_kept() -> None:
    one = Sending()
    with RateLimit(90e6).sending(one):
        assert one.rate == 90e6 and watches() == 0
