"""The number of passes in a round of files, and the bytes that it reports as left."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from wherry.node.container.file_tree import TreeSender
from wherry.node.container.progress_bounds import Bound

MEBI = 1 << 20


class Passes(TreeSender):
    """A sender whose passes send so much, one after the other."""

    def __init__(self, *sent: int) -> None:
        self.left, self._again = list(sent), 0.0
        self.advance: Callable[[], object] = lambda: None

    def _pass(self, command: str, bound: Bound) -> int:
        assert command == "round"
        self.advance()
        return self.left.pop(0)

    def close(self) -> None:
        """It has no program."""


@pytest.mark.parametrize(
    ("sent", "dirty", "passes"),
    [
        ((MEBI,), 0, 1),
        ((64 * MEBI, 100), 0, 2),
        ((64 * MEBI, 32 * MEBI, 16 * MEBI, MEBI), 0, 4),
        ((64 * MEBI, 32 * MEBI, 16 * MEBI, 8 * MEBI), 8 * MEBI, 4),
        ((64 * MEBI, 33 * MEBI), 33 * MEBI, 2),
        ((64 * MEBI, 20 * MEBI, 19 * MEBI), 19 * MEBI, 3),
    ],
)
def test_a_round_goes_on_while_each_pass_sends_half_of_the_one_before(
    sent: tuple[int, ...], dirty: int, passes: int
) -> None:
    sender = Passes(*sent, 77, 77, 77)
    assert sender.round(Bound("files", 1.0, 1.0)) == dirty
    assert len(sender.left) == len(sent) - passes + 3


def test_files_that_hardly_change_are_not_read_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, clock = Passes(2 * MEBI, 100, 100, 2 * MEBI, 2 * MEBI), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def go_on(seconds: float) -> None:
        clock[0] += seconds

    sender.advance = lambda: go_on(0.3)
    found = []
    for pause in (0.0, 0.0, 0.2, 0.2, 0.3):
        go_on(pause)
        found.append((sender.round(Bound("files", 1.0, 1.0)), len(sender.left)))
    assert found == [(0, 3), (0, 3), (0, 3), (0, 2), (2 * MEBI, 0)]
