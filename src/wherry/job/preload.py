"""Table of Wherry's libraries that LD_PRELOAD loads into the ranks of a job, and into its launcher.

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


@dataclass(frozen=True)
class Library:
    """A row of the table: a shared library and the jobs that need it.

    `families`: of these MPIs. `before`: only for those older than this version; empty: every version. `containers`:
    only where a node is a container. `waits`: only where ranks talk through sockets alone, which is so unless all nodes
    are virtual machines or the user has another way of waiting. `plain`: also in a job whose ranks are to have nothing
    of Wherry inside MPI, since it would not end, not move, or see its host's memory without. Each is loaded before the
    next ones: the library that distinguishes a test from a wait before the one with counters.
    """

    name: str
    families: tuple[Family, ...]
    purpose: str
    before: tuple[int, ...] = ()
    containers: bool = False
    waits: bool = False
    plain: bool = False


LIBRARIES = (
    Library(
        "libwherry-finalize.so",
        (Family.MPICH,),
        "MPI_Finalize over UCX and TCP ends although ranks reach it at different times",
        before=(4, 2),
        plain=True,
    ),
    Library(
        "libwherry-remap.so",
        tuple(Family),
        "mremap works over memory that was mapped before and while a move tracks it",
        containers=True,
        plain=True,
    ),
    Library(
        "libwherry-memory.so",
        tuple(Family),
        "sysinfo and sysconf tell the node's memory, not its host's",
        containers=True,
        plain=True,
    ),
    Library(
        "libwherry-wait.so",
        tuple(Family),
        "a rank that polls in vain sleeps until its next message while others want its processor",
        waits=True,
    ),
    Library(
        "libwherry-mpi.so",
        tuple(Family),
        "the calls of MPI are counted where they can be read while the job runs",
    ),
)

LAUNCHER = (
    Library(
        "libwherry-output.so",
        (Family.OPENMPI,),
        "a rank waits while its output does, which the launcher would queue in memory",
    ),
)
"""The libraries that are loaded into the launcher and its daemons on nodes, which do not pass them on to ranks."""


def chosen(mpi: Mpi, env: Mapping[str, str], whole: bool, plain: bool = False) -> tuple[Library, ...]:
    """The libraries that a job needs. `whole`: all its nodes are virtual machines, whose ranks share memory. `plain`:
    its ranks are to have nothing of Wherry inside MPI."""
    sockets_only = not whole and YIELD not in env
    return tuple(
        library
        for library in LIBRARIES
        if _is_for(library, mpi)
        if not (whole and library.containers)
        if sockets_only or not library.waits
        if library.plain or not plain
    )


def for_launcher(mpi: Mpi) -> tuple[Library, ...]:
    """The libraries that the launcher needs."""
    return tuple(library for library in LAUNCHER if _is_for(library, mpi))


def _is_for(library: Library, mpi: Mpi) -> bool:
    return mpi.family in library.families and (not library.before or mpi.version < library.before)


def variable(paths: Iterable[Path], env: Mapping[str, str]) -> str:
    """The value of LD_PRELOAD: these libraries, then the user's own; empty when there are none."""
    return " ".join(filter(None, (*map(str, paths), env.get("LD_PRELOAD"))))
