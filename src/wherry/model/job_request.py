"""What is asked for when a program is to be run."""

from __future__ import annotations

from wherry.model.objects import Record
from wherry.model.owner import Owner


class JobRequest(Record):
    """A program as `ranks` ranks on a cluster, as `owner`, whose variables `env` are.

    `mpi` is openmpi, mpich or a launcher's path; None is what the program is linked against. With `input` rank 0 reads
    what is sent to the job; without it reads nothing. `expected` is how many seconds it is thought to take.
    """

    cluster: str
    argv: tuple[str, ...]
    ranks: int
    owner: Owner
    env: dict[str, str]
    mpi: str | None = None
    input: bool = False
    expected: float | None = None
