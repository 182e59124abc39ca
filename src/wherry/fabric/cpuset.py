"""CPU sets: the processors, and the NUMA nodes of memory, that the processes of a pinned node may use.

They are of the controller `cpuset`, in the directory of the node's cgroup: in v1 in a hierarchy of its own, in v2 in
the only one.
Invariant: all state is the kernel's. A set goes with its cgroup (`Cgroup.remove`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from wherry.base.cpu_list import parse_cpu_list
from wherry.base.errors import Code, Failed
from wherry.model.records import Pin

_PASSES = 16
"""Passes over a node's processes: each finds the processes that were forked during the one before."""
_NODES = Path("/sys/devices/system/node")


@functools.cache
def _root() -> tuple[Path, bool] | None:
    """Where the controller is, and whether that is v2; None when this machine has none."""
    v2: Path | None = None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = (after.split() + ["", "", ""])[:3]
        path = Path(before.split()[4].replace("\\040", " "))
        if kind == "cgroup" and "cpuset" in options.split(","):
            return path, False
        if kind == "cgroup2" and v2 is None and "cpuset" in _read(path / "cgroup.controllers").split():
            v2 = path
    return (v2, True) if v2 else None


def v1_root() -> Path | None:
    """The root of the hierarchy in which the controller is alone; None in v2, and without the controller."""
    return root[0] if (root := _root()) is not None and not root[1] else None


def create(cgroup: str) -> None:
    """Makes the cgroup in v1, with the processors and memory of the one above it. Failed when the kernel refuses."""
    if (root := v1_root()) is not None:
        with _told(cgroup, "made for CPU sets"):
            _prepare(root, False, cgroup.strip("/"))


def add(cgroup: str, pid: int) -> None:
    """Moves a process with all its threads into the cgroup in v1. Failed when the kernel refuses."""
    if (root := v1_root()) is not None:
        with _told(cgroup, f"joined by process {pid}"):
            _write(root / cgroup.strip("/") / "cgroup.procs", str(pid))


def usable() -> tuple[int, ...]:
    """The processors of this machine that nodes can be pinned to, in order; none where nothing pins them."""
    return tuple(sorted(os.sched_getaffinity(0))) if _root() else ()


def numa_nodes() -> dict[int, tuple[int, ...]]:
    """The processors of each NUMA node of this machine. One without any has memory alone and is left out."""
    found = {}
    for path in sorted(_NODES.glob("node[0-9]*")):
        with contextlib.suppress(ValueError):  # it has none
            found[int(path.name.removeprefix("node"))] = parse_cpu_list(_read(path / "cpulist"))
    return found or {0: tuple(sorted(os.sched_getaffinity(0)))}


def pin_processes(cgroup: str, pin: Pin, pids: Callable[[], list[int]]) -> None:
    """Restricts the processes of a cgroup, which `pids` lists, and their children to the pin. Their memory moves to its
    NUMA node. Failed when the kernel refuses."""
    found = _root()
    if found is None:
        raise Failed(
            Code.UNSUPPORTED, f"cgroup {cgroup} was not pinned", "there is no controller cpuset", "wherry doctor"
        )
    root, v2 = found
    name = cgroup.strip("/")
    with _told(cgroup, "pinned to CPUs"):
        _prepare(root, v2, name)
        _write(root / name / "cpuset.cpus", ",".join(map(str, pin.cpus)))
        if not v2:
            _write(root / name / "cpuset.memory_migrate", "1")
        if pin.memory is not None:
            _write(root / name / "cpuset.mems", str(pin.memory))
        if not v2:
            _gather(root / name / "cgroup.procs", pids)


def pinned_to(cgroup: str) -> tuple[int, ...]:
    """The processors of a cgroup's set; none when it has no set of its own."""
    found = _root()
    text = _read(found[0] / cgroup.strip("/") / "cpuset.cpus").strip() if found else ""
    return parse_cpu_list(text) if text else ()


@contextlib.contextmanager
def _told(cgroup: str, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        raise Failed(Code.FAILED, f"cgroup {cgroup} was not {done}", why, "wherry doctor") from None


def _prepare(root: Path, v2: bool, name: str) -> None:
    """Makes the cgroup and those above it: in v1 each needs a set before it takes processes, in v2 the controller."""
    above = root
    for part in Path(name).parts:
        if v2:
            _write(above / "cgroup.subtree_control", "+cpuset")
        path = above / part
        path.mkdir(exist_ok=True)
        for file in () if v2 else ("cpuset.cpus", "cpuset.mems"):
            if not _read(path / file).strip():
                _write(path / file, _read(above / file).strip())
        above = path


def _gather(procs: Path, pids: Callable[[], list[int]]) -> None:
    for _ in range(_PASSES):
        strays = set(pids()) - set(map(int, _read(procs).split()))
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):  # it ended
                _write(procs, str(pid))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """OSError names the file, also when it is the write that fails."""
    try:
        path.write_text(text)
    except OSError as error:
        error.filename = str(path)
        raise
