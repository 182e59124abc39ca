"""Processes for which jobs got places a moment ago, and which are not yet in the measured load of hosts."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_SECONDS = 10.0
"""A load is that of some seconds, and is used for some (`HostLoads`)."""
_MAX_ANSWERS = 256
"""Answers of a job that are remembered."""


@dataclass(frozen=True)
class Promise:
    """Processes for which other jobs got places on a node, which had `before` processes then. The spawned ones are
    those in excess of that now: a job may ask, and spawn nothing."""

    processes: int
    before: int


@dataclass(frozen=True)
class _Answer:
    at: float
    places: Mapping[str, int]
    before: Mapping[str, int]


class RecentPlaces:
    """Processes for which jobs got places in the last ten seconds, by node. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, deque[_Answer]] = {}

    def add(self, job: str, places: Mapping[str, int], before: Mapping[str, int]) -> None:
        """So many processes are placed just now, on nodes that have so many."""
        with self._lock:
            answers = self._answers.setdefault(job, deque(maxlen=_MAX_ANSWERS))
            answers.append(_Answer(time.monotonic(), dict(places), dict(before)))

    def of(self, job: str, jobs: Collection[str]) -> tuple[Counter[str], dict[str, Promise]]:
        """Places of a job by node, and those of the others of these jobs; all other jobs are forgotten."""
        own, others, since = Counter[str](), dict[str, Promise](), time.monotonic() - _SECONDS
        with self._lock:
            self._answers = {
                name: deque((one for one in answers if one.at >= since), _MAX_ANSWERS)
                for name, answers in self._answers.items()
                if name in jobs
            }
            for name, answers in self._answers.items():
                for answer in answers:
                    if name == job:
                        own.update(answer.places)
                        continue
                    for node, count in answer.places.items():
                        known = others.get(node, Promise(0, answer.before[node]))
                        others[node] = Promise(known.processes + count, min(known.before, answer.before[node]))
        return own, others
