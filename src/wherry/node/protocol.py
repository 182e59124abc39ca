"""The interface of a node kind: its driver, and the steps of a move.

A **placement** is a node at a host. Everything of a node on a host (directories, cgroup, namespace) is named after its
placement, so a driver finds it again without state of its own. During a move a node has two placements; the state
machine in `wherry.move` decides which one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from wherry.base.errors import Failed
from wherry.base.progress import Check, Progress, never_raises, quiet
from wherry.model.cpu_quota import cpu_quota, may_burst
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.move_check import Hindrance
from wherry.model.owner import Owner
from wherry.model.records import Carriage, Fetched, Node, Pin, Round
from wherry.model.spec.cluster import Flavor, Guest, NicSpec

LONGEST_FREEZE = 300.0
"""Seconds that a move may keep a node frozen: agents close a connection after six minutes of silence, and programs may
do so earlier."""


class Placement(BaseModel):
    """A node at a host. `hosts_file` is the text of /etc/hosts inside; `binds` are directories of the user, writable.

    `netns` is the network namespace from which the node's address is reached: its own, or for a virtual machine the
    head's. `user` is `UID:GID:GID,GID…`, the user whose programs run inside (uid 0: anybody's) and whose directories
    are bound. `device` is the network device of the port at the host. Only virtual machines have `image` and `nic`,
    only Xen guests a `guest` (their kind).
    `served` are directories of the user that the machine mounts, from the NFS server at address `server`.
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
    pin: Pin | None = None
    served: tuple[str, ...] = ()
    server: str = ""

    @property
    def cpus(self) -> float:
        """CPUs of the machine that the node may use here: a slower host is emulated by a smaller quota."""
        return self.node.cpus * self.speed

    @property
    def quota(self) -> float:
        """The limit of the node's CPU time, in CPUs; see `cpu_quota`."""
        return cpu_quota(self.node.cpus, self.speed)

    @property
    def burst(self) -> bool:
        """Whether CPU time that was not used may be used later; see `cpu_quota`."""
        return may_burst(self.speed)

    @property
    def owner(self) -> Owner:
        """The user of the node."""
        uid, gid, groups = self.user.split(":")
        numbers = tuple(int(group) for group in groups.split(",") if group)
        return Owner(uid=int(uid), gid=int(gid), groups=numbers, home="/", cwd="/")


class Usage(BaseModel):
    """Resources that a node uses: resident bytes and processes now; CPU seconds, seconds throttled by its CPU limit,
    processes that were killed because its memory was full, tasks that were refused because it had the most that a node
    may have, and bytes received and sent (with the frames' headers) since it arrived at its host; bytes of files in its
    private directories now, and their limit, and the same of its disk. None: the host does not count them, or the node
    has no disk."""

    model_config = ConfigDict(frozen=True)

    memory: int
    cpu: float
    processes: int
    throttled: float = 0.0
    received: int | None = None
    sent: int | None = None
    oom_kills: int = 0
    refused_tasks: int = 0
    files: int | None = None
    files_limit: int | None = None
    disk: int | None = None
    disk_limit: int | None = None


class Transferred(BaseModel):
    """Bytes that the frozen part of a move sent, the freeze time that the engine itself reports (seconds), and how the
    memory went, where that may differ."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    frozen: float | None = None
    carriage: Carriage | None = None


class ProgramEnded(Failed):
    """A program that a move needs has ended before its time."""


class Measured(BaseModel):
    """The measures of a node before a move: bytes that a stop-and-copy would send, of which `files` in memory are only
    compared in the freeze when there are rounds, and those on its `disk` not even that; seconds of `overhead`, in
    addition to sending, of a freeze. `engine` would carry its memory, where its kind of node has several; `written` a
    sample of its writes (see `wherry.schedule.dirtying`). A freeze depends on its `processes` and their `mappings`, too
    (0: they are not counted)."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    overhead: float
    files: int = 0
    engine: str = ""
    written: tuple[tuple[float, int], ...] = ()
    processes: int = 0
    mappings: int = 0
    disk: int = 0

    @property
    def memory(self) -> int:
        """Bytes without files."""
        return self.bytes - self.files - self.disk


