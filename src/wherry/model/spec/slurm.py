"""The part of a fabric file that chooses the nodes of a Slurm cluster as hosts."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from wherry.model.spec.base import MOST_HOSTS, Duration, Spec

_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Word = Annotated[str, Field(pattern=_WORD)]
"""A name of Slurm's. It is no option of a program, and has nothing that a shell would take for more."""
LEAST_LEAVE = 30.0
_LEAST_TIME, _MOST_TIME = 60.0, 366 * 86400.0


class SlurmSpec(Spec):
    """Hosts are nodes of an allocation: a requested one (`nodes`, `time`, perhaps `partition` and `account`), and
    another when it ends, or the one with the number `job`, which is SLURM_JOB_ID when the command is given in it.

    `user` (root there) and `port` are of SSH. A host is drained `leave` before its allocation ends; another allocation
    is asked for `ahead` of the end, and at most half of `time` ahead.
    """

    partition: Word | None = None
    account: Word | None = None
    nodes: int | None = Field(default=None, ge=1, le=MOST_HOSTS)
    time: Duration | None = None
    job: int | None = Field(default=None, ge=1, lt=2**32)
    user: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")] = "root"
    port: int = Field(default=22, ge=1, le=65535)
    leave: Duration = 300.0
    ahead: Duration = 1800.0

    @property
    def asks(self) -> bool:
        """Whether the allocations are asked for, and so are cancelled by who asked."""
        return self.nodes is not None

    @property
    def early(self) -> float:
        """Seconds before the end of an allocation at which the next one is asked for."""
        return min(self.ahead, (self.time or 0.0) / 2)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.nodes is None) != (self.time is None):
            raise ValueError("an allocation that is asked for has both: nodes: 4, time: 8h")
        if self.asks and self.job is not None:
            raise ValueError("job: is an allocation that exists, and nodes: requests an allocation; leave one out")
        if not self.asks and (self.partition or self.account):
            raise ValueError("partition and account: are for an allocation that is asked for (nodes, time)")
        if self.leave < LEAST_LEAVE:
            raise ValueError(f"leave: at least {LEAST_LEAVE:g}s, in which nodes move away")
        if self.time is not None and not _LEAST_TIME <= self.time <= _MOST_TIME:
            raise ValueError("time: from a minute to a year")
        if self.time is not None and self.leave >= self.early:
            raise ValueError(
                f"leave: {self.leave:g}s is not before the next allocation, which is asked for {self.early:g}s before "
                "the end of one (ahead, and at most half of time)"
            )
        return self
