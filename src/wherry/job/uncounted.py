"""Why the calls of MPI of a job's ranks are not counted, as far as that is seen from its request or its processes.

Invariant: processes are read, never stopped; a user's files and processes are taken for words, and read with bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wherry.job.mpi_profile import Reading
from wherry.model.job_request import JobRequest
from wherry.model.records import Cluster
from wherry.node import elf
from wherry.node.rank_host import RankHosts

PLAIN = "it was run with --plain"
MACHINES = "its ranks are in virtual machines, whose memory is not read"
EXPECTED = frozenset({"", PLAIN, MACHINES})
"""Reasons that no event reports: the user chose them."""


def at_start(request: JobRequest, cluster: Cluster, programs: Sequence[Path]) -> str:
    """The reason that a request shows; empty when it shows none. Files are read with the caller's rights."""
    if request.plain:
        return PLAIN
    if "container" not in cluster.spec.kinds:
        return MACHINES
    static = [path.name for path in programs if (found := elf.read(path)) and not found.interpreter]
    return f"{static[0]} is statically linked, so no library can be loaded into it" if static else ""


def while_it_runs(reading: Reading, hosts: RankHosts) -> str:
    """The reason that is seen in the job's processes; empty when calls of a rank are counted, or no rank is seen.
    LostContact when a host of them does not answer."""
    if reading.pages or not reading.bare:
        return ""
    reasons = [hosts(host).why_uncounted(node, pid) for host, node, pid in reading.bare]
    return max(reasons, key=len)  # of a script and its program, the program's, which has most words
