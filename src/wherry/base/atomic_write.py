"""Replaces a file as a whole.

Invariant: a reader, or whoever comes after a crash, finds the old content or the new one, never a part; writers of the
same file at the same time do not disturb each other.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a temporary file (`.NAME.…`, in the same directory) and renames it."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
