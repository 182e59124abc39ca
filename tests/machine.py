"""The machine's load and shortages, shown beside a failed test: a stray process makes others look broken.

Also the priorities that tests give back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_MOST, _LONGEST = 8, 160


class _Seen(NamedTuple):
    ticks: int
    state: str
    parent: int
    begun: int


def busiest(seconds: float = 0.5) -> str:
    """The load, the free memory, and the processes that used the CPUs most for so long: share of one CPU in per cent,
    state, PID, parent, age in seconds, command."""
    before, began = _processes(), time.monotonic()
    time.sleep(seconds)
    after, took = _processes(), time.monotonic() - began
    hertz, up = os.sysconf("SC_CLK_TCK"), float(Path("/proc/uptime").read_text().split()[0])
    used = {pid: now.ticks - before[pid].ticks if pid in before else now.ticks for pid, now in after.items()}
    lines = [f"load {os.getloadavg()[0]:.1f}, {_free() >> 20} MiB of memory free, {len(after)} processes"]
    for pid in sorted(used, key=lambda pid: -used[pid])[:_MOST]:
        share, now = 100 * used[pid] / hertz / took, after[pid]
        age = up - now.begun / hertz
        lines.append(f"{share:4.0f} % {now.state} {pid} of {now.parent}, {age:.0f} s: {_command(pid)}"[:_LONGEST])
    return "\n".join(lines)


def pressure() -> str:
    """The share of the last ten seconds in which some task waited for a processor, memory or a disk (PSI)."""
    shares = []
    for kind in ("cpu", "memory", "io"):
        file = Path("/proc/pressure", kind)
        if file.exists():
            shares.append(f"{kind} {file.read_text().partition('avg10=')[2].split()[0]} %")
    return f"pressure: {', '.join(shares) or 'unknown to this kernel'}"


def _processes() -> dict[int, _Seen]:
    """proc(5): fields 3, 4, 14, 15 and 22 of stat."""
    found = dict[int, _Seen]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        found[int(name)] = _Seen(int(fields[11]) + int(fields[12]), fields[0].decode(), int(fields[1]), int(fields[19]))
    return found


def _free() -> int:
    return int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) << 10


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes() or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return "(ended)"
    return ascii(words.replace(b"\0", b" ").decode(errors="replace").strip())[1:-1]


@contextmanager
def own_priority() -> Iterator[None]:
    """Gives this thread its priority back. A mover raises it, and an unfinished mover, as of a killed daemon, leaves it
    so: programs of later tests would run before the programs of another worker's tests."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        yield
    finally:
        if os.getpriority(os.PRIO_PROCESS, 0) != before:
            os.setpriority(os.PRIO_PROCESS, 0, before)
