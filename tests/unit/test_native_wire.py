"""The parser of the wire under libFuzzer, for a moment; a longer run is in the fuzz target's own file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2] / "native"


def test_no_input_breaks_the_parser(tmp_path: Path) -> None:
    if not shutil.which("clang"):
        pytest.skip("no clang: apt-get install clang")
    flags = ["-g", "-O1", "-D_GNU_SOURCE", "-fsanitize=fuzzer,address,undefined", "-I", f"{TOP}/include"]
    sources = [f"{TOP}/fuzz/fuzz_wire.c", f"{TOP}/lib/wire.c"]
    built = subprocess.run(
        ["clang", *flags, *sources, "-o", f"{tmp_path}/fuzz"], capture_output=True, text=True, timeout=120
    )
    if "cannot find" in built.stderr and "libclang_rt" in built.stderr:
        pytest.skip("clang has no libFuzzer: apt-get install libclang-rt-dev")
    assert built.returncode == 0, built.stderr
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "run").write_bytes(b"0\x000\x004,24\x00/\x002\x00ls\x00-l\x00A=b\x00")
    (corpus / "frame").write_bytes(bytes.fromhex("500000000132"))
    (corpus / "kill").write_bytes(b"10 9")
    fuzz = [f"{tmp_path}/fuzz", "-seed=1", "-runs=200000", "-max_len=4096", str(corpus)]
    done = subprocess.run(fuzz, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
