"""The counters of one host: of its cgroup, of the cgroups of its nodes, and of the frames that its nodes send.

Invariant: reads only, but for the rules that count frames; an object without counters is left out, never zero.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from wherry.base.errors import Code, Refused
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.traffic_matrix import TrafficMatrix
from wherry.model.records import Record


class NodeCounters(Record):
    """CPU seconds of a node's processes at the host, and seconds throttled by its CPU limit."""

    cpu: float
    throttled: float


class HostCounters(Record):
    """The same of the host's whole cgroup, and of its nodes by name. `at` is the host's monotonic clock, so only the
    difference of two readings of one host counts. Of a host that is a machine also CPU seconds of all that runs on the
    `machine`, and how many CPUs it has `besides` the host's."""

    at: float
    cpu: float
    throttled: float
    nodes: Mapping[str, NodeCounters] = {}
    machine: float | None = None
    besides: float = 0.0

    def used_since(self, before: HostCounters) -> float | None:
        """CPUs of the host in use since then: by its cgroup, and by others on its machine, as far as the CPUs besides
        the host's do not suffice for these. None when a clock or counter began anew."""
        seconds, own = self.at - before.at, self.cpu - before.cpu
        if seconds <= 0 or own < 0:
            return None
        if self.machine is None or before.machine is None:
            return own / seconds
        return (own + max(0.0, self.machine - before.machine - own - self.besides * seconds)) / seconds


class NodeUse(Record):
    """Bytes of memory and processes that a node has at the host now."""

    memory: int
    processes: int


class HostUse(Record):
    """Bytes of memory that the host's whole cgroup has now, its limit if it has one, and the use of its nodes."""

    memory: int
    memory_limit: int | None
    nodes: Mapping[str, NodeUse] = {}


class PairCount(NamedTuple):
    """MACs of sender and receiver, and the frames, bytes and turns from the one to the other (`traffic_matrix`)."""

    source: str
    target: str
    frames: int
    bytes: int
    turns: int


class FrameCounts(Record):
    """Frames that the host's nodes sent since the first reading by this `reader`: a counter that was made anew, as its
    agent had ended, has another one, so that its figures are not compared with the earlier ones."""

    reader: str
    pairs: tuple[PairCount, ...] = ()


class FrameCounter(Protocol):
    """Counts the frames of a host's nodes, from its first reading until it is closed."""

    def read(self, far: frozenset[str]) -> FrameCounts:
        """The counts so far. Turns with the MACs in `far` are counted from now on. UNSUPPORTED when the host cannot
        count."""

    def close(self) -> None:
        """Ends the counting, unless another reader needs it."""


class LocalFrameCounter:
    """The frames of a host whose network namespace is on this machine."""

    def __init__(self, netns: str, take_bridges: Callable[[str, bool], None]) -> None:
        self._netns, self._matrix, self._reader = netns, TrafficMatrix(take_bridges), secrets.token_hex(8)

    def read(self, far: frozenset[str]) -> FrameCounts:
        found = self._matrix.read({self._netns: far})
        return FrameCounts(reader=self._reader, pairs=tuple(PairCount(*pair, *count) for pair, count in found.items()))

    def close(self) -> None:
        self._matrix.close()


class CountedHere(ABC):
    """The counters of hosts that this machine emulates, or is."""

    @abstractmethod
    def cgroup(self, host: str) -> str:
        """As `Fabric.cgroup`."""

    @abstractmethod
    def host_netns(self, host: str) -> str:
        """As `Fabric.host_netns`."""

    @abstractmethod
    def take_bridges(self, netns: str, wanted: bool) -> None:
        """Makes all frames pass the bridges of a host, by its namespace, where they can be counted, or ends that."""

    def counters(self, host: str, nodes: Sequence[str] = ()) -> HostCounters:
        """As `Fabric.counters`."""
        group, own = self._groups(host, nodes)
        return HostCounters(
            at=time.monotonic(),
            cpu=group.cpu_seconds(),
            throttled=group.throttled(),
            nodes={node: NodeCounters(cpu=one.cpu_seconds(), throttled=one.throttled()) for node, one in own.items()},
        )

    def use(self, host: str, nodes: Sequence[str] = ()) -> HostUse:
        """As `Fabric.use`."""
        group, own = self._groups(host, nodes)
        return HostUse(
            memory=group.memory_used(),
            memory_limit=group.memory_limit(),
            nodes={node: NodeUse(memory=one.memory_used(), processes=len(one.pids())) for node, one in own.items()},
        )

    def frame_counter(self, host: str) -> FrameCounter:
        """As `Fabric.frame_counter`."""
        return LocalFrameCounter(self.host_netns(host), self.take_bridges)

    def _groups(self, host: str, nodes: Sequence[str]) -> tuple[Cgroup, dict[str, Cgroup]]:
        """The host's cgroup, and those of its nodes that have one."""
        name = self.cgroup(host)
        group, own = Cgroup(name), {node: Cgroup(f"{name}/{node}") for node in nodes}
        if not group.exists():
            raise Refused(Code.NOT_FOUND, f"host {host} has no counters", "it is not made yet", "wherry host list")
        return group, {node: one for node, one in own.items() if one.exists()}
