"""What is refused before a container is moved, while its processes go on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wherry.node.container import movable

libc = ctypes.CDLL(None, use_errno=True)


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = libc.inotify_init()
    ends = os.pipe2(os.O_DIRECT)
    really = movable.borrowed

    @contextmanager
    def late(pid: int, descriptor: int) -> Iterator[int]:
        if descriptor == queue:
            os.close(queue)
        with really(pid, descriptor) as file:
            yield file

    monkeypatch.setattr(movable, "borrowed", late)
    try:
        assert "packet mode" in movable.move_obstacle([os.getpid()])
    finally:
        for end in ends:
            os.close(end)
