"""Hosts that only record: the two halves of a container's move, without anything of this machine.

All that driver and mover pass to a host, and get from it, goes through pickle, as it would cross a network.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import SecretBytes, SecretStr

from wherry.base.errors import Bug, Code, Failed, Refused
from wherry.base.progress import Check
from wherry.model.records import Fetched, Node
from wherry.node.container.host import (
    HOSTS_OWN,
    Channel,
    Clocks,
    ClocksAhead,
    Comparison,
    FrozenState,
    HeldLocks,
    Offer,
    Offers,
    PassedFd,
    PassedFds,
    StepMonitor,
    Timer,
    Uses,
)
from wherry.node.container.memory_shortage import Shortage
from wherry.node.fake import Copy
from wherry.node.protocol import Measured, Placement, Usage

HANDOVER = PassedFds((PassedFd(7, 3, 40),), {"file[1:2]": 41})
STATE = FrozenState(
    (), (HeldLocks(7, 3, "/tmp/f", (("FLOCK", "WRITE", "0", "EOF"),)),), {}, (Timer(7, 4, 1, 0, 2, 9, 8),)
)  # noqa: S108 - a name


class World:
    """Hosts `a` and `b`, and the copies of one node. A second running copy is a Bug."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail_at = -1
        self.copies = {"a": Copy.RUNNING}
        self.open: set[str] = set()
        """Halves that hold something."""
        self.idle = {"a": 0.0, "b": 0.0}
        self.offered: Offers = {}
        self.handover, self.sent_again = PassedFds(), ""
        self.pager_obstacle = ""
        self.dirty: int | None = 17
        """Bytes that a round counts."""
        self.problem = ""
        self.shortage: Shortage | None = None
        self.compressed, self.key = False, SecretBytes(b"")
        self.post_copy = False
        self.deadline: float | None = None
        self.clocks = {host: Clocks("a boot", 5, 7) for host in "abc"}
        self.ahead: ClocksAhead | None = None
        self.two_kernels: bool | None = None
        self.received = -1
        self.during: dict[str, Callable[[StepMonitor], None]] = {}

    def of(self, name: str) -> Host:
        return Host(self, name)

    def pair_obstacle(self, source: str, destination: str) -> str:
        return ""

    def node_obstacle(self, source: Placement, destination: Placement) -> str:
        return ""

    def unsupported(self) -> str:
        return ""

    def sweep(self) -> None:
        pass

    def enter(self, host: str, name: str, *values: object) -> tuple[Any, ...]:
        """Records a call, or fails it before it does anything; the values as they arrive at the host."""
        if self.fail_at == len(self.calls):
            self.fail_at = -1
            self.calls.append(f"{host}.{name} fails")
            raise Failed(Code.FAILED, f"{name} failed")
        self.calls.append(f"{host}.{name}")
        return tuple(map(crossed, values))

    def put(self, host: str, copy: Copy) -> None:
        if copy == Copy.RUNNING and any(c == Copy.RUNNING for h, c in self.copies.items() if h != host):
            raise Bug("two copies run")
        self.copies[host] = copy

    def need(self, host: str, *copies: Copy) -> None:
        if self.copies.get(host) not in copies:
            raise Bug(f"the copy at {host} is {self.copies.get(host)}, not {copies}")


def crossed(value: Any) -> Any:
    there = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
    assert there == value
    return there


class Half:
    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host

    def enter(self, name: str, *values: object) -> tuple[Any, ...]:
        return self.world.enter(self.host, name, *values)

    def monitor(self, name: str, monitor: StepMonitor) -> None:
        monitor(f"{name} has begun")
        self.world.during.get(name, lambda _: None)(monitor)

    def idle(self) -> float:
        return self.world.idle[self.host]


