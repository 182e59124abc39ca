"""Whether the kernel tracks dirty pages (CONFIG_MEM_SOFT_DIRTY).

Rounds of pre-copy need it: CRIU sends only the pages that were written since the last round.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from pathlib import Path

_BIT = 1 << 55
"""Soft-dirty bit in /proc/PID/pagemap (kernel: Documentation/admin-guide/mm/soft-dirty.rst)."""


@functools.cache
def tracked() -> bool:
    """True when, after clearing the bits, a page has the bit set once it is written, and an untouched one has not."""
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
