"""The applications (`wherry.lab.applications`) as workloads of studies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.lab.applications import APPLICATIONS
from wherry.lab.study import workloads
from wherry.lab.study.levels import Level, RunFailed, Value
from wherry.lab.study.testbed import ClusterShape, Testbed
from wherry.lab.study.workloads import MoveSchedule

_PREPARE = 300.0
"""Time limit in seconds for preparing GROMACS's input."""


def levels(why_missing: Mapping[str, str], ranks: int) -> list[Level]:
    """The applications as levels of a factor."""
    return [
        Level(name, f"{application.text}, {ranks} ranks", why_missing.get(name, ""))
        for name, application in APPLICATIONS.items()
    ]


def missing_applications() -> dict[str, str]:
    """Applications that are not installed: name -> reason and remedy."""
    return {name: application.why_missing() for name, application in APPLICATIONS.items() if application.why_missing()}


def command(testbed: Testbed, name: str, directory: Path, steps: int) -> list[str]:
    """Writes the input of an application for so many steps, and returns its command. Refused where it is not
    installed."""
    application = APPLICATIONS[name]
    if why := application.why_missing():
        raise Refused(Code.UNSUPPORTED, why, "it is large, so it is optional", "make setup-apps")

    def native(words: list[str], where: Path) -> None:
        testbed.run_native(words, 1, where, _PREPARE).require_success()

    return application.prepare(native, shutil.which(application.program) or application.program, steps, directory)


def run(
    testbed: Testbed,
    name: str,
    cluster: ClusterShape | None,
    directory: Path,
    steps: int,
    ranks: int,
    move_schedule: MoveSchedule | None = None,
) -> list[Value]:
    """Seconds between its first and last one of so many steps, timed from outside, and a checksum of its result.
    Without a cluster: native."""
    application, argv = APPLICATIONS[name], command(testbed, name, directory, steps)
    log = directory / application.log
    seconds, moved = workloads.run_timed_by_file(
        testbed, cluster, argv, ranks, directory, log, application.marks, move_schedule
    )
    last_step, result = application.result(log.read_text(errors="replace"))
    if last_step != steps:
        raise RunFailed(f"{name} came to step {last_step} of {steps}")
    return [Value("seconds", seconds, "s"), workloads.fingerprint(result), *workloads.move_values(moved)]
