"""The interface between container nodes and one host: everything that is done at that host is behind it.

    ContainerHost   a node at the host: start, stop, usage, what would prevent a move
    Departure       the source's half of one move
    Arrival         the destination's half of one move

`ContainerDriver` and `ContainerMover` hold no path, descriptor, process or socket of a host. They pass placements and
the records below, which are plain values and could cross a network. Invariant: PIDs in records are those inside the
node, which are equal at both hosts.

Errors: a step raises Failed (MOVE_FAILED, TIMED_OUT when it stalled, UNREACHABLE when the other host's stream broke),
or the exception of `StepMonitor`; then the move is rolled back by `abort`, `kill`, `resume` and `close`. These, `stop`,
`release` and `thaw` are idempotent and need nothing of earlier steps, so they also work on halves made anew after a
crash.
See docs/design/0018-container-hosts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import SecretBytes

from wherry.base.progress import Check
from wherry.model.move_check import Hindrance
from wherry.model.records import Fetched, Pin
from wherry.node.container.memory_shortage import Shortage
from wherry.node.protocol import Measured, Placement, Usage

StepMonitor = Callable[[str], bool]
"""Called every 50 ms of a step with its progress so far. True when the other host has made progress with this move
since the last call. An exception that it raises ends the step."""


class Channel(StrEnum):
    """A stream with a connection of its own between the two hosts. SUMS carries data in both directions."""

    PAGES = "pages"
    MEMORY = "memory"
    TREE = "tree"
    DISK = "disk"
    IMAGES = "images"
    SUMS = "sums"


_MONOTONIC, _BOOTTIME = 1, (7, 9)
FILES = (Channel.TREE, Channel.DISK)
"""Channels of the node's files: in memory, and of a node that has a disk, those there."""
PAGED = (Channel.MEMORY, Channel.IMAGES, Channel.SUMS)
"""Channels of a move whose memory the pager sends."""
UNPAGED = (Channel.PAGES, Channel.IMAGES, Channel.SUMS)
"""Channels of a move whose memory CRIU sends, while the node is frozen."""


@dataclass(frozen=True)
class Offer:
    """Where the destination waits for one connection. A client that does not send the secret first is dropped. `more`
    are further connections of the same channel. With a `key`, which never crosses the network between hosts in clear,
    all that is sent is encrypted and authenticated: memory by the pager, all else by TLS, the secret included."""

    address: str
    port: int
    secret: SecretBytes
    key: SecretBytes = SecretBytes(b"")
    more: tuple[Offer, ...] = ()


Offers = Mapping[Channel, Offer]


@dataclass(frozen=True)
class PassedFd:
    """An open file description of a process of the node that is passed to its copy, as a descriptor of this process."""

    process: int
    number: int
    descriptor: int


