"""The request to run an MPI program."""

from __future__ import annotations

from wherry.model.owner import Owner
from wherry.model.records import Record


class JobRequest(Record):
    """A program to run as `ranks` ranks on a cluster, as `owner`, with the environment `env`.

    `mpi` is openmpi, mpich or a launcher's path; None means the library that the program is linked against. With
    `input`, rank 0 reads the input that is sent to the job. `expected` is the estimated duration in seconds.
    """

    cluster: str
    argv: tuple[str, ...]
    ranks: int
    owner: Owner
    env: dict[str, str]
    mpi: str | None = None
    input: bool = False
    expected: float | None = None
