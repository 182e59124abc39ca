"""Properties that a program inherits from the command that starts it, beside its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from wherry.model.records import Record

LimitName = Literal["as", "core", "cpu", "data", "fsize", "memlock", "nofile", "stack"]
Amount = Annotated[int, Field(ge=0, le=2**63 - 1)] | None
"""In the units of setrlimit(2); None is unlimited."""


class Inherited(Record):
    """File mode mask, nice value (None: that of the node's agent), and resource limits: soft and hard, null being
    unlimited. A limit that is not named is the node's; a limit beyond the node's is reduced to the node's."""

    umask: Annotated[int, Field(ge=0, le=0o777)] = 0o22
    nice: Annotated[int, Field(ge=-20, le=19)] | None = None
    limits: dict[LimitName, tuple[Amount, Amount]] = {}

    @model_validator(mode="after")
    def _soft_is_within_hard(self) -> Self:
        for name, (soft, hard) in self.limits.items():
            if hard is not None and (soft is None or soft > hard):
                raise ValueError(f"the soft limit of {name} is above the hard one")
        return self

    def with_least(self, least: Mapping[LimitName, int | None]) -> Self:
        """With limits that are no narrower than these."""
        limits = {
            name: (_wider(soft, least[name]), _wider(hard, least[name])) if name in least else (soft, hard)
            for name, (soft, hard) in self.limits.items()
        }
        return self.model_copy(update={"limits": limits})

    @property
    def text(self) -> str:
        """As the agent reads it (native/include/wherry/inherited.h)."""
        parts = [f"umask={self.umask}", *([] if self.nice is None else [f"nice={self.nice}"])]
        return ",".join([*parts, *(f"{name}={_amount(s)}:{_amount(h)}" for name, (s, h) in self.limits.items())])


def _wider(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _amount(value: int | None) -> str:
    return "unlimited" if value is None else str(value)
