"""Replaces a file as a whole, or makes it once.

Invariants: a reader, also after a crash of the writer, finds the old content or the new one, never a part;
writers of the same file at the same time do not disturb each other. A file made once, or `lasting`, survives a power
cut as soon as the call returns; anything else may be old, gone or empty after one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o600, *, lasting: bool = False) -> None:
    """Writes a temporary file (`.NAME.…`, in the same directory) and renames it. With `lasting` it waits for the disk,
    which is for files that cannot be made again: keys, identities, records for `down --all`."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if lasting:
        _keep_names(path.parent)


def write_once(path: Path, content: bytes) -> bytes:
    """Makes a file that its owner alone can read, and its directory, unless it is there. Returns its content: that
    of the first writer, if there are several at the same time. It waits for the disk."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent) as whole:
            whole.write(content)
            whole.flush()
            os.fsync(whole.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(whole.name, path)
        _keep_names(path.parent, path.parent.parent)
    return path.read_bytes()


def _keep_names(*directories: Path) -> None:
    """Waits until the names in directories are on the disk."""
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
