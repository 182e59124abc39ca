"""A busy processor drops frames before they leave: a node's announcement is sent until one is taken."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest

from wherry.fabric import netlink
from wherry.fabric.netlink import Announcer


class Busy:
    """A packet socket whose first frames are refused."""

    def __init__(self, *refusals: int) -> None:
        self.refusals, self.sent = list(refusals), 0

    def send(self, _frame: bytes) -> None:
        if self.refusals:
            number = self.refusals.pop(0)
            raise OSError(number, os.strerror(number))
        self.sent += 1


def announcer(busy: Busy) -> Announcer:
    made = Announcer.__new__(Announcer)
    made._frame, made._socket = b"", cast(Any, busy)
    return made


def test_an_announcement_that_is_dropped_is_sent_again() -> None:
    busy = Busy(errno.ENOBUFS, errno.ENOBUFS)
    announcer(busy).announce()
    assert busy.sent == 1


def test_it_is_not_sent_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "_FULL", 0.05)
    with pytest.raises(OSError, match="buffer space"):
        announcer(Busy(*[errno.ENOBUFS] * 1000)).announce()


def test_an_interface_that_is_down_is_told_at_once() -> None:
    busy = Busy(errno.ENETDOWN)
    with pytest.raises(OSError, match="down"):
        announcer(busy).announce()
    assert busy.sent == 0
