"""Runs a study turn by turn, each combination once in a turn in the turn's order, and skips runs that already count.

Invariants: a run that raises any exception is recorded as failed and the study continues; however the study ends
(Ctrl-C, full disk, kill -9), completed runs are kept and the next session resumes after them. A failed run is retried
by the next session, never by the same one.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wherry.base.units import format_duration
from wherry.lab.attempts import FailuresInARow, is_expected, problem_of
from wherry.lab.study.experiment import Study
from wherry.lab.study.levels import Combination, RunFailed
from wherry.lab.study.results import Results, Run
from wherry.lab.study.testbed import Testbed

ProgressCallback = Callable[[int, int, str, float | None], None]
"""Called after each run with: runs done, runs in all, outcome, estimated seconds left (None: unknown)."""


def remaining_runs(results: Results[Study]) -> list[tuple[int, Combination]]:
    """Turn and combination of every run that is still missing, in order; warm-up runs have negative turns."""
    study, done = results.study, results.completed()
    asked = results.manifest["repetitions"]
    counts = {combination: study.repetitions_of(combination, asked) for combination in study.combinations()}
    left = [
        (n, combination)
        for n in range(max(counts.values(), default=0))
        for combination in study.turn(n)
        if n < counts[combination] and (n, combination) not in done
    ]
    needed = {combination for _, combination in left}
    warm = [
        (n, combination)
        for n in range(-study.default_warmups(), 0)
        for combination in study.turn(n)
        if combination in needed and study.warms_up(combination)
    ]
    return warm + left


def run(results: Results[Study], testbed: Testbed, on_progress: ProgressCallback) -> None:
    """Makes the remaining runs. Raises Failed after too many consecutive failures; completed runs are kept."""
    remaining = remaining_runs(results)
    times: dict[Combination, list[float]] = {}
    for past in results.runs:
        times.setdefault(past.combination, []).append(past.seconds)
    failures = FailuresInARow()
    for index, (turn, combination) in enumerate(remaining):
        record = _run_once(results, testbed, turn, combination)
        times.setdefault(combination, []).append(record.seconds)
        left = _seconds_left(times, [later for _, later in remaining[index + 1 :]])
        on_progress(
            index + 1, len(remaining), f"{combination}: {record.problem or format_duration(record.seconds)}", left
        )
        failures.note(record.problem)


def _run_once(results: Results[Study], testbed: Testbed, turn: int, combination: Combination) -> Run:
    record = Run(results.next_number(), turn, warmup=turn < 0, ok=True, combination=combination, started=time.time())
    directory = results.directory_of(record)
    results.refill_reserve()
    begin = time.monotonic()
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        record.values = results.study.measure(testbed, combination, directory)
        record.seconds = time.monotonic() - begin
        results.add(record)
        return record
    except RunFailed as error:
        record.problem = str(error)
    except Exception as error:
        record.problem = problem_of(error)
        if not is_expected(error):
            with suppress(OSError):
                (directory / "traceback").write_text(traceback.format_exc())
    record.seconds = time.monotonic() - begin
    testbed.recheck_clusters()
    _delete_large_files(directory)  # first: writing the run's row may need the space
    results.add_failed(record)
    return record


def _delete_large_files(directory: Path) -> None:
    """Deletes large files of a failed run, which may have filled the disk."""
    for file in directory.glob("*") if directory.exists() else ():
        if file.is_file() and file.stat().st_size > 1 << 20:
            file.unlink()


def _seconds_left(times: dict[Combination, list[float]], combinations: list[Combination]) -> float | None:
    """Estimated from the mean duration of each combination; of a combination without a run, from the mean of all."""
    known = [seconds for runs in times.values() for seconds in runs]
    if not known:
        return None
    mean = sum(known) / len(known)
    return sum(
        sum(times[combination]) / len(times[combination]) if combination in times else mean
        for combination in combinations
    )


def count_missing(results: Results[Study]) -> int:
    """Number of requested runs that do not count yet."""
    return sum(turn >= 0 for turn, _ in remaining_runs(results))