@dataclass(frozen=True)
class PassedFds:
    """File descriptions that are passed to the copy; by CRIU's key, the descriptions that only mappings may need. A
    host that is another machine passes nothing and refuses locks that would need it."""

    files: tuple[PassedFd, ...] = ()
    mappings: Mapping[str, int] = field(default_factory=dict)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors that the restoring CRIU inherits."""
        return (*(file.descriptor for file in self.files), *self.mappings.values())


@dataclass(frozen=True)
class HeldFile:
    """A file that a process holds under a name below /proc/PID (fd/3, map_files/…, cwd), with its size, and when it was
    changed, in nanoseconds. The inode of a file that is `numbered` by a server is the same at all machines. This and
    the path are filled in between two kernels alone."""

    process: int
    name: str
    device: int
    inode: int
    mode: int
    links: int
    owner: int
    path: str = ""
    size: int = 0
    modified: int = 0
    numbered: bool = False


@dataclass(frozen=True)
class UsedFile:
    """A file of its host that a node uses: `inode` is 0 where each machine has numbers of its own, `sum` its SHA-256,
    empty for a file that is written, large, or not regular."""

    path: str
    size: int
    modified: int
    mode: int
    owner: int
    inode: int
    device: int
    written: bool
    sum: str


@dataclass(frozen=True)
class Uses:
    """The objects of its host that a node uses: files, the highest number of a process inside the node, the most
    mappings of one process, and terminals. `obstacle`: an object in use that no other machine has; empty when there is
    none."""

    files: tuple[UsedFile, ...] = ()
    obstacle: str = ""
    process: int = 1
    mappings: int = 0
    terminals: bool = False


@dataclass(frozen=True)
class HeldLocks:
    """Locks on one descriptor: kind, type and range of each."""

    process: int
    number: int
    path: str
    lock_keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ThreadAttributes:
    """The attributes of a thread that CRIU does not restore. An I/O priority that follows from the nice value is 0;
    `core` is the filter of core dumps of its process (core(5)), as bits."""

    cpus: frozenset[int]
    io_priority: int
    slack: int
    core: int = 0x33


@dataclass(frozen=True)
class ClocksAhead:
    """How far a node's clocks are ahead of its host's, in nanoseconds."""

    monotonic: int = 0
    boottime: int = 0

    def of(self, clock: int) -> int:
        """That of a clock by its number (linux/time.h); nothing for wall clocks, which all hosts share."""
        return self.monotonic if clock == _MONOTONIC else self.boottime if clock in _BOOTTIME else 0


HOSTS_OWN = ClocksAhead()
"""Of a node whose clocks are its host's."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of a host in nanoseconds, those of a node there, and the boot of its kernel."""

    boot: str
    monotonic: int
    boottime: int
    ahead: ClocksAhead = HOSTS_OWN


@dataclass(frozen=True)
class Timer:
    """A timerfd: its next expiry in nanoseconds (0: disarmed) on the node's clock that it runs on, which for a relative
    time is none that anybody sets, and its unread ticks."""

    process: int
    number: int
    clock: int
    flags: int
    ticks: int
    interval: int
    due: int


@dataclass(frozen=True)
class SocketOption:
    """An option that a program gave a socket: `value` in hexadecimal. `place` is that of a socket in a message that was
    sent to the Unix socket of the process, and that no program has received (`messages`)."""

    process: int
    number: int
    level: int
    option: int
    value: str
    place: tuple[int, ...] = ()


@dataclass(frozen=True)
class FrozenState:
    """The objects that the processes of the frozen source hold, and their restored copies must hold, too. `files` is
    empty for nodes of root. `two_kernels`: their files are compared as between two machines."""

    files: tuple[HeldFile, ...] = ()
    locks: tuple[HeldLocks, ...] = ()
    threads: Mapping[int, ThreadAttributes] = field(default_factory=dict)
    timers: tuple[Timer, ...] = ()
    options: tuple[SocketOption, ...] = ()
    pin: Pin | None = None
    two_kernels: bool = False


@dataclass(frozen=True)
class Comparison:
    """Result of comparing the arrived node with the frozen source: the source's state; `sent_again` names memory that
    differed and was sent again over SUMS, for the arrival to write."""

    state: FrozenState
    sent_again: str = ""


