"""`wherry run --deterministic`: the same bits wherever ranks are and while they move, by the MPI's way or ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
NATIVE = Path(__file__).resolve().parents[2] / "native"
FABRIC = """\
kind: fabric
version: 1
name: exact
sites: [{name: a}, {name: b}]
hosts:
  - {name: a1, site: a, cores: 2, memory: 1GiB}
  - {name: b1, site: b, cores: 2, memory: 1GiB}
links:
  - {between: [a, b], latency: 2ms}
"""


@pytest.fixture(scope="module")
def far() -> Iterator[RealInstance]:
    """Four nodes at two sites, 2 ms apart."""
    with real_instance("tsde") as created:
        created.kept.make(lambda: make(created))
        yield created


def make(far: RealInstance) -> None:
    far.json("fabric", "up", far.file("exact.yaml", FABRIC))
    far.up("four", 4, more="placement: spread\n")


def running(far: RealInstance, program: str) -> int:
    """Ranks of the program."""
    return sum(words.startswith(program) for words in far.processes().values())


@pytest.mark.parametrize("by", [(), ("--site-collectives",)], ids=["own", "by sites"])
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_placement_and_moves_change_no_bit(far: RealInstance, flavour: str, by: tuple[str, ...]) -> None:
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"no mpicc.{flavour} on this machine")
    program = str(far.directory / f"ordered-{flavour}")
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", f"-I{NATIVE / 'mpi'}", "-o", program]
    words = [f"mpicc.{flavour}", *options, str(NATIVE / "tests" / "mpi_ordered.c")]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    said = set()
    run = ("run", "four", "-n", "6", "--deterministic", *by)
    hosts = far.hosts_of("four")
    together = [node for node in hosts if hosts[node] == "a1"]
    for layout in (("--hosts", ",".join(together)), ("--map-by", "node")):
        seconds = "12" if layout[0] == "--map-by" else "1"
        with far.start(*run, *layout, "--", program, "5", "6", seconds) as job:
            if layout[0] == "--map-by":
                assert eventually(lambda: running(far, program), 6) == 6
                time.sleep(4.0)  # of the twelve seconds: they have initialized MPI
                assert job.poll() is None
                far.move(together[0], "b1")
            out, complaints = job.communicate(timeout=240)
        assert job.returncode == 0, complaints
        said.add(out)
    assert len(said) == 1 and said.pop().endswith(f", {'all' if by else 'not'} in order, the same again\n")
    assert far.json("job", "list")["jobs"][-1]["deterministic"] is True
