"""Libraries of Wherry's that LD_PRELOAD loads into the ranks of a job, as one table.

Invariant: what LD_PRELOAD names is at that path on every node of the job. A container sees the file of this machine
(`visible.public_file`); a virtual machine gets a copy under the same path (`ship`), from the same tuple of paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.job.mpi import Family, Mpi

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Whether a polling rank of Open MPI yields its processor. A user who sets it gets that, and no library."""
_CROWD = 2.0
"""Ranks for each processor above which waiting ranks sleep; with fewer, small messages would lose more than that
gains."""


@dataclass(frozen=True)
class Library:
    """A row of the table: a shared library of ours and the jobs that need it.

    `before`: only MPIs older than this version need it; empty: every version. `crowded`: only jobs whose waiting ranks
    keep others from their processors need it.
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
    """The libraries that a job needs. `crowd` is ranks for each processor, of all jobs; `whole`: all its nodes are
    virtual machines, inside which the MPI counts its own ranks and processors."""
    crowded = crowd > _CROWD and not whole and YIELD not in env
    return tuple(
        library
        for library in LIBRARIES
        if library.family is mpi.family
        if not library.before or mpi.version < library.before
        if crowded or not library.crowded
    )


def variable(paths: Iterable[Path], env: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD: these libraries before the user's own; empty when there are none."""
    return " ".join(filter(None, (*map(str, paths), env.get("LD_PRELOAD"))))
