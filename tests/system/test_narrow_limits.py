"""Limits that are too narrow for an MPI's launcher hold for ranks alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from realworld import RealInstance

import waiting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
NARROW = "ulimit -v 60000; ulimit -d 50000; ulimit -t 30; ulimit -n 20; ulimit -s 512"
TELLS = "ulimit -v; ulimit -d; ulimit -t; ulimit -n; ulimit -s"


@pytest.mark.smoke
@pytest.mark.parametrize("flavour", LAUNCHERS)
def test_limits_hold_for_ranks_alone(four: RealInstance, flavour: str) -> None:
    """With this address space Open MPI's daemon ended on its node without a word, and the job never did."""
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    run = [*four.command, "run", "four", "-n", "1", "--mpi", flavour, "sh", "-c", f"{TELLS}; env"]
    line = ["sh", "-c", f'{NARROW}; exec "$@"', "sh", *run]
    done = subprocess.run(
        line,
        cwd=four.directory,
        env=four.environment,
        capture_output=True,
        text=True,
        timeout=waiting.bound(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("60000\n50000\n30\n20\n512\n") and "WHERRY_LIMITS" not in done.stdout, done.stdout
