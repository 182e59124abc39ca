"""What this process holds, for tests that nothing is left of what it did."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import Counter


def held() -> Counter[str]:
    """Descriptors, threads, and objects by type, without dead weak references: sqlite3 keeps 200 for a connection."""
    gc.collect()
    things = (thing for thing in gc.get_objects() if not (isinstance(thing, weakref.ref) and thing() is None))
    counted = Counter(type(thing).__name__ for thing in things)
    if "coverage" in sys.modules:  # it keeps a tracer, with methods, for each thread that ever ran
        del counted["method"], counted["builtin_function_or_method"]
    counted.update({"a descriptor": len(os.listdir("/proc/self/fd")), "a thread": threading.active_count()})
    return counted
