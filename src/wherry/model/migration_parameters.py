"""How a node is moved: how its memory is migrated, and the options of any move."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wherry.model.records import Record
from wherry.model.spec.base import Duration

Rounds = Annotated[int, Field(ge=0, le=100)]
Connections = Annotated[int, Field(ge=0, le=64)]
Downtime = Annotated[Duration, Field(gt=0, le=60)]
COMPRESSION = 2e9
"""Bit/s of memory that a processor compresses, at least."""
Deadline = Annotated[Duration, Field(ge=1, le=86400)]


class MigrationParameters(Record):
    """How the memory of a node is migrated. Containers have all modes, `connections`, `compress` and `deadline`, and
    else the defaults only.

    `mode`: `stop` freezes the node and then sends all; `pre-copy` sends dirty pages in rounds while the node runs, then
    freezes it for the rest; `auto` is `stop` for a container whose rounds would cost its job more than they save, else
    `pre-copy` whose rounds end when the forecast of the next round's rest gains nothing; `auto-converge` throttles
    the node until the rounds converge (a container to a tenth of its CPU time at least); `post-copy` resumes the node
    at its destination once rounds no longer converge, and faults in the remaining pages: until all are there, the loss
    of either host is the loss of the node; `hybrid` does so only with a node that dirties memory nearly as fast as it
    is sent, or faster, and freezes every other.
    `connections` is the number of parallel connections (0: as many as pay; for virtual machines libvirt's single
    default connection, and only with several `zstd` compresses). `compress` is for containers: `auto` compresses where
    the path is slower than compression. `downtime`: freeze once the rest can be sent within these seconds. `deadline`:
    seconds without a page after which a container that was moved by post-copy is given up (None: 60).
    """

    mode: Literal["auto", "stop", "pre-copy", "auto-converge", "post-copy", "hybrid"] = "auto"
    connections: Connections = 0
    zstd: bool = False
    compress: Literal["auto", "on", "off"] = "auto"
    downtime: Downtime | None = None
    deadline: Deadline | None = None

    @property
    def may_post_copy(self) -> bool:
        """True when the node may run at its destination before all its memory is there."""
        return self.mode in ("post-copy", "hybrid")

    def compresses(self, rate: float | None) -> bool:
        """Whether the memory of a container is compressed on a path of so many bit/s (None: unlimited)."""
        return self.compress == "on" or (self.compress == "auto" and rate is not None and rate < COMPRESSION)


class MoveOptions(Record):
    """The user's options of a move. `max_rounds` limits the rounds of pre-copy (None: the policy decides), `bandwidth`
    the rate in bit/s (None: the budget of the links on the path)."""

    max_rounds: Rounds | None = None
    bandwidth: int | None = None
    parameters: MigrationParameters = MigrationParameters()