class NodeMover(Protocol):
    """The steps of one move, called in this order by the state machine. A step that raises is followed by `roll_back`.

    The state machine handles the network (unplug, hold, release). After a crash of the daemon a new mover is made from
    the two placements: `roll_back`, `release`, `thaw` and `complete` depend on no state of earlier steps.

    `round`, `transfer` and `restore` call `progress` repeatedly if the engine can be interrupted; an exception that it
    raises aborts the step.
    """

    def predict(self, seconds: float = 0.0) -> Measured:
        """Measures the node, which runs on unchanged; its writes for so many seconds, where that can be done."""

    def limit_rate(self, rate: float | None, spare: float = 0.0) -> None:
        """Limits the rate at which the move sends (bit/s; None: unlimited). A driver that sees the queues of the links
        may send `spare` bit/s more while they are empty. Called before all other steps."""

    def prepare(self) -> None:
        """Sets up the destination: directories, mounts, receivers. The node keeps running."""

    def can_round(self) -> bool:
        """True when memory can be sent in rounds while the node runs (dirty pages are tracked)."""

    def round(self, number: int, progress: Progress = quiet) -> Round:
        """One round of pre-copy."""

    def freeze(self, post_copy: bool = False) -> float | None:
        """Freezes the node at the source. Returns for how many seconds it was frozen already, if the engine did so.

        With `post_copy` the destination resumes at once and faults in the remaining pages from the source. It is passed
        only to movers whose parameters allow post-copy. When the node has not `settled`, it runs for a moment first.
        """

    def settled(self) -> bool:
        """After the freeze, when the source's port is unplugged: False when in between something came to the node that
        cannot be moved while it is frozen. Then the port is to be plugged, and the node to be frozen again."""

    def transfer(self, progress: Progress = quiet) -> Transferred:
        """Sends the remaining state. The source stays frozen."""

    def restore(self, progress: Progress = quiet) -> float | None:
        """Restores the node at the destination, still frozen. Returns the duration that the engine reports."""

    def problem(self) -> str:
        """Before the commit: which program of the move has ended before its time, where and how; empty when none has.
        Cheap: called at each report of progress, from any thread. Empty for engines whose own answers report it."""

    def switched(self) -> bool:
        """After a failure before the commit: True when the engine already destroyed the source's copy and the
        destination's is complete and frozen, so that the move can only be completed. Aborts the running parts of the
        move first."""

    def release(self) -> None:
        """After the commit: kills the source's copy, or retires it as long as the destination needs its memory; either
        can never run again. `close` removes its placement."""

    def thaw(self) -> None:
        """After the commit: resumes the destination's copy."""

    def await_first_run(self) -> float | None:
        """After the thaw: seconds until a rank ran (error: 1 to 2 ms) or the agent answered; None when neither was
        observed. LostContact when the agent should answer and does not."""

    def complete(self) -> Fetched | None:
        """After the thaw: returns when the node has all its memory, and kills a copy at the source that was retired
        until then; the pages that came since the thaw, if it is known. Failed when the node ended for lack of it."""

    def roll_back(self) -> None:
        """Before the commit: removes the destination's placement and resumes the source. Idempotent, from any step."""

    def close(self) -> None:
        """Frees the mover's own resources (helper processes, images). Idempotent; after success and roll-back alike."""


class NodeDriver(Protocol):
    """One kind of node."""

    kind: str

    def unsupported(self) -> str:
        """Why this machine cannot run nodes of this kind; empty when it can."""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        """Refused when this machine or the owner lacks something that a node of this flavor needs. Changes nothing."""

    def files_obstacle(self, flavor: Flavor) -> str:
        """Why nodes of this flavor cannot mount the user's directories from a server; empty when they can."""

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        """Why nodes of this kind cannot be moved with these parameters; empty when they can."""

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        """Why hosts have no room for disks of nodes of so many bytes besides, by host; empty when they have."""

    def rate_obstacle(self, rate: float) -> str:
        """Why a move cannot be limited to `rate` bit/s; empty when it can."""

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        """Why a node like this cannot be moved to the destination, whatever runs in it; empty when it can. Changes
        nothing."""

    def require_movable(self, placement: Placement) -> None:
        """Refused, with what to do, when programs of the running node hold state that a move would lose. Changes
        nothing."""

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        """The state of the running node that would prevent or prolong its move, whatever the destination. Changes
        nothing."""

    def start(self, placement: Placement, check: Check = never_raises) -> None:
        """Creates the node and returns when its agent listens, which may take minutes. An exception that `check` raises
        meanwhile ends the start; nothing of the node is left then."""

    def stop(self, placement: Placement) -> None:
        """Kills the node's processes and removes the placement. Idempotent, also after an incomplete `start`."""

    def alive(self, placement: Placement) -> bool:
        """True when the node's first process exists."""

    def bind(self, placement: Placement, directory: str) -> None:
        """Shows a directory of the owner at its path in the running node, as if `placement.binds` had it at the start.
        Failed when it cannot; nothing is left then. Refused by kinds whose nodes have copies of files."""

    def shows(self, placement: Placement, directory: str) -> bool:
        """True when the running node shows the directory of its host, and not its predecessor from before a mount."""

    def unbind(self, placement: Placement, directory: str) -> None:
        """Undoes `bind`. Idempotent, also for a node that has ended."""

    def usage(self, placement: Placement) -> Usage:
        """Resources that the node uses."""

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> NodeMover:
        """The steps of a move between two placements of one node. `parameters_obstacle` was checked before."""

    def console_files(self, node: str) -> list[Path] | None:
        """The existing console logs of a node, of its previous and its current run; None for a kind without console."""

    def forget(self, node: str) -> None:
        """Removes all that is kept of a removed node outside its placements."""

    def orphans(self) -> list[tuple[str, str]]:
        """Node and host of each copy that a move left behind because the host did not answer."""

    def end_orphan(self, node: str, host: str) -> None:
        """Destroys an orphaned copy. LostContact when the host still does not answer."""

    def sweep(self) -> None:
        """Removes everything that nodes of this kind and instance left on the machine."""
