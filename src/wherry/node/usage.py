"""What the processes of a node use, as its cgroup tells."""

from __future__ import annotations

import os
from pathlib import Path

from wherry.fabric.cgroup import Cgroup
from wherry.node.protocol import Usage


def usage_of(group: Cgroup) -> Usage:
    """Of a container that of its processes; of a virtual machine that of its QEMU."""
    pids = group.pids()
    return Usage(
        memory=sum(_resident(pid) for pid in pids),
        cpu=group.cpu_seconds(),
        processes=len(pids),
        throttled=group.throttled(),
    )


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
