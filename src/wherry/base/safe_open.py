"""Opens files whose names users choose.

Invariant: the open does not block on a FIFO, and no FIFO or device is read, even when the file is replaced meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


def open_regular(name: str | os.PathLike[str]) -> BufferedReader:
    """Opens a regular file for reading. OSError when it is none."""
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(name))
    return os.fdopen(fd, "rb")