class Departing(Half):
    def prepare(
        self, rate: float | None, compressed: bool = False, spare: float = 0.0, two_kernels: bool = False
    ) -> None:
        self.enter("prepare", rate, compressed, two_kernels)
        self.world.compressed, self.world.two_kernels = compressed, two_kernels
        self.world.need("a", Copy.RUNNING)
        self.world.open.add("a")

    def connect(self, offers: Offers) -> None:
        (offers,) = self.enter("connect", offers)
        assert offers == self.world.offered

    def begin(self) -> None:
        self.enter("begin")

    def round(self, monitor: StepMonitor) -> int | None:
        assert not self.world.pager_obstacle
        self.enter("round")
        self.world.need("a", Copy.RUNNING)
        self.monitor("round", monitor)
        return self.world.dirty

    def throttle(self, share: float) -> None:
        self.enter(f"throttle to {share:.2f}")
        self.world.need("a", Copy.RUNNING)

    def prepare_freeze(self) -> None:
        self.enter("prepare_freeze")
        self.world.need("a", Copy.RUNNING)

    def freeze(self, post_copy: bool = False) -> PassedFds:
        self.enter("freeze", post_copy)
        self.world.put("a", Copy.FROZEN)
        self.world.post_copy = post_copy
        return self.world.handover

    def settled(self) -> bool:
        self.enter("settled")
        return True

    def dump(self, monitor: StepMonitor) -> float | None:
        self.enter("dump")
        self.world.need("a", Copy.FROZEN)
        self.monitor("dump", monitor)
        return 0.1

    def send(self, monitor: StepMonitor) -> None:
        self.enter("send")
        self.monitor("send", monitor)

    def problem(self) -> str:
        return ""

    def sent(self) -> int:
        self.enter("sent")
        return 100

    def compare(self, monitor: StepMonitor) -> Comparison:
        self.enter("compare")
        self.world.need("a", Copy.FROZEN)
        self.world.need("b", Copy.FROZEN)
        self.monitor("compare", monitor)
        return Comparison(STATE, self.world.sent_again)

    def release(self) -> None:
        self.enter("release")
        if self.world.post_copy:
            self.world.put("a", Copy.RETIRED)
        else:
            self.world.copies.pop("a", None)

    def send_rest(self) -> None:
        self.enter("send_rest")
        self.world.need("a", Copy.RETIRED)
        self.world.need("b", Copy.RUNNING)

    def discard(self) -> None:
        self.enter("discard")
        if self.world.copies.get("a") == Copy.RETIRED:
            self.world.copies.pop("a")

    def abort(self) -> None:
        self.enter("abort")

    def resume(self) -> None:
        self.enter("resume")
        if self.world.copies.get("b") == Copy.FROZEN:
            raise Bug("the restored copy could still run")
        self.world.need("a", Copy.FROZEN, Copy.RUNNING)
        self.world.put("a", Copy.RUNNING)

    def close(self) -> None:
        self.enter("close")
        self.world.open.discard("a")


