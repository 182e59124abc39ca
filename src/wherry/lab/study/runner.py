"""Runs a study: turn after turn, every cell once in each, in the turn's own order; skips what is there already.

Invariants: a run that raised, whatever it raised, is kept as failed and the study goes on; whatever ends the study
(Ctrl-C, a full disk, kill -9), the runs that ended before are kept, and the next session goes on behind them. A failed
run is tried again by the next session, never by the same one.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.units import format_duration
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, SampleFailed
from wherry.lab.study.results import Results, Run
from wherry.lab.study.testbed import Testbed

Tell = Callable[[int, int, str, float | None], None]
"""Called after each run: runs done, runs in all, what happened, seconds left (None: not known yet)."""
_FAILED_IN_A_ROW = 5
"""After so many the machine is at fault rather than the run."""


def plan(results: Results[Study]) -> list[tuple[int, Combination]]:
    """Turn and cell of every run that is still to be made, in order; warm-ups have turns below zero."""
    study, done = results.study, results.done()
    left = [(n, cell) for n in range(results.about["repetitions"]) for cell in study.turn(n) if (n, cell) not in done]
    needed = {cell for _, cell in left}
    warm = [(n, cell) for n in range(-study.default_warmups(), 0) for cell in study.turn(n) if cell in needed]
    return warm + left


def run(results: Results[Study], testbed: Testbed, tell: Tell) -> None:
    """Makes the runs that are left. Failed when nothing works any more; what was measured is kept."""
    todo = plan(results)
    times: dict[Combination, list[float]] = {}
    for past in results.runs:
        times.setdefault(past.cell, []).append(past.seconds)
    bad = 0
    for index, (turn, cell) in enumerate(todo):
        one = _one(results, testbed, turn, cell)
        times.setdefault(cell, []).append(one.seconds)
        left = _seconds_left(times, [later for _, later in todo[index + 1 :]])
        tell(index + 1, len(todo), f"{cell}: {one.problem or format_duration(one.seconds)}", left)
        bad = 0 if one.ok else bad + 1
        if bad >= _FAILED_IN_A_ROW:
            what = f"{bad} runs in a row failed, so the study stops here"
            raise Failed(Code.FAILED, what, one.problem, "mend it, then repeat the command: it goes on from here")


def _one(results: Results[Study], testbed: Testbed, turn: int, cell: Combination) -> Run:
    one = Run(results.next_number(), turn, warmup=turn < 0, ok=True, cell=cell, started=time.time())
    directory = results.directory_of(one)
    results.renew()
    begin = time.monotonic()
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        one.values = results.study.measure(testbed, cell, directory)
        one.seconds = time.monotonic() - begin
        results.add(one)
        return one
    except SampleFailed as error:
        one.problem = str(error)
    except WherryError as error:
        if error.code == Code.CANCELLED:  # Ctrl-C while an operation was waited for
            raise KeyboardInterrupt from error
        one.problem = str(error)
    except subprocess.TimeoutExpired as error:
        one.problem = f"did not end within {error.timeout:.0f} s"
    except Exception as error:  # a full disk, output that is cut off, a mistake of ours
        one.problem = f"{type(error).__name__}: {error}"
        with suppress(OSError):
            (directory / "traceback").write_text(traceback.format_exc())
    one.seconds = time.monotonic() - begin
    testbed.suspect()
    _keep_only_text(directory)  # first: its row may need the room
    results.add_failed(one)
    return one


def _keep_only_text(directory: Path) -> None:
    """A failed run may have filled the disk with what nobody needs."""
    for file in directory.glob("*") if directory.exists() else ():
        if file.is_file() and file.stat().st_size > 1 << 20:
            file.unlink()


def _seconds_left(times: dict[Combination, list[float]], cells: list[Combination]) -> float | None:
    """A cell that has not run yet is taken to last as the mean of the others."""
    known = [seconds for runs in times.values() for seconds in runs]
    if not known:
        return None
    mean = sum(known) / len(known)
    return sum(sum(times[cell]) / len(times[cell]) if cell in times else mean for cell in cells)


def missing(results: Results[Study]) -> int:
    """How many runs of those asked for do not count yet."""
    return sum(turn >= 0 for turn, _ in plan(results))
