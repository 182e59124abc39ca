"""The records: hosts, clusters, nodes, jobs, moves, events, operations.

Frozen data: a change makes a new value (`model_copy(update=…)`). Times are seconds since the epoch, sizes bytes,
durations seconds. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from wherry.model.adapters import USUAL_ADAPTERS
from wherry.model.spec.cluster import ClusterSpec, Kind

CONTROL_PORT = 7310
"""TCP port of a node's first process (`wherry-init`, a VM's agent) at the node's own address."""
AGENT_VERSION = 3
"""Of the protocol of a node's agent: WIRE_VERSION in native/include/wherry/wire.h. Each side speaks one version."""


class Record(BaseModel):
    """Base of records that are stored and sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HostFacts(Record):
    """Properties of a host, read once and compared before a move. `cpus` are the CPUs to which nodes can be pinned
    (none: nothing there pins them), `numa` has the CPUs of each NUMA node. `cgroups` is `v1`, `v2` or `mixed`;
    `bundle` the hash of the bundle that a host by SSH runs."""

    kernel: str
    architecture: str
    cpu_model: str
    cpu_features: frozenset[str]
    memory: int
    runtime: str
    criu: str
    cgroups: str = ""
    bundle: str = ""
    cpus: tuple[int, ...] = ()
    numa: dict[int, tuple[int, ...]] = Field(default_factory=dict)

    @field_serializer("cpu_features", when_used="json")
    def _in_order(self, names: frozenset[str]) -> list[str]:
        return sorted(names)


class Host(Record):
    """A machine at a site. `down`: it does not answer; `lost`: an administrator declared that it never will again;
    `drain_at`: when an announced drain begins (seconds since the epoch); `absent`: Slurm has not allocated it."""

    name: str
    site: str
    cores: float
    memory: int
    speed: float = 1.0
    drained: bool = False
    down: bool = False
    lost: bool = False
    drain_at: float | None = None
    absent: bool = False
    facts: HostFacts | None = None


class Pin(Record):
    """The CPUs of its host that a node has to itself, and the NUMA node that its memory is bound to, if any."""

    cpus: tuple[int, ...]
    memory: int | None = None


class NodeState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    MOVING = "moving"
    LOST = "lost"


class Node(Record):
    """A container or virtual machine. Its name, address and MAC never change; a move changes `host`, and `pin` where
    CPUs are other ones. `disk`: bytes of its /tmp on its host's disk; 0 for one in its memory. `since`: when it was
    planned first (None in rows of earlier versions: with its cluster)."""

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
    pin: Pin | None = None
    disk: int = 0
    since: float | None = None


class ClusterState(StrEnum):
    MAKING = "making"
    RUNNING = "running"
    PARTLY = "partly"
    REMOVING = "removing"


class ClusterLease(Record):
    """The time for which a cluster stays: it `ends` then (seconds since the epoch), `length` seconds after it was asked
    for last; `warned`: when its owner was warned of the end."""

    ends: float
    length: float
    warned: float | None = None


class Cluster(Record):
    """The nodes of one user. `network` is the number of their network: its VNI and the index of its /24 in the pool.
    `binds` are the user's directories that the nodes mount; `binding` the directories that are just being added to
    them. `after_move` is the last move that began before the cluster was made; empty when there was none. `served` are
    the `binds` that its virtual machines see, by NFS from the head. `lease` is added for readers (None: no end)."""

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
    served: tuple[str, ...] = ()
    created: float
    after_move: str = ""
    reason: str = ""
    lease: ClusterLease | None = None

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
    """Why a job failed. `limit` is the node's limit: bytes of memory or of files, or a number of processes; `files`
    are the bytes in its private directories. `rank` is None when the launcher does not report it, and not `sure` is a
    signal that the launcher may have sent itself."""

    cause: Literal["signal", "memory", "files", "disk", "processes", "user namespaces", "node lost", "timeout"]
    node: str = ""
    rank: int | None = None
    signal: int | None = None
    limit: int | None = None
    files: int = 0
    sure: bool = True


class ProgramKey(Record):
    """A user's program: its name, the hash of its file (of all its programs' files), its normalised arguments, and its
    number of ranks. Runs with the same key are expected to behave alike."""

    name: str
    digest: str
    arguments: tuple[str, ...]
    ranks: int
    uid: int

    @property
    def key(self) -> str:
        """A short hash of all of it."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:12]


