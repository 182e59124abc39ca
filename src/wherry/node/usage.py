"""Resource usage of a node on an emulated host, from its cgroup and its port."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import WherryError
from wherry.fabric import netns_links
from wherry.fabric.cgroup import Cgroup
from wherry.node.protocol import Placement, Usage


def usage_of(placement: Placement, host_netns: str) -> Usage:
    """The usage of a container's processes, or of a virtual machine's QEMU."""
    group = Cgroup(placement.cgroup)
    pids = group.pids()
    sent = received = None
    with suppress(WherryError):  # the host was removed
        if placement.netns == host_netns:  # the TAP receives the frames that the node sends
            sent, received = netns_links.inside(host_netns, lambda ip: ip.byte_counters(placement.device))
        else:  # its own end: frames that are forwarded directly do not pass the host's (before Linux 6.8 uncounted)
            received, sent = netns_links.inside(placement.netns, lambda ip: ip.byte_counters("eth0"))
    return Usage(
        memory=sum(_resident(pid) for pid in pids),
        cpu=group.cpu_seconds(),
        processes=len(pids),
        throttled=group.throttled(),
        oom_kills=group.oom_kills(),
        refused_tasks=group.refused_tasks(),
        received=received,
        sent=sent,
    )


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