class Arriving(Half):
    def offer(self, *channels: Channel, streams: int = 1) -> Offers:
        self.enter("offer", channels)
        self.world.open.add("b")
        self.world.offered = {c: Offer("10.0.0.2", 4000 + n, SecretBytes(b"s")) for n, c in enumerate(channels)}
        if Channel.MEMORY in channels:
            more = tuple(Offer("10.0.0.2", 5000 + n, SecretBytes(b"t")) for n in range(1, streams))
            memory = replace(self.world.offered[Channel.MEMORY], key=self.world.key, more=more)
            self.world.offered = {**self.world.offered, Channel.MEMORY: memory}
        return self.world.offered

    def prepare(self, rate: float | None, deadline: float | None = None, ahead: ClocksAhead = HOSTS_OWN) -> None:
        self.enter("prepare", rate, deadline, ahead)
        self.world.deadline, self.world.ahead = deadline, ahead
        self.world.put("b", Copy.PREPARED)

    def begin(self) -> None:
        self.enter("begin")

    def receive(self, monitor: StepMonitor, last: bool) -> None:
        self.enter("receive", last)
        self.monitor("receive" if last else "receive_round", monitor)

    def problem(self) -> str:
        return self.world.problem

    def shortage(self) -> Shortage | None:
        return self.world.shortage

    def take_passed(self, passed: PassedFds) -> None:
        (passed,) = self.enter("take_passed", passed)
        assert passed == self.world.handover

    def restore(self, monitor: StepMonitor) -> float | None:
        self.enter("restore")
        self.world.need("a", Copy.FROZEN)
        self.monitor("restore", monitor)
        self.world.put("b", Copy.FROZEN)
        return 0.2

    def patch(self, what: str, monitor: StepMonitor) -> None:
        assert self.enter("patch", what) == (self.world.sent_again,)

    def apply_state(self, state: FrozenState) -> None:
        assert self.enter("apply_state", state) == (STATE,)

    def thaw(self) -> None:
        self.enter("thaw")
        self.world.put("b", Copy.RUNNING)

    def await_first_run(self) -> float | None:
        return None

    def fill(self) -> Fetched | None:
        self.enter("fill")
        self.world.need("b", Copy.RUNNING)
        if not self.world.post_copy:
            return None
        self.world.need("a", Copy.RETIRED)
        return crossed(Fetched(demanded=4096, background=8192, seconds=0.5))

    def kill(self) -> None:
        self.enter("kill")
        if self.world.copies.get("b") == Copy.FROZEN:
            self.world.copies["b"] = Copy.PREPARED

    def close(self) -> None:
        self.enter("close")
        self.world.open.discard("b")


class Host:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def start(self, place: Placement, check: Check) -> None:
        self.world.enter(self.name, "start", place)
        self.world.put(self.name, Copy.RUNNING)

    def stop(self, place: Placement) -> None:
        self.world.enter(self.name, "stop", place)
        self.world.copies.pop(self.name, None)

    def alive(self, place: Placement) -> bool:
        return self.world.copies.get(self.name) in (Copy.RUNNING, Copy.FROZEN)

    def bind(self, place: Placement, directory: str) -> None:
        self.world.enter(self.name, "bind", place)

    def unbind(self, place: Placement, directory: str) -> None:
        self.world.enter(self.name, "unbind", place)

    def usage(self, place: Placement) -> Usage:
        return crossed(Usage(memory=1, cpu=1.0, processes=1))

    def measure(self, place: Placement, seconds: float) -> Measured:
        return crossed(Measured(bytes=1000, overhead=0.1))

    def clocks(self, place: Placement) -> Clocks:
        return crossed(self.world.clocks[crossed(place).host])

    def mount_points(self) -> tuple[str, ...]:
        return ()

    def pager_obstacle(self) -> str:
        return self.world.pager_obstacle if self.name == "b" else ""

    def engine_obstacle(self) -> str:
        return "no CRIU" if self.name == "c" else ""

    def move_obstacle(self, place: Placement) -> str:
        return "no CAP_SYS_RESOURCE" if place.host == "a" else ""

    def require_movable(self, place: Placement) -> None:
        raise Refused(Code.UNSUPPORTED, "it cannot be moved", f"a debugger at {self.name}", "end it")

    def uses(self, place: Placement) -> Uses:
        return crossed(Uses())

    def lacks(self, used: Uses) -> str:
        return ""

    def kernel_obstacle(self) -> str:
        return ""

    def departure(self, place: Placement, paged: bool = False) -> Departing:
        assert crossed(place).host == self.name == "a" and paged == (not self.world.pager_obstacle)
        return Departing(self.world, self.name)

    def arrival(self, place: Placement, paged: bool = False) -> Arriving:
        assert crossed(place).host == self.name == "b" and paged == (not self.world.pager_obstacle)
        return Arriving(self.world, self.name)


def place(host: str) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, address="10.0.0.1", mac="02:00:00:00:00:01", cpus=1.0, memory=1
    )
    return Placement(node=node, host=host, netns=f"net of {host}", cgroup=host, key=SecretStr("k"), user="0:0:")
