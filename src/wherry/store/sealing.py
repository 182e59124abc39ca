"""Secrets that must be readable again, encrypted by keys in a file outside of the database and of its backups.

The file has one key a line (Fernet: AES and HMAC): the first one seals, all of them open, so keys of another machine
can be added. Invariants: only the owner can read the file; a secret opens under its own name alone; a lost file is an
error that names it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Failed

_MOST_BYTES = 65_536
_making = threading.Lock()


class Sealing:
    """The keys of one file, which is made with the first secret."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: tuple[tuple[int, ...], MultiFernet] | None = None
        """The keys, and which file they are of."""

    def seal(self, name: str, secret: str) -> str:
        """Encrypts a secret for its name. FAILED when the file is damaged, or others may read it."""
        with _making:
            if not self.path.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(self.path, Fernet.generate_key() + b"\n", lasting=True)
        return self._keys().encrypt(f"{name} {secret}".encode()).decode()

    def open(self, name: str, sealed: str) -> str:
        """The secret. FAILED when it was sealed by another key or for another name."""
        try:
            told = self._keys().decrypt(sealed.encode()).decode()
        except InvalidToken:
            why = f"it was sealed by a key that is not in {self.path}"
            raise self._failed(f"the secret of {name} cannot be read", why) from None
        if not told.startswith(f"{name} "):  # another's, which somebody put into this row
            raise self._failed(f"the secret of {name} cannot be read", "it was sealed for another name")
        return told[len(name) + 1 :]

    def opens(self, name: str, sealed: str) -> bool:
        """Whether the secret can be read."""
        try:
            self.open(name, sealed)
        except Failed:
            return False
        return True

    def adopt(self, file: Path) -> None:
        """Adds the keys of another file behind one's own. FAILED when it is damaged, or others may read it."""
        theirs = _lines(file)
        with _making:
            ours = _lines(self.path) if self.path.exists() else []
            new = [key for key in theirs if key not in ours]
            if new:
                write_atomically(self.path, b"".join(key + b"\n" for key in (*ours, *new)), lasting=True)

    def hand_over(self, file: Path) -> None:
        """Writes the first key to a file, for an earlier version, which has one key."""
        write_atomically(file, _lines(self.path)[0], lasting=True)

    def _keys(self) -> MultiFernet:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from None
        which = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
        known = self._known
        if known is None or known[0] != which:
            known = self._known = (which, MultiFernet([Fernet(key) for key in _lines(self.path)]))
        return known[1]

    def _failed(self, what: str, why: str) -> Failed:
        return Failed(Code.FAILED, what, why, f"append the keys of the machine where it was made to {self.path}")


def _lines(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o077:
                raise Failed(Code.FAILED, f"{path} is not used", "others may read it", f"chmod 600 {path}")
            keys = opened.read(_MOST_BYTES).split()
            for key in keys:
                Fernet(key)
    except (OSError, ValueError) as error:
        raise _unusable(path, getattr(error, "strerror", None) or str(error)) from None
    if not keys:
        raise _unusable(path, "it is empty")
    return keys


def _unusable(path: Path, why: str) -> Failed:
    remedy = f"restore {path} from a copy; without one: wherry down --all"
    return Failed(Code.FAILED, f"secrets cannot be read or written: {path} has no keys", why, remedy)
