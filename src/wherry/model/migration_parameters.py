"""In which way a virtual machine's memory is moved. Containers have one way only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wherry.model.objects import Record
from wherry.model.spec.base import Duration


class MigrationParameters(Record):
    """How a move sends memory.

    `mode`: `pre-copy` sends in rounds while the node runs and freezes it for the rest; `auto-converge` slows the node
    down until the rounds gain; `post-copy` lets the node run at its destination when rounds gain no more, and fetches
    the rest: until that is there, the loss of either host is the loss of the node; `hybrid` does so only with a node
    that writes nearly as fast as is sent, or faster, and freezes every other. `connections` send at the same time (0:
    one, as it always was), compressed with zstd or not. `downtime`: freeze as soon as the rest fits into so many
    seconds.
    """

    mode: Literal["pre-copy", "auto-converge", "post-copy", "hybrid"] = "pre-copy"
    connections: Annotated[int, Field(ge=0, le=64)] = 0
    zstd: bool = False
    downtime: Annotated[Duration, Field(gt=0, le=60)] | None = None