class Departure(Protocol):
    """The source's half of one move."""

    def prepare(
        self, rate: float | None, compressed: bool = False, spare: float = 0.0, two_kernels: bool = False
    ) -> None:
        """Refused or Failed when a process holds state that a move would lose. `rate` limits all that is sent (bit/s),
        with `spare` more while the links' queues are empty; `compressed` is for memory that the pager sends, and
        between machines for files and images. With `two_kernels` open files have more attributes. The node keeps
        running."""

    def connect(self, offers: Offers) -> None:
        """Begins to connect in the background, and to warm the connections up."""

    def begin(self) -> None:
        """Takes the connections, and starts the programs of the move."""

    def round(self, monitor: StepMonitor) -> int | None:
        """Sends the memory and the files that were written since the last round, while the node runs; the bytes that
        were written meanwhile, where they are counted. Only with the pager."""

    def throttle(self, share: float) -> None:
        """Leaves the running node this share of its CPU time, until the freeze, or until `resume`."""

    def prepare_freeze(self) -> None:
        """Right before the freeze: does the work that makes it short."""

    def freeze(self, post_copy: bool = False) -> PassedFds:
        """Freezes the node when all that it holds can be moved at that instant. A node that has not `settled` runs for
        a moment first. With `post_copy` its memory stays here until the destination has fetched it; Failed when it has
        a lock that two copies would hold until then."""

    def settled(self) -> bool:
        """After the freeze, when the port is unplugged: False when a connection came in between that no program has
        yet."""

    def dump(self, monitor: StepMonitor) -> float | None:
        """Sends the remaining memory (with post-copy: which pages it has), and begins to send the remaining files; how
        long the node was frozen, by CRIU's report."""

    def send(self, monitor: StepMonitor) -> None:
        """After the dump: sends CRIU's images and the rest of the files."""

    def problem(self) -> str:
        """The program of this half that has ended before its time, and how; empty when none has. Cheap."""

    def sent(self) -> int:
        """Bytes that were sent since the last call. Called when all of them have arrived."""

    def idle(self) -> float:
        """Seconds since the last sign that data of this half was acknowledged, or that its comparison worked."""

    def compare(self, monitor: StepMonitor) -> Comparison:
        """Failed when the arrived node differs from the frozen source, unless the difference is little and was sent
        again."""

    def release(self) -> None:
        """After the commit: kills the node, or retires it while the destination fetches its memory. Returns when none
        of its processes can run its program again, and when none keeps a lock that the copy shares."""

    def send_rest(self) -> None:
        """With post-copy, after the thaw: sends the pages that were not asked for, too."""

    def discard(self) -> None:
        """The destination has all memory: kills a retired node."""

    def abort(self) -> None:
        """Before a roll-back: ends the programs that work on the frozen processes, and lets go of the file descriptions
        that were passed on. The node stays frozen."""

    def resume(self) -> None:
        """In a roll-back: thaws the node. Called when nothing of the copy can run. Failed for a retired node."""

    def close(self) -> None:
        """Frees the move's objects here; removes the placement when the node has left it. All that a retired node needs
        stays."""


class Arrival(Protocol):
    """The destination's half of one move."""

    def offer(self, *channels: Channel, streams: int = 1) -> Offers:
        """Listens for one connection each, for MEMORY for `streams`. The host decides whether all is encrypted."""

    def prepare(self, rate: float | None, deadline: float | None = None, ahead: ClocksAhead = HOSTS_OWN) -> None:
        """Makes the placement, after removing an earlier one. `rate` is the most that the source sends (bit/s). A node
        whose memory may come after the thaw is given up after `deadline` seconds without a page. Its clocks will be so
        far `ahead` of this host's."""

    def begin(self) -> None:
        """Takes the connections that were offered, and starts the programs that receive and check."""

    def receive(self, monitor: StepMonitor, last: bool) -> None:
        """Returns after the `last` pass when all memory, images and files are here, which are then equal to the
        source's; after a round at once."""

    def idle(self) -> float:
        """Seconds since the last sign that a receiving program worked."""

    def problem(self) -> str:
        """The program of this half, or restored process, that has ended before its time, and how; empty when none has.
        Cheap."""

    def shortage(self) -> Shortage | None:
        """The move's needs at this host when that ran out of memory; None when it did not. Until the roll-back."""

    def take_passed(self, passed: PassedFds) -> None:
        """Prepares the restore, also for file descriptions that are passed on. Called during the dump."""

    def restore(self, monitor: StepMonitor) -> float | None:
        """Makes the checksums of all that arrived, and restores the node, frozen before its first instruction; the
        duration that CRIU reports."""

    def patch(self, what: str, monitor: StepMonitor) -> None:
        """Writes the memory `what`, which was sent again, into the restored processes."""

    def apply_state(self, state: FrozenState) -> None:
        """Sets the state that CRIU does not restore. Failed when a restored process lacks a lock of its original, or
        has another file open."""

    def thaw(self) -> None:
        """After the commit: the node runs here."""

    def await_first_run(self) -> float | None:
        """Seconds until a rank ran after the thaw; None when none was seen to."""

    def fill(self) -> Fetched | None:
        """After the thaw: returns when the node has all its memory; the part of it that came since then. Failed when it
        ended for lack of it."""

    def kill(self) -> None:
        """In a roll-back: ends receivers, CRIU and all restored processes. None of them runs when this returns."""

    def close(self) -> None:
        """Frees the move's objects here. A node that runs here gets its limits, and has all its memory. Failed when it
        ended for lack of it."""


