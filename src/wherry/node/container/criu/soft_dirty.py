"""Whether the kernel tells which pages were written since it was asked to forget (CONFIG_MEM_SOFT_DIRTY).

Rounds of pre-copy need it: CRIU sends what was written since the last round only.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from pathlib import Path

_BIT = 1 << 55
"""Of an entry of /proc/PID/pagemap (kernel: Documentation/admin-guide/mm/soft-dirty.rst)."""


@functools.cache
def tracked() -> bool:
    """True when a page that is written after the marks were cleared is marked, and one that is not, is not."""
    page = mmap.PAGESIZE
    try:
        with mmap.mmap(-1, 2 * page) as memory, open("/proc/self/pagemap", "rb", 0) as map:
            memory[0] = memory[page] = 1
            Path("/proc/self/clear_refs").write_text("4")
            memory[0] = 2
            map.seek(ctypes.addressof(ctypes.c_char.from_buffer(memory)) // page * 8)
            written, untouched = struct.unpack("QQ", map.read(16))
    except (OSError, struct.error):
        return False
    return bool(written & _BIT) and not untouched & _BIT
