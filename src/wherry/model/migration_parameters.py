"""How a node is moved: the parameters of a virtual machine's memory migration, and the options of any move."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wherry.model.records import Record
from wherry.model.spec.base import Duration

Rounds = Annotated[int, Field(ge=0, le=100)]
Connections = Annotated[int, Field(ge=0, le=64)]
Downtime = Annotated[Duration, Field(gt=0, le=60)]


class MigrationParameters(Record):
    """How the memory of a virtual machine is migrated. Containers have the defaults only.

    `mode`: `pre-copy` sends dirty pages in rounds while the node runs, then freezes it for the rest; `auto-converge`
    throttles the node until the rounds converge; `post-copy` resumes the node at its destination once rounds no longer
    converge, and faults in the remaining pages: until all are there, the loss of either host is the loss of the node;
    `hybrid` does so only with a node that dirties memory nearly as fast as it is sent, or faster, and freezes every
    other. `connections` is the number of parallel connections (0: libvirt's single default connection), compressed with
    zstd or not. `downtime`: freeze once the rest can be sent within these seconds.
    """

    mode: Literal["pre-copy", "auto-converge", "post-copy", "hybrid"] = "pre-copy"
    connections: Connections = 0
    zstd: bool = False
    downtime: Downtime | None = None


class MoveOptions(Record):
    """The user's options of a move. `max_rounds` limits the rounds of pre-copy (None: the policy decides), `bandwidth`
    the rate in bit/s (None: the budget of the links on the path)."""

    max_rounds: Rounds | None = None
    bandwidth: int | None = None
    parameters: MigrationParameters = MigrationParameters()
