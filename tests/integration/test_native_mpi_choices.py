"""The choice between the MPI library's own algorithm and ours, with times that are given."""

from __future__ import annotations

import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2] / "native"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{TOP}/mpi"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_the_better_way_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "test_mpi_choices"
    sources = [TOP / "tests" / "test_mpi_choices.c", TOP / "mpi" / "choices.c"]
    subprocess.run(["gcc", *FLAGS, *SANITIZERS, *sources, "-o", program], check=True, timeout=200)
    subprocess.run([program], check=True, timeout=100)
