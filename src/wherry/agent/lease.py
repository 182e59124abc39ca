"""The agent's right to act at its host, which runs out when its daemon does not receive its messages any more.

    agent    {"pong": stamp}  ------------->   the daemon has received it, at `stamp` of its clock or later
             <-------------  {"ping": stamp}   so the right lasts until `stamp` + LEASE

Only a stamp that the daemon sends back prolongs it: requests that were under way in a cut do not. So LEASE seconds
after an agent's last message that reached the daemon, that agent acts no more, whatever becomes of its connection. No
clocks are compared: a stamp means something to the agent alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wherry.hostlink.entrance import LEASE


class Lease:
    """Begins with the process; `end` is called once, in a thread, when it has run out. Safe from several threads."""

    def __init__(self, end: Callable[[], None], seconds: float = LEASE) -> None:
        self._end, self._seconds = end, seconds
        self._until = clock() + seconds
        self.prolonged: Callable[[float], None] = lambda at: None
        """Called with the time, of `clock`, of each stamp that came back."""

    def stamp(self) -> int:
        """The stamp of a pong: nanoseconds of the host's clock, which also counts while the machine is suspended."""
        return int(clock() * 1e9)

    def heard(self, stamp: int) -> None:
        """The daemon had this stamp; only stamps of this agent prolong the lease."""
        if 0 < stamp <= self.stamp():
            self._until = max(self._until, stamp / 1e9 + self._seconds)
            self.prolonged(stamp / 1e9)

    def give_up(self) -> None:
        """It has run out, before its time: the next agent of the daemon begins anew."""
        self._end()

    def watch(self) -> None:
        """Begins to watch, in the background."""
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def _watch(self) -> None:
        while (left := self._until - clock()) > 0:
            time.sleep(min(left, 1.0))  # no longer: a suspended machine's sleep is longer than its lease
        self._end()


def clock() -> float:
    """Seconds of the host's clock, which also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
