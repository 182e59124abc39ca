"""What every kind of node offers, and the steps of its move.

A **place** is a node at a host: everything of a node on a host (directories, cgroup, namespace) is named by its place,
so a driver finds it again without memory. During a move a node has two places; the state machine in `wherry.move` says
which one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from wherry.model.migration_parameters import MigrationParameters
from wherry.model.objects import Node, Round
from wherry.model.owner import Owner
from wherry.model.spec.cluster import Flavor, Guest, NicSpec

STANDS_AT_MOST = 300.0
"""Seconds that a move may let a node stand: after six minutes of silence agents end a connection, and programs may have
less patience."""


class Placement(BaseModel):
    """A node at a host. `hosts_file` is the text of /etc/hosts inside; `binds` are directories of the user, writable.

    `netns` is the network namespace that reaches the node's address: its own, or for a virtual machine the head's.
    `user` is `UID:GID:GID,GID…`: who may be run inside, and whose directories are bound. Uid 0 may run anybody.
    `device` is the port's at the host, as a virtual machine opens it; `image` and `nic` are a virtual machine's, too,
    and `guest` is its kind under Xen.
    `speed` is the host's, relative to the others: at half speed each of the node's CPUs is half a CPU of the machine.
    """

    model_config = ConfigDict(frozen=True)

    node: Node
    host: str
    netns: str
    cgroup: str
    key: SecretStr
    user: Annotated[str, Field(pattern=r"^\d+:\d+:(\d+(,\d+)*)?$")]
    hosts_file: str = ""
    binds: tuple[str, ...] = ()
    device: str = ""
    image: str = "default"
    nic: NicSpec = NicSpec()
    guest: Guest = "pvh"
    speed: float = 1.0

    @property
    def cpus(self) -> float:
        """What the node may use of the machine's CPUs here: a slower host's are emulated by a smaller quota."""
        return self.node.cpus * self.speed

    @property
    def owner(self) -> Owner:
        """Whose the node is."""
        uid, gid, groups = self.user.split(":")
        numbers = tuple(int(group) for group in groups.split(",") if group)
        return Owner(uid=int(uid), gid=int(gid), groups=numbers, home="/", cwd="/")


class Usage(BaseModel):
    """What a node uses: resident bytes and processes now; CPU seconds, seconds throttled by its CPU limit, and bytes
    received and sent (with the frames' headers) since it came to its host. None: its host does not tell."""

    model_config = ConfigDict(frozen=True)

    memory: int
    cpu: float
    processes: int
    throttled: float = 0.0
    received: int | None = None
    sent: int | None = None


class Transferred(BaseModel):
    """What the frozen part of a move sent: bytes, and the freeze time that the engine itself reports (seconds)."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    frozen: float | None = None


During = Callable[[str], None]


def quiet(_text: str) -> None:
    """For those who do not ask how far it is."""


class NodeMover(Protocol):
    """The steps of one move, called in this order by the state machine. Each may raise; `roll_back` follows then.

    The network (unplug, hold, release) is the state machine's. A mover may be made anew from its two places after the
    daemon was killed: `roll_back`, `release` and `thaw` need no memory of earlier steps.
    """

    def predict(self) -> tuple[int, float]:
        """Bytes that a stop-and-copy would send, and the seconds to dump and restore beside sending."""

    def limit_rate(self, rate: float | None) -> None:
        """Called first: what the move sends shall go at most so fast (bit/s; None: as fast as it can)."""

    def prepare(self) -> None:
        """Makes the destination ready: directories, mounts, receivers. The node runs on."""

    def can_round(self) -> bool:
        """True when this machine can send memory in rounds while the node runs."""

    def round(self, number: int, during: During = quiet) -> Round:
        """One round of pre-copy. `during` is told meanwhile how far it is; what it raises ends the round."""

    def freeze(self, post_copy: bool = False) -> float | None:
        """Stops every process of the node at the source; seconds that it stood already, if the engine stopped it.

        With `post_copy`, of which an engine is told that was asked for a way that has it, the destination's goes on at
        once and fetches what is left.
        """

    def transfer(self, during: During = quiet) -> Transferred:
        """Sends what is left. The source stays frozen. An engine that can be stopped calls `during` now and then; what
        it raises ends the transfer."""

    def restore(self, during: During = quiet) -> float | None:
        """Ends with the node restored at the destination, still frozen; seconds that the engine says it took. An engine
        that can be stopped calls `during` now and then; what it raises ends the restore."""

    def switched(self) -> bool:
        """Before the commit, when something failed: True when the engine itself ended the source's copy and the
        destination's is whole and frozen, so that the move can only go on. What still runs of the move is ended first.
        """

    def release(self) -> None:
        """After the commit: kills the source's copy; from here on it cannot run. Its place goes with `close`."""

    def thaw(self) -> None:
        """After the commit: lets the destination's copy run."""

    def await_first_run(self) -> float | None:
        """After the thaw: seconds until a rank was seen to run (error: 1 to 2 ms), or the agent to answer; None when
        there was none to see. LostContact when the node should answer and does not."""

    def roll_back(self) -> None:
        """Before the commit: removes the destination's place and lets the source run. Idempotent, from any step."""

    def close(self) -> None:
        """Frees what only the mover held (helper processes, images). Idempotent; after success and roll-back alike."""


class NodeDriver(Protocol):
    """One kind of node."""

    kind: str

    def unsupported(self) -> str:
        """Why this machine cannot run nodes of this kind; empty when it can."""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        """Refuses what a node of this flavor needs and its owner has not here. Changes nothing."""

    def refused(self, way: MigrationParameters) -> str:
        """Why no node of this kind can be moved in this way; empty when they can."""

    def rate_obstacle(self, rate: float) -> str:
        """Why no move of this kind can keep to so many bit/s; empty when they can."""

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        """Why this node cannot be moved there; empty when it can. Changes nothing."""

    def start(self, place: Placement) -> None:
        """Makes the node and returns when its first process listens."""

    def stop(self, place: Placement) -> None:
        """Ends the node's processes and removes the place. Idempotent; also for a place that was half made."""

    def alive(self, place: Placement) -> bool:
        """True when the node's first process is there."""

    def usage(self, place: Placement) -> Usage:
        """What the node uses."""

    def mover(self, source: Placement, destination: Placement, way: MigrationParameters | None = None) -> NodeMover:
        """The steps of a move between two places of one node, in a way that is not refused."""

    def console_files(self, node: str) -> list[Path] | None:
        """The files of what a node's kernel said on its console, before it was last started and since, as far as they
        are there; None for a kind that has no console."""

    def forget(self, node: str) -> None:
        """The node is no more: removes what was kept of it beside its places."""

    def orphans(self) -> list[tuple[str, str]]:
        """Node and host of each copy that a move left there, since the host did not answer."""

    def end_orphan(self, node: str, host: str) -> None:
        """Ends such a copy. LostContact when the host still does not answer."""

    def sweep(self) -> None:
        """Removes everything that any node of this kind of this instance left on the machine."""
