"""The records: hosts, clusters, nodes, jobs, moves, events, operations.

Frozen data: a change makes a new value (`model_copy(update=…)`). Times are seconds since the epoch, sizes bytes,
durations seconds. Nothing here does I/O.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from wherry.model.spec.cluster import ClusterSpec, Kind

CONTROL_PORT = 7310
"""TCP port of a node's first process (`wherry-init`, a VM's agent) at the node's own address."""
AGENT_VERSION = 2
"""Of the protocol of a node's agent: WIRE_VERSION in native/include/wherry/wire.h. Each side speaks one version."""


class Record(BaseModel):
    """Base of records that are stored and sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HostFacts(Record):
    """Properties of a host, read once and compared before a move."""

    kernel: str
    architecture: str
    cpu_model: str
    cpu_features: frozenset[str]
    memory: int
    runtime: str
    criu: str

    @field_serializer("cpu_features", when_used="json")
    def _in_order(self, names: frozenset[str]) -> list[str]:
        return sorted(names)


class Host(Record):
    """A machine at a site. `down`: it does not answer; `lost`: an administrator declared that it never will again."""

    name: str
    site: str
    cores: float
    memory: int
    speed: float = 1.0
    drained: bool = False
    down: bool = False
    lost: bool = False
    facts: HostFacts | None = None


class NodeState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    MOVING = "moving"
    LOST = "lost"


class Node(Record):
    """A container or virtual machine. Its name, address and MAC never change; a move changes `host`."""

    name: str
    cluster: str
    index: int
    host: str
    address: str
    mac: str
    kind: Kind = "container"
    cpus: float
    memory: int
    state: NodeState = NodeState.PLANNED


class ClusterState(StrEnum):
    MAKING = "making"
    RUNNING = "running"
    PARTLY = "partly"
    REMOVING = "removing"


class Cluster(Record):
    """The nodes of one user. `network` is the number of their network: its VNI and the index of its /24 in the pool.
    `binds` are the user's directories that the nodes mount; `binding` those that are just being added to them.
    `after_move` is the last move that began before the cluster was made; empty when there was none."""

    name: str
    spec: ClusterSpec
    state: ClusterState
    network: int
    subnet: str
    head_host: str
    owner_uid: int
    owner_gid: int
    owner_groups: tuple[int, ...] = ()
    binds: tuple[str, ...] = ()
    binding: tuple[str, ...] = ()
    created: float
    after_move: str = ""
    reason: str = ""

    @property
    def head_address(self) -> str:
        """Address of the head namespace: the last usable one of the subnet."""
        return str(ipaddress.ip_network(self.subnet).broadcast_address - 1)


class JobState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    LOST = "lost"
    FAILED = "failed"

    @property
    def under_way(self) -> bool:
        """True until the job's end is known."""
        return self in (JobState.STARTING, JobState.RUNNING)


class Failure(Record):
    """Why a job failed. `limit` is what the node has: bytes of memory or of files, or a number of processes; `files`
    are the bytes in its private directories. `rank` is None when the launcher does not tell, and not `sure` is a signal
    that the launcher may have sent itself."""

    cause: Literal["signal", "memory", "files", "processes", "node lost"]
    node: str
    rank: int | None = None
    signal: int | None = None
    limit: int | None = None
    files: int = 0
    sure: bool = True


class Job(Record):
    """A run of an MPI program on a cluster. `exit_code` is the launcher's (128 + signal when it was killed).

    `expected` is the user's estimate of its duration in seconds, `operation` the operation that started it, `nodes` are
    the nodes with ranks (none in rows of earlier versions). A job that failed has its `failure`, with `reason` in words
    and `next`, what helps.
    """

    id: str
    cluster: str
    argv: tuple[str, ...]
    ranks: int
    mpi: str
    uid: int
    gid: int
    cwd: str
    state: JobState
    created: float
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    expected: float | None = None
    operation: str = ""
    nodes: tuple[str, ...] = ()
    failure: Failure | None = None
    next: str = ""


class Phase(StrEnum):
    """Phase of a move. COMMIT is the point of no return: before it the source's copy is the node, then the other's."""

    PREPARE = "prepare"
    ROUNDS = "rounds"
    FREEZE = "freeze"
    TRANSFER = "transfer"
    RESTORE = "restore"
    COMMIT = "commit"
    THAW = "thaw"
    DONE = "done"
    ROLLED_BACK = "rolled-back"


class Round(Record):
    """One pass of pre-copy: bytes sent, its seconds, and the bytes that are dirty after it."""

    number: int
    bytes: int
    seconds: float
    dirty: int | None = None


class Prediction(Record):
    """The expected cost of a move."""

    bytes: int
    rounds: int
    seconds: float
    downtime: float
    basis: str


class Move(Record):
    """The live migration of one node. `phases` maps a phase to its seconds.

    `downtime` is measured from the freeze to the thaw. Other views of it, where known: `downtime_criu`, the engine's
    (CRIU: its dump while frozen and its restore; QEMU: the figure that it reports); `downtime_peer`, a peer's (from
    just before the freeze until the node's data left its port again, as seen at the bridge there; None when it sent
    none for a while, and on real hosts); `downtime_program`, the node's (from the freeze until a rank ran again; for a
    virtual machine, until its agent answered). `total` is None for a move that another daemon took over. `operation` is
    the operation that began the move.
    """

    id: str
    node: str
    cluster: str
    source: str
    destination: str
    phase: Phase
    created: float
    ended: float | None = None
    rounds: tuple[Round, ...] = ()
    phases: dict[str, float] = Field(default_factory=dict)
    bytes: int = 0
    downtime: float | None = None
    downtime_criu: float | None = None
    downtime_peer: float | None = None
    downtime_program: float | None = None
    total: float | None = None
    predicted: Prediction | None = None
    error: dict[str, str] | None = None
    operation: str = ""

    @property
    def committed(self) -> bool:
        """True when the destination's copy is the node."""
        return self.phase in (Phase.COMMIT, Phase.THAW, Phase.DONE)


class Image(Record):
    """Kernel and RAM disk that virtual machines boot. `packages` maps a package to its version."""

    name: str
    digest: str
    built: float
    kernel: str
    packages: dict[str, str]
    mpi: tuple[str, ...]
    programs: tuple[str, ...] = ()
    bytes: int
    agent: int = 1
    """AGENT_VERSION of the agent in it."""


class OperationState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Operation(Record):
    """A long-running command of user `uid`. Its row survives `kill -9` of the daemon.

    `key` is the idempotency key of the request that began it; a repeated request is answered with this operation.
    """

    id: str
    kind: str
    target: str
    state: OperationState
    created: float
    ended: float | None = None
    progress: str = ""
    may_cancel: bool = False
    uid: int = 0
    key: str = ""
    result: dict[str, object] | None = None
    error: dict[str, str] | None = None


class Event(Record):
    """Something that happened to an object (`target`), with its time and reason."""

    id: int = 0
    time: float
    kind: str
    target: str
    text: str
    data: dict[str, object] = Field(default_factory=dict)
