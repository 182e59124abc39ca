"""Follows a run of hpcc from outside the nodes: when HPL began and ended, and when each factorisation's line came.

With a move it starts the move after a quarter of the factorisations, so that there is progress to see before and after
it, and samples the ranks' CPU seconds around it. All times are of this machine's monotonic clock: the clock of a node
that moves stops with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from wherry.lab import hpcc
from wherry.lab.rank_cpu import RankCpu
from wherry.model.records import Move

POLL = 0.005
"""Seconds between two polls of the output file: the error of a time."""
_CPU_EVERY = 0.02
"""Seconds between two samples of the ranks' CPU seconds."""
_CPU_AFTER = 3.0
"""Seconds of samples after a move."""


class HpccWatch:
    """Watches the output file in `directory` from a thread, until the block ends."""

    def __init__(
        self,
        directory: Path,
        problem: hpcc.Problem,
        move: Callable[[], Move] | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_progress` is called with the number of factorisations each time that it has grown."""
        self._output, self._move, self._on_progress = directory / hpcc.OUTPUT, move, on_progress
        self._before = problem.runs // 4
        self._cpu = RankCpu("hpcc", directory, problem.p * problem.q)
        self._stop = threading.Event()
        self._mover: threading.Thread | None = None
        self._begin: float | None = None
        self._end: float | None = None
        self._moved: float | None = None
        self._finished: list[float] = []
        self._cpu_samples: list[list[float]] = []
        self._epoch = 0.0
        self._thread = threading.Thread(target=self._run, name="watch")
        self.move: Move | None = None
        self.problem = ""

    def __enter__(self) -> HpccWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends polling, and waits for the move if there is one."""
        self._stop.set()
        self._thread.join()
        if self._mover is not None:
            self._mover.join()
        if self._move is not None and self.move is None and not self.problem:
            self.problem = "HPL did not get far enough, so nothing was moved"

    @property
    def seconds(self) -> float | None:
        """Duration of HPL's section of the output."""
        return None if self._begin is None or self._end is None else self._end - self._begin

    def progress(self) -> dict[str, Any]:
        """Observations, in seconds since HPL began: `finished`, when each factorisation's line came, and with a move
        `move_began`, `cpu` (rows of time and CPU seconds of each rank), and `moved_ranks`."""
        begin = self._begin or 0.0
        seen: dict[str, Any] = {"finished": [round(moment - begin, 4) for moment in self._finished]}
        if self.move is not None:
            seen["move_began"] = round(self.move.created - self._epoch - begin, 4)
            seen["cpu"] = [
                [round(moment - begin, 4), *(round(one, 5) for one in row)] for moment, *row in self._cpu_samples
            ]
            seen["moved_ranks"] = sorted(self._cpu.replaced)
        return seen

    def _run(self) -> None:
        size, next_cpu = -1, 0.0
        while True:
            last = self._stop.is_set()
            moment = time.monotonic()
            size_now = self._output.stat().st_size if self._output.exists() else 0
            if size_now != size:
                size = size_now
                self._scan(self._output.read_text(errors="replace") if size_now else "", moment)
            if last:
                return
            if self._move is not None and moment >= next_cpu and self._samples_cpu(moment):
                if row := self._cpu.sample():
                    self._cpu_samples.append([moment, *row])
                next_cpu = moment + _CPU_EVERY
            self._stop.wait(POLL)

    def _samples_cpu(self, moment: float) -> bool:
        moved = self._moved
        return self._begin is not None and self._end is None and (moved is None or moment < moved + _CPU_AFTER)

    def _scan(self, text: str, moment: float) -> None:
        if self._begin is None and hpcc.BEGIN in text:
            self._begin = moment
        if self._begin is None:
            return
        finished = hpcc.finished(text)
        if finished > len(self._finished):
            self._finished += [moment] * (finished - len(self._finished))
            self._on_progress(finished)
        if self._end is None and hpcc.END in text:
            self._end = moment
        if self._move is not None and self._mover is None and finished >= self._before:
            self._epoch = time.time() - time.monotonic()
            self._mover = threading.Thread(target=self._try_move, args=(self._move,), name="move")
            self._mover.start()

    def _try_move(self, move: Callable[[], Move]) -> None:
        try:
            self.move = move()
        except Exception as error:  # the run is marked as failed and the demo continues
            self.problem = f"the move failed: {error}"
        self._moved = time.monotonic()
