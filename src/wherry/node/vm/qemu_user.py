"""The user that the QEMUs of emulated hosts run as, so that a guest which breaks out of QEMU is not root.

Invariant: files that QEMU reads are root's, in directories of root's, and readable by QEMU's group; only the disk that
a node writes is QEMU's own. So a QEMU that was taken over can put no link where root writes.
"""

from __future__ import annotations

import os
from pathlib import Path

QEMU_UID = 64055
"""User and group id: reserved by Debian for libvirt-qemu (base-passwd), whether or not a package made that user."""


def grant_read(path: Path) -> None:
    """Lets QEMU read a file, or pass through a directory; nobody but root else."""
    os.chown(path, 0, QEMU_UID)
    path.chmod(0o710 if path.is_dir() else 0o640)


def grant_ownership(path: Path) -> None:
    """Lets QEMU read and write a file."""
    os.chown(path, QEMU_UID, QEMU_UID)
    path.chmod(0o600)
