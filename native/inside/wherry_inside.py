"""Questions and hints of a running MPI program in Python to Wherry; see wherry.h, whose functions have the same names.

    wherry run hello -n 4 --env PYTHONPATH=$(wherry inside python) -- python3 program.py

Outside of Wherry `active()` is False, `where()` is None, `hosts()` is empty, and acts and hints return False at once.
Under Wherry they return True, or raise `InsideError`. Of the standard library only, for Python 3.8 and newer; it loads
libwherry.so, which lies in the same directory or beside it in lib/, when the program runs under Wherry.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional

OK, OUTSIDE = 0, 1
E_ARGUMENT, E_REFUSED, E_FAILED, E_DENIED, E_BUSY, E_UNREACHABLE, E_SYSTEM = range(-1, -8, -1)
_NAME = 128
_ROOM = 4096
"""Most hosts that are reported."""


class InsideError(Exception):
    """`code` is one of E_ARGUMENT, E_REFUSED, …; the text is the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Place(NamedTuple):
    """Where a rank's node is. `rank` is -1 when it is not known."""

    job: str
    cluster: str
    node: str
    host: str
    site: str
    rank: int
    ranks: int


class Host(NamedTuple):
    """A host, with its room. `load` is None when it was not measured; `nodes` are this job's."""

    name: str
    site: str
    cores: float
    free_cores: float
    load: Optional[float]
    speed: float
    memory: int
    free_memory: int
    nodes: int
    usable: bool


class _Place(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char * _NAME) for name in ("job", "cluster", "node", "host", "site")),
        ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int),
    ]


class _Host(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char * _NAME) for name in ("name", "site")),
        *((name, ctypes.c_double) for name in ("cores", "free_cores", "load", "speed")),
        *((name, ctypes.c_uint64) for name in ("memory", "free_memory")),
        *((name, ctypes.c_int) for name in ("nodes", "usable")),
    ]


_loaded: Optional[ctypes.CDLL] = None


def _library() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        here, name = Path(__file__).resolve().parent, "libwherry.so"
        found = [path for path in (here / name, here.parent / "lib" / name) if path.exists()]
        _loaded = ctypes.CDLL(str(found[0] if found else name))
        _loaded.wherry_error.restype = ctypes.c_char_p
        _loaded.wherry_move_when_cheap.argtypes = [ctypes.c_char_p, ctypes.c_double, ctypes.c_double]
        _loaded.wherry_iterations_left.argtypes = [ctypes.c_long]
        _loaded.wherry_expected.argtypes = [ctypes.c_double]
    return _loaded


def _call(name: str, *arguments: object) -> bool:
    """False outside of Wherry. The interpreter's lock is free while the call waits."""
    if not active():
        return False
    result = getattr(_library(), name)(*arguments)
    if result < 0:
        raise InsideError(result, _library().wherry_error().decode(errors="replace"))
    return bool(result == OK)


def active() -> bool:
    """True under Wherry."""
    return "WHERRY_SERVICE" in os.environ and "WHERRY_TOKEN" in os.environ


def where(rank: Optional[int] = None) -> Optional[Place]:
    """Where this rank is, or another one."""
    found = _Place()
    told = (
        _call("wherry_where", ctypes.byref(found))
        if rank is None
        else _call("wherry_where_rank", ctypes.c_int(rank), ctypes.byref(found))
    )
    names = (found.job, found.cluster, found.node, found.host, found.site)
    return Place(*(name.decode() for name in names), found.rank, found.ranks) if told else None


def hosts() -> List[Host]:
    """The hosts, and their free resources."""
    found, count = (_Host * _ROOM)(), ctypes.c_int(0)
    if not _call("wherry_hosts", found, ctypes.c_int(_ROOM), ctypes.byref(count)):
        return []
    return [
        Host(
            one.name.decode(),
            one.site.decode(),
            one.cores,
            one.free_cores,
            one.load if one.load >= 0 else None,
            one.speed,
            one.memory,
            one.free_memory,
            one.nodes,
            bool(one.usable),
        )
        for one in found[: min(count.value, _ROOM)]
    ]


def move(host: str, rank: Optional[int] = None, node: Optional[str] = None) -> bool:
    """Moves the own node, a rank's or a named one, and returns when it is there."""
    if node is not None:
        return _call("wherry_move_node", node.encode(), host.encode())
    if rank is not None:
        return _call("wherry_move_rank", ctypes.c_int(rank), host.encode())
    return _call("wherry_move", host.encode())


def move_when_cheap(host: Optional[str] = None, downtime: float = 0.5, within: float = 600.0) -> bool:
    """Leaves it to the daemon when the own node moves to `host`, or, without one, what moves where."""
    return _call("wherry_move_when_cheap", host.encode() if host else None, downtime, within)


def balance() -> int:
    """The daemon measures the job and moves nodes where that pays; how many nodes that were."""
    moved = ctypes.c_int(0)
    _call("wherry_balance", ctypes.byref(moved))
    return moved.value


@contextmanager
def phase(name: str, critical: bool = False) -> Iterator[None]:
    """A phase of this rank. Amid a critical one the balancer moves nothing of the job."""
    _call("wherry_phase_begin", name.encode(), ctypes.c_int(critical))
    try:
        yield
    finally:
        _call("wherry_phase_end")


def iterations_left(count: int) -> bool:
    """How many iterations are left. From the second call on the daemon can compute how long one takes."""
    return _call("wherry_iterations_left", count)


def expected(seconds: float) -> bool:
    """The job is expected to take so many more seconds."""
    return _call("wherry_expected", seconds)
