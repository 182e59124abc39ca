"""Programs of others, by Debian's packages, under many moves: their output is the same as natively, in all digits that
they repeat natively: CP2K does not in the last three of fifteen, nor NWChem in differences of energies. Programs that
are not installed (make setup-apps) are skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, real_instance

from wherry.lab import native_mpirun

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
INPUTS = Path(__file__).with_name("codes")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
RANKS = 3


@dataclass(frozen=True)
class Code:
    """A program with its input, and the lines of its output that are results."""

    program: str
    input: str
    words: tuple[str, ...]
    results: str
    probe: str = ""
    """A command that has to succeed, where it is not enough that there is the program."""


CODES = {
    "quantum-espresso": Code("pw.x", "silicon.in", ("-in", "silicon.in"), r"^!.*|.*(?:Ekin|temperature +=).*"),
    "cp2k": Code("cp2k.psmp", "water.inp", ("-i", "water.inp"), r"ENERGY\|.*\d\.\d{10}"),
    "nwchem": Code("nwchem.openmpi", "water.nw", ("water.nw",), r"^@ +\d+ +-\d+\.\d{8}"),
    "hdf5": Code(
        "/usr/bin/python3", "all_write.py", ("all_write.py",), r"^RESULT.*",
        "import h5py, mpi4py, sys; sys.exit(not h5py.get_config().mpi)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def three() -> Iterator[RealInstance]:
    with real_instance("tcod") as created:
        created.kept.make(lambda: created.up("three", RANKS, memory="1GiB", cpus=0.5))
        yield created


def lines(code: Code, output: str) -> list[str]:
    return [found[0] for found in re.finditer(code.results, output, re.MULTILINE)]


def beside(directory: Path, code: Code) -> Path:
    """A new directory with the input: some programs begin where an earlier run ended."""
    directory.mkdir()
    shutil.copy(INPUTS / code.input, directory)
    return directory


@pytest.mark.parametrize("name", CODES)
def test_moves_change_no_digit(three: RealInstance, name: str) -> None:
    code = CODES[name]
    program = shutil.which(code.program)
    probe = ["/usr/bin/python3", "-c", code.probe] if code.probe else ["true"]
    env = {"H5PY_ALWAYS_USE_MPI": "1"}
    if not program or subprocess.run(probe, capture_output=True, env={**os.environ, **env}).returncode:
        pytest.skip(f"{name} is not installed: make setup-apps")
    here = beside(three.directory / f"{name}-native", code)
    launch = [native_mpirun.LAUNCHERS["openmpi"], *native_mpirun.options("openmpi", "tcp"), "-n", str(RANKS)]
    native = subprocess.run(
        [*launch, program, *code.words],
        cwd=here, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert native.returncode == 0, native.stdout[-2000:] + native.stderr[-2000:]

    here = beside(three.directory / f"{name}-moved", code)
    words = ["--mpi", "openmpi", "-x", "OMP_NUM_THREADS=1", "-n", str(RANKS), "--wdir", str(here), "--", program]
    job = three.start("run", "three", *words, *code.words)
    moved = []
    try:
        for _ in range(20):
            there = next(host for host in ("b2", "b1") if host != three.hosts_of("three")["three-2"])
            move = three("move", "three-2", "--to", there)
            if job.poll() is not None:
                break
            assert move.returncode == 0, move.stderr
            moved.append(there)
    finally:
        out, err = job.communicate(timeout=SECONDS)
    assert job.returncode == 0, (out[-2000:], err[-2000:])
    assert len(moved) >= 2, "it ended before it was moved"
    assert lines(code, out) == lines(code, native.stdout) != []
