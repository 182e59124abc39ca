"""The end of a job as its row has it, from the files in its directory and the counters of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code
from wherry.job import holder_files, outcome
from wherry.model.records import Job, JobState

CANCELLED = "cancelled"
"""File: somebody has asked for the end; it has the reason, or nothing."""
SIGNALLED = "signalled"
"""File: the ranks themselves got a signal for that."""
LOST = "lost"
"""File: the name of a node of the job that was lost."""


def mark_cancelled(directory: Path, reason: str) -> None:
    """Notes that the job's end was asked for."""
    mark = directory / CANCELLED
    mark.touch()
    with suppress(OSError):  # the disk is full, perhaps: only the mark counts
        mark.write_text(reason)


def change_of(
    job: Job,
    directory: Path,
    ended: holder_files.Exit | None,
    ends: Sequence[outcome.End],
    problems: Mapping[str, str],
) -> dict[str, object]:
    """The fields of the job's row that its end changes. `problems`: nodes where leftovers could not be killed."""
    asked = (directory / CANCELLED).exists()
    if asked and (ended is None or ended.stopped or (directory / SIGNALLED).exists()):
        reason = (directory / CANCELLED).read_text()
        code = Code.TAKEN_DOWN if reason else Code.CANCELLED
        change: dict[str, object] = {"state": JobState.CANCELLED, "exit_code": code.exit_code, "reason": reason}
    elif ended:
        change = {"state": JobState.ENDED, "exit_code": ended.code}
    else:
        change = {"state": JobState.LOST, "reason": "its holder was killed, so the exit code is unknown"}
    lost = (directory / LOST).read_text() if (directory / LOST).exists() else ""
    if change["state"] == JobState.ENDED and ended:
        change |= _failure(job, directory, ended, ends, lost)
    elif lost:
        change["reason"] = f"its node {lost} was lost"
    if problems and not change.get("reason"):
        silent = "; ".join(f"{name}: {why}" for name, why in problems.items())
        change["reason"] = f"its leftover processes could not be killed: {silent}"
    return change


def _failure(
    job: Job, directory: Path, ended: holder_files.Exit, ends: Sequence[outcome.End], lost: str
) -> dict[str, object]:
    of_mpi = ended.code and job.kind == "mpi"
    killed = outcome.death(holder_files.read_tail(directory), ended.code) if of_mpi else None
    before, seconds = outcome.read_counted(directory / "counted"), ended.ended - (job.started or ended.ended)
    failure = outcome.failure(job, ended.code, ends, before, killed, lost, seconds)
    if not failure:
        return {}
    reason, remedy = outcome.explained(job, failure)
    return {"state": JobState.FAILED, "exit_code": ended.code, "failure": failure, "reason": reason, "next": remedy}
