"""Opening a file whose name is a user's.

Invariant: whoever exchanges the file for a FIFO or a device meanwhile holds up nobody, and is given nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


def open_regular(name: str | os.PathLike[str]) -> BufferedReader:
    """A regular file, to be read. OSError when it is not one."""
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(name))
    return os.fdopen(fd, "rb")