class PhaseHint(Record):
    """A phase that a rank has begun (-1: a program that is no rank), `critical` when no node is to move amid it."""

    rank: int
    name: str
    critical: bool = False


class IterationHint(Record):
    """How many iterations a rank has `left`. `per_iteration` are seconds, as measured since `timed_left` were left,
    `timed_at` seconds after the job's start; `ends`: at which second the rank will have made them all (None: not known
    yet)."""

    rank: int
    left: int
    timed_left: int
    timed_at: float
    per_iteration: float | None = None
    ends: float | None = None


class Hints(Record):
    """Hints of a running program: the phases of its ranks, and the iterations that they have left. `told` is
    true once the job's `expected` is a hint of the program. Keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    phases: tuple[PhaseHint, ...] = ()
    iterations: tuple[IterationHint, ...] = ()
    told: bool = False


class Job(Record):
    """A run of an MPI program on a cluster; of kind `exec` any program on one node. `exit_code` is the launcher's (128
    + signal when it was killed).

    `expected` is the user's estimate of its duration in seconds, `operation` the operation that started it, `nodes` are
    the nodes with ranks or, if the daemon places spawned processes, for these (none in rows of earlier versions),
    `rank_nodes` the node of each rank when they are not even blocks of them, and `timeout` seconds end it. `program` is
    the key of its program where it is measured, `placed` why its ranks are where they are. A job that failed has its
    `failure`, with `reason` in words and `next`, the remedy. `site_map` has the sites of its ranks when it
    started, in runs (`0x6,1x6`), if its collectives go by sites. It is `deterministic` if its reductions are not to
    depend on where ranks are. `hints` are given by its program while it runs. `starter` is the user who started it,
    root by sudo (None in rows of earlier versions). `argv` is the beginning of a long command line (4096 characters),
    of which `argv_cut` characters are left out. `uncounted` is the reason for which its ranks' calls of MPI are not
    counted; empty where they are, or where that is not known yet.
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
    rank_nodes: tuple[str, ...] = ()
    timeout: float | None = None
    program: ProgramKey | None = None
    placed: str = ""
    failure: Failure | None = None
    next: str = ""
    site_map: str = ""
    deterministic: bool = False
    kind: Literal["mpi", "exec"] = "mpi"
    hints: Hints | None = None
    starter: int | None = None
    argv_cut: int = 0
    uncounted: str = ""

    @property
    def computes(self) -> bool:
        """True while an MPI program is under way; balancing weighs these."""
        return self.kind == "mpi" and self.state.under_way


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
    """One pass of pre-copy: bytes sent, its seconds, and the bytes that are dirty after it, as they would be sent.
    `share` is the share of its CPU time that the node had meanwhile, when it is slowed down for its move (None: it is
    not)."""

    number: int
    bytes: int
    seconds: float
    dirty: int | None = None
    share: float | None = None


class Fetched(Record):
    """The memory that a node got after the thaw, where it already ran (post-copy): bytes that a process had to wait
    for, bytes that came in the background, and the seconds from the restore until the last page was there."""

    demanded: int
    background: int
    seconds: float

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.demanded + self.background