class ContainerHost(Protocol):
    """One host. A placement is found by name, so a host keeps nothing about it."""

    def start(self, placement: Placement, check: Check) -> None:
        """Creates the node and returns when its agent listens. Failed, and nothing is left, when it does not. `check`
        is called again and again, and raises when the start is cancelled."""

    def stop(self, placement: Placement) -> None:
        """Kills the node's processes and removes the placement, whatever its state."""

    def alive(self, placement: Placement) -> bool:
        """True when the node's first process exists."""

    def bind(self, placement: Placement, directory: str) -> None:
        """Shows a directory of the owner at its path in the running node. Failed when it cannot; nothing is left."""

    def shows(self, placement: Placement, directory: str) -> bool:
        """True when the running node shows this directory of the host, and not its predecessor from before a mount."""

    def unbind(self, placement: Placement, directory: str) -> None:
        """Undoes `bind`. Idempotent, also for a node that has ended."""

    def usage(self, placement: Placement) -> Usage:
        """Resources that the node uses."""

    def measure(self, placement: Placement, seconds: float) -> Measured:
        """Measures the node, which runs on unchanged; its writes for so many seconds, 0 for not at all. They are not
        measured either while a move tracks them."""

    def clocks(self, placement: Placement) -> Clocks:
        """This host's clocks now, and how far ahead those of the node are when it is here."""

    def mount_points(self) -> tuple[str, ...]:
        """The mounts of this host that its nodes see."""

    def pager_obstacle(self) -> str:
        """Why the pager cannot carry a node's memory from or to this host; empty when it can."""

    def engine_obstacle(self) -> str:
        """Why no node can be moved from or to this host; empty when nodes can."""

    def move_obstacle(self, placement: Placement) -> str:
        """Why processes of this node's user cannot be moved; empty when they can. Changes nothing."""

    def disk_obstacle(self, size: int) -> str:
        """Why this host cannot have disks of further nodes, of so many bytes together; empty when it can."""

    def require_movable(self, placement: Placement) -> None:
        """As in NodeDriver."""

    def uses(self, placement: Placement) -> Uses:
        """The objects of the host that this node uses. Reads the files that it has mapped, once."""

    def lacks(self, used: Uses) -> str:
        """The objects that another machine's node uses and this host lacks, or has different; empty when it has all."""

    def kernel_obstacle(self) -> str:
        """Why this host takes no node of another kernel; empty when it does."""

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        """All that would prevent or prolong a move of this node. Changes nothing, and may take longer than a move's own
        checks."""

    def departure(self, placement: Placement, paged: bool = False) -> Departure:
        """The source's half of a move of this node, whose memory the pager sends, or CRIU; changes nothing yet."""

    def arrival(self, placement: Placement, paged: bool = False) -> Arrival:
        """The destination's half of a move to this placement; changes nothing yet."""


class ContainerHosts(Protocol):
    """The hosts of a fabric that can carry containers."""

    def of(self, name: str) -> ContainerHost:
        """One host by name. Contacts it only when it is used."""

    def pair_obstacle(self, source: str, destination: str) -> str:
        """Why no node can be moved between these two hosts; empty when nodes can."""

    def node_obstacle(self, source: Placement, destination: Placement) -> str:
        """Why this node, which runs, cannot be moved between its two hosts; empty when it can."""

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        """Why hosts cannot have disks of so many bytes besides, by host; empty when they can."""

    def unsupported(self) -> str:
        """Why no host can carry containers; empty when hosts can."""

    def sweep(self) -> None:
        """Removes all that nodes of this instance left at hosts."""
