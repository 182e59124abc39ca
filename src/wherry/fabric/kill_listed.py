"""Kills the processes that lists of cgroups have, and no other that has got the number of one meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

_HELD = 64
"""Processes that are held at once."""


def kill_listed(lists: Iterable[Path]) -> None:
    """Sends SIGKILL to each process in these files. One is held first, and killed when its number is listed still: a
    number that comes again in between is a new process of the list, and the held one has ended."""
    seen = {0}  # stands for a process outside of our PID namespace
    for file in lists:
        waiting = sorted(_listed(file) - seen)
        seen.update(waiting)
        while waiting:
            some, waiting = waiting[:_HELD], waiting[_HELD:]
            with ExitStack() as closed:
                held = dict[int, int]()
                for pid in some:
                    with suppress(ProcessLookupError):
                        held[pid] = os.pidfd_open(pid)
                        closed.callback(os.close, held[pid])
                for pid in sorted(_listed(file) & held.keys()):
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(held[pid], signal.SIGKILL)


def _listed(file: Path) -> set[int]:
    try:
        return {int(word) for word in file.read_text().split()}
    except OSError:  # removed meanwhile
        return set()
