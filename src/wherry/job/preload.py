"""Table of Wherry's libraries that LD_PRELOAD loads into the ranks of a job.

Invariant: every path in LD_PRELOAD exists on every node of the job. A container sees the file of this machine
(`file_visibility.world_readable`); a virtual machine gets a copy at the same path (`staging`), from the same list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.job.mpi import Family, Mpi

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Whether a polling rank of Open MPI yields its processor. If the user sets it, no library is loaded for that."""
_CROWD = 2.0
"""Ranks per processor above which waiting ranks sleep; with fewer, the latency of small messages costs more than it
gains."""


@dataclass(frozen=True)
class Library:
    """A row of the table: a shared library and the jobs that need it.

    `before`: only for MPIs older than this version; empty: every version. `crowded`: only for jobs with more ranks per
    processor than _CROWD.
    """

    name: str
    family: Family
    purpose: str
    before: tuple[int, ...] = ()
    crowded: bool = False


LIBRARIES = (
    Library(
        "libwherry-finalize.so",
        Family.MPICH,
        "MPI_Finalize over UCX and TCP ends although ranks reach it at different times",
        before=(4, 2),
    ),
    Library(
        "libwherry-yield.so",
        Family.OPENMPI,
        "a rank that waits sleeps between polls, as sched_yield does not reach ranks of other nodes' cgroups",
        crowded=True,
    ),
)


def chosen(mpi: Mpi, env: Mapping[str, str], crowd: float, whole: bool) -> tuple[Library, ...]:
    """The libraries that a job needs. `crowd`: ranks of all jobs per processor; `whole`: all its nodes are virtual
    machines, in which the MPI itself detects oversubscription."""
    crowded = crowd > _CROWD and not whole and YIELD not in env
    return tuple(
        library
        for library in LIBRARIES
        if library.family is mpi.family
        if not library.before or mpi.version < library.before
        if crowded or not library.crowded
    )


def variable(paths: Iterable[Path], env: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD: these libraries, then the user's own; empty when there are none."""
    return " ".join(filter(None, (*map(str, paths), env.get("LD_PRELOAD"))))
