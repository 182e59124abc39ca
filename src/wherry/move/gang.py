"""Nodes of one job that are moved together freeze together: their ranks wait for each other anyway, so the job is
frozen once and not once for each node.

A member is ready when its rounds are done. Until all are, it runs on; now and then it is busy with another round, which
keeps the rest for the freeze small. Invariants: nobody waits for a member that has left, as all do at their end;
once all were ready, nobody waits again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

_PATIENCE = 1.0
"""Seconds that a ready member waits before it does another round."""
_AGAIN = 3
"""Rounds of a ready member: its later writes are sent in the freeze."""
_LOOK = 0.05
"""Seconds between two looks whether the move was cancelled."""


class Gang:
    """The moves that freeze together, by their nodes' names. Safe to use from the threads of all of them."""

    def __init__(self, members: Iterable[str]) -> None:
        self._changed = threading.Condition()
        self._awaited = set(members)
        """Members that are neither ready nor gone. When it is empty it stays so."""

    def await_all(self, member: str, look: Callable[[], None], again: Callable[[], None] | None) -> None:
        """Returns when every member is ready or has left. `look` is called while it waits, and may raise; `again` does
        another round."""
        for _ in range(_AGAIN if again else 0):
            self.leave(member)
            if self._complete_within(_PATIENCE, look) or not self._busy(member):
                return
            assert again
            again()
        self.leave(member)
        while not self._complete_within(_PATIENCE, look):
            continue

    def leave(self, member: str) -> None:
        """Nobody waits for the member: it is ready, or its move has ended. Idempotent."""
        with self._changed:
            self._awaited.discard(member)
            self._changed.notify_all()

    def _busy(self, member: str) -> bool:
        """Has the others wait for the member again. False when all have been ready meanwhile."""
        with self._changed:
            if self._awaited:
                self._awaited.add(member)
            return bool(self._awaited)

    def _complete_within(self, seconds: float, look: Callable[[], None]) -> bool:
        """True as soon as nobody is awaited, False after these seconds."""
        for _ in range(round(seconds / _LOOK)):
            with self._changed:
                if self._changed.wait_for(lambda: not self._awaited, _LOOK):
                    return True
            look()
        return False
