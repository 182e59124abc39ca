"""A parser under libFuzzer, ASan and UBSan, for a moment; each file of a directory `fuzz` describes how to run it for
long."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[1] / "native"
_FLAGS = (
    "-g",
    "-O1",
    "-D_GNU_SOURCE",
    "-DWHERRY_TILES_BUILD=1u",
    "-fsanitize=fuzzer,address,undefined,float-cast-overflow",
    f"-I{NATIVE}/include",
)


def fuzz(
    sources: tuple[str, ...], corpus: Mapping[str, bytes], runs: int, longest: int, libraries: tuple[str, ...] = ()
) -> None:
    """Builds `sources` (paths, or names below native/) with `libraries`; gives them `corpus`, then `runs` inputs of
    `longest` bytes."""
    if not shutil.which("clang"):
        pytest.skip("there is no clang (scripts/setup-test)")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # some targets write each input to files
        directory = Path(name)
        words = ["clang", *_FLAGS, *(str(NATIVE / source) for source in sources)]
        words += [*(f"-l{library}" for library in libraries), "-o", f"{name}/fuzz"]
        built = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert built.returncode == 0, built.stderr
        (directory / "corpus").mkdir()
        for title, data in corpus.items():
            (directory / "corpus" / title).write_bytes(data)
        # Fewer runs on a machine that is busy with other things, rather than a failure; but no input may take so long.
        bounds = [f"-runs={runs}", f"-max_len={longest}", "-max_total_time=150", "-timeout=60"]
        words = [f"{name}/fuzz", "-seed=1", *bounds, "corpus"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=name)
        assert done.returncode == 0, done.stderr[-4000:]
