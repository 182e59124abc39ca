"""LAMMPS and GROMACS of Debian: results on a cluster with a move are identical to native ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from names import own_name
from wherry.base.paths import instance
from wherry.client import daemon_process
from wherry.lab.applications import APPLICATIONS
from wherry.lab.study import applications
from wherry.lab.study.levels import Value
from wherry.lab.study.testbed import ClusterShape, Testbed
from wherry.lab.study.workloads import MoveSchedule

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

PLACE = ClusterShape("three", 3, ("a1", "a2", "b1"))
MOVING = MoveSchedule("three-2", ("b1", "b2"), after=0.3)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A testbed with an instance that is removed afterwards."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="wherry-tapps-") as created:
        patch.setenv("WHERRY_INSTANCE", own_name("tapp"))
        yield Path(created)
        daemon_process.stop(instance())
        daemon_process.sweep()


@pytest.fixture(scope="module")
def testbed(directory: Path) -> Iterator[Testbed]:
    created = Testbed(directory)
    yield created
    created.close()


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_a_move_changes_no_digit(directory: Path, testbed: Testbed, name: str) -> None:
    if why := APPLICATIONS[name].why_missing():
        pytest.skip(why)

    def run(how: str, cluster: ClusterShape | None, move_schedule: MoveSchedule | None = None) -> dict[str, Value]:
        where = directory / f"{name}-{how}"
        where.mkdir()
        values = applications.run(testbed, name, cluster, where, APPLICATIONS[name].steps[1], 3, move_schedule)
        return {value.metric: value for value in values}

    native, moved = run("native", None), run("moved", PLACE, MOVING)
    assert moved["downtime"].value > 0
    assert moved["result_crc"] == native["result_crc"]
