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

PLAIN = "it was run with --plain"
MACHINES = "its ranks are in virtual machines, whose memory is not read"
EXPECTED = frozenset({"", PLAIN, MACHINES})
"""Reasons that no event reports: the user chose them."""
_MAPS = 4 << 20
"""Bytes of a process's list of mappings that are read."""


def at_start(request: JobRequest, cluster: Cluster, programs: Sequence[Path]) -> str:
    """The reason that a request shows; empty when it shows none. Files are read with the caller's rights."""
    if request.plain:
        return PLAIN
    if "container" not in cluster.spec.kinds:
        return MACHINES
    static = [path.name for path in programs if (found := elf.read(path)) and not found.interpreter]
    return f"{static[0]} is statically linked, so no library can be loaded into it" if static else ""


def while_it_runs(reading: Reading) -> str:
    """The reason that is seen in the job's processes; empty when calls of a rank are counted, or no rank is seen."""
    if reading.pages or not reading.bare:
        return ""
    reasons = [_reason(pid) for pid in reading.bare]
    return max(reasons, key=len)  # of a script and its program, the program's, which has most words


def _reason(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            maps = file.read(_MAPS)
    except OSError:  # it has ended
        return ""
    if "/libwherry-mpi.so" not in maps:
        return "its program was started without LD_PRELOAD, or is statically linked"
    if "/libmpi" not in maps:
        return "its program has loaded no MPI library yet"
    return (
        "its program has not called MPI_Init by that name: it may have loaded its MPI library late, and call it by "
        "addresses (dlopen, dlsym)"
    )
