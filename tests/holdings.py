"""The objects that this process holds, for tests that it leaves nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable


def held() -> Counter[str]:
    """Descriptors, threads, and objects by type, without dead weak references: sqlite3 keeps 200 for a connection."""
    gc.collect()
    counted = Counter(type(thing).__name__ for thing in gc.get_objects() if not _is_dead(thing))
    if "coverage" in sys.modules:  # it keeps a tracer, with methods, for each thread that ever ran
        del counted["method"], counted["builtin_function_or_method"]
    counted.update({"a descriptor": len(os.listdir("/proc/self/fd")), "a thread": threading.active_count()})
    return counted


def shown(names: Iterable[str], most: int = 3) -> str:
    """The newest objects of these types, and the types of objects that refer to them: why one is still there."""
    lines = list[str]()
    everything = gc.get_objects()
    for name in names:
        for thing in [one for one in everything if type(one).__name__ == name and not _is_dead(one)][-most:]:
            by = {type(one).__name__ for one in gc.get_referrers(thing) if one is not everything}
            lines.append(f"{thing!r:.200} of {', '.join(sorted(by))}")
    return "\n".join(lines)


def _is_dead(thing: object) -> bool:
    return isinstance(thing, weakref.ref) and thing() is None
