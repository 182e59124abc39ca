"""The native programs with ASan and UBSan: built once for all tests and workers, again only where a source changed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_TOP = Path(__file__).resolve().parents[1]
_BUILD = _TOP / "build" / "sanitized"


def sanitized(*targets: str) -> Path:
    """A directory with bin/ and tests/ that has these targets."""
    if not shutil.which("cmake") or not shutil.which("cc"):
        pytest.skip("no C compiler or no CMake")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        at_once = str(len(os.sched_getaffinity(0)))
        for command in (
            ["cmake", "-S", str(_TOP / "native"), "-B", str(_BUILD), "-DWHERRY_SANITIZE=ON"],
            ["cmake", "--build", str(_BUILD), "--parallel", at_once, "--target", *targets],
        ):
            done = subprocess.run(command, timeout=500, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, done.stdout[-4000:]
    return _BUILD