class Prediction(Record):
    """The expected cost of a move: `seconds` in all, with the `downtime`, and the bounds of both in eight of ten moves.

    `mode` is how the node would be moved, `engine` would carry its memory (empty: the only one of its kind),
    `frozen` is the part of `bytes` that would be sent while the node is frozen. `written` is the memory that the node
    wrote in some seconds of sampling, in distinct pages; empty when that was not sampled. `later` is the part of
    `bytes` after the thaw (post-copy), in `later_seconds`. `share` is the least share of its CPU time that the node
    would be left (None: it would not be slowed down). `processes` and `mappings` are those of the node (0: not
    counted), `files` bytes of its own files in memory, `disk` of those on its disk. Rows of earlier versions lack
    these.
    """

    bytes: int
    rounds: int
    seconds: float
    downtime: float
    basis: str
    mode: str = ""
    engine: str = ""
    frozen: int | None = None
    seconds_between: tuple[float, float] | None = None
    downtime_between: tuple[float, float] | None = None
    written: tuple[tuple[float, int], ...] = ()
    later: int = 0
    later_seconds: float = 0.0
    share: float | None = None
    processes: int = 0
    mappings: int = 0
    files: int = 0
    disk: int = 0

    @property
    def dirty_rate(self) -> float | None:
        """Bytes per second that the node wrote while it was sampled."""
        return self.written[-1][1] / self.written[-1][0] if self.written and self.written[-1][0] > 0 else None


class Carriage(Record):
    """How a move's memory crossed the network: over so many connections, compressed where that gained something, and
    encrypted or not."""

    connections: int
    compressed: bool = False
    encrypted: bool = False


class Gain(Record):
    """The prediction of balancing for the cluster's jobs: seconds that they had left `before` the moves, as they were
    placed, and have `after` them, with the moves' `cost`; the time of a `step` beside that before, and as it was
    `measured` when the moves were done (None: it was not, for the reason `unmeasured`). Moves of one plan have the same
    one."""

    before: float
    after: float
    cost: float = 0.0
    step: float | None = None
    measured: float | None = None
    unmeasured: str = ""


class Move(Record):
    """The live migration of one node. `phases` maps a phase to its seconds.

    `downtime` is measured from the freeze to the thaw. Other views of it, where known: `downtime_engine`, the engine's
    (CRIU: its dump while frozen and its restore; QEMU: the figure that it reports); `downtime_peer`, a peer's (from
    just before the freeze until the node's data left its port again, as seen at the bridge there; None when it sent
    none for a while, and on real hosts); `downtime_program`, the node's (from the freeze until a rank ran again; for a
    virtual machine, until its agent answered). `total` is None for a move that another daemon took over. `operation` is
    the operation that began the move, `gain` the prediction of balancing when balancing began it. `bytes` are
    the bytes that were sent; `carriage` is known of containers whose memory the pager sent. `fetched` is the
    memory that came after the thaw (post-copy), with its own size in `bytes`; None also when another daemon saw it
    come. `pin` is that of a
    pinned node at the destination.
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
    downtime_engine: float | None = None
    downtime_peer: float | None = None
    downtime_program: float | None = None
    total: float | None = None
    predicted: Prediction | None = None
    error: dict[str, str] | None = None
    operation: str = ""
    gain: Gain | None = None
    fetched: Fetched | None = None
    carriage: Carriage | None = None
    pin: Pin | None = None

    @property
    def engine(self) -> str:
        """The engine that carried the memory, by its forecast; kept when the node is removed, whose kind is not."""
        return self.predicted.engine if self.predicted else ""

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
    adapters: tuple[str, ...] = USUAL_ADAPTERS
    """Models of network adapters that its kernel drives."""
    files: bool = False
    """Whether it mounts the user's directories where they are served."""


class OperationState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def under_way(self) -> bool:
        """True until it has ended."""
        return self in (OperationState.WAITING, OperationState.RUNNING)


class Operation(Record):
    """A long-running command of user `uid`. Its row survives `kill -9` of the daemon.

    `key` is the idempotency key of the request that began it; a repeated request is answered with this operation. `by`
    is the name of that user; `owner` the uid that owns the objects of the operation, where that is one user.
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
    by: str = ""
    owner: int | None = None
    result: dict[str, object] | None = None
    error: dict[str, str] | None = None


class Event(Record):
    """Something that happened to an object (`target`), with its time and reason; `by` whom (empty: the daemon itself),
    and the uid of its `owner` (None: nobody's)."""

    id: int = 0
    time: float
    kind: str
    target: str
    text: str
    data: dict[str, object] = Field(default_factory=dict)
    by: str = ""
    owner: int | None = None
