"""tilecc works in paths with spaces."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"


@pytest.mark.parametrize("words", [["programs/count.c"], ["--mpi", "mpi/examples/ep.c"]], ids=["tile", "mpi"])
def test_tilecc_works_in_a_path_with_a_space(tmp_path: Path, words: list[str]) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    here = tmp_path / "a checkout" / "native"
    shutil.copytree(NATIVE, here)
    *options, source = words
    command = [str(here / "tilecc"), *options, "-o", str(tmp_path / "a program"), str(here / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a program").read_bytes().startswith(b"\x7fELF")
