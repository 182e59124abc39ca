"""Replaces a file as a whole, or makes it once.

Invariant: a reader, or whoever comes after a crash, finds the old content or the new one, never a part; writers of the
same file at the same time do not disturb each other.
"""

from __future__ import annotations

import contextlib
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


def write_once(path: Path, content: bytes) -> bytes:
    """Makes a file that its owner alone can read, and its directory, unless it is there. Returns what it contains: that
    of the first writer, if there are several at the same time."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent) as whole:
            whole.write(content)
            whole.flush()
            with contextlib.suppress(FileExistsError):
                os.link(whole.name, path)
    return path.read_bytes()
