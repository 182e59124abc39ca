"""Names of objects that tests make on the machine: each checkout and each worker has its own, as all run at once."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import killed_runs

killed_runs.begin()
_OURS = zlib.crc32(f"{Path(__file__).parent} {os.environ.get('PYTEST_XDIST_WORKER', '')}".encode()) & 0xFFFF


def is_ours(name: str) -> bool:
    """Whether `own_name` gave it to an instance of this worker."""
    return name.endswith(f"{_OURS:04x}")


def own_name(role: str) -> str:
    """A name for an instance, which has 8 letters at most: those of `role`, at most 4, and ours."""
    assert len(role) <= 4, role
    killed_runs.note(name := f"{role}{_OURS:04x}")
    return name
