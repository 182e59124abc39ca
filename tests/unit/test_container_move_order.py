"""The order of a container's move, over hosts that only record: nothing of this machine is touched.

All that driver and mover pass to a host, and get from it, goes through pickle, as it would cross a network.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretBytes, SecretStr

from wherry.base.errors import Bug, Code, Failed
from wherry.base.progress import Check
from wherry.model.records import Node
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.host import (
    Channel,
    Comparison,
    HandedOver,
    Handover,
    HeldLocks,
    Look,
    Offer,
    Offers,
    Survey,
    Timer,
)
from wherry.node.container.mover import ContainerMover
from wherry.node.fake import Copy
from wherry.node.protocol import Placement, Usage

HANDOVER = Handover((HandedOver(7, 3, 40),), {"file[1:2]": 41})
SURVEY = Survey((), (HeldLocks(7, 3, "/tmp/f", (("FLOCK", "WRITE", "0", "EOF"),)),), {}, (Timer(7, 4, 1, 0, 2, 9, 8),))  # noqa: S108 - a name


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
        self.handover, self.sent_again = Handover(), ""
        self.pager_obstacle = "this kernel tracks no writes"
        self.problem = ""
        self.received = -1
        self.during: dict[str, Callable[[Look], None]] = {}

    def of(self, name: str) -> Host:
        return Host(self, name)

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

    def look(self, name: str, look: Look) -> None:
        look(f"{name} has begun")
        self.world.during.get(name, lambda _: None)(look)

    def idle(self) -> float:
        return self.world.idle[self.host]


class Departing(Half):
    def prepare(self, rate: float | None) -> None:
        self.enter("prepare", rate)
        self.world.need("a", Copy.RUNNING)
        self.world.open.add("a")

    def connect(self, offers: Offers) -> None:
        (offers,) = self.enter("connect", offers)
        assert offers == self.world.offered

    def begin_pass(self, number: int) -> None:
        self.enter("begin_pass", number)

    def pre_dump(self, look: Look) -> int | None:
        self.enter("pre_dump")
        self.world.need("a", Copy.RUNNING)
        self.look("pre_dump", look)
        return None if self.world.pager_obstacle else 17

    def warm_up(self) -> None:
        self.enter("warm_up")
        self.world.need("a", Copy.RUNNING)

    def freeze(self) -> Handover:
        self.enter("freeze")
        self.world.put("a", Copy.FROZEN)
        return self.world.handover

    def dump(self, look: Look) -> float | None:
        self.enter("dump")
        self.world.need("a", Copy.FROZEN)
        self.look("dump", look)
        return 0.1

    def send(self, look: Look) -> None:
        self.enter("send")
        self.look("send", look)

    def sent(self) -> int:
        self.enter("sent")
        return 100

    def compare(self, look: Look) -> Comparison:
        self.enter("compare")
        self.world.need("a", Copy.FROZEN)
        self.world.need("b", Copy.FROZEN)
        self.look("compare", look)
        return Comparison(SURVEY, self.world.sent_again)

    def release(self) -> None:
        self.enter("release")
        self.world.copies.pop("a", None)

    def abort(self) -> None:
        self.enter("abort")

    def resume(self) -> None:
        self.enter("resume")
        if self.world.copies.get("b") == Copy.FROZEN:
            raise Bug("what was restored could still run")
        self.world.need("a", Copy.FROZEN, Copy.RUNNING)
        self.world.put("a", Copy.RUNNING)

    def close(self) -> None:
        self.enter("close")
        self.world.open.discard("a")


class Arriving(Half):
    def offer(self, *channels: Channel) -> Offers:
        self.enter("offer", channels)
        self.world.open.add("b")
        self.world.offered = {c: Offer("10.0.0.2", 4000 + n, SecretBytes(b"s")) for n, c in enumerate(channels)}
        return self.world.offered

    def prepare(self, rate: float | None) -> None:
        self.enter("prepare", rate)
        self.world.put("b", Copy.PREPARED)

    def begin_pass(self, number: int) -> None:
        self.enter("begin_pass", number)

    def receive(self, look: Look, last: bool) -> None:
        self.enter("receive", last)
        self.look("receive" if last else "receive_round", look)

    def problem(self) -> str:
        return self.world.problem

    def inherit(self, handover: Handover) -> None:
        (handover,) = self.enter("inherit", handover)
        assert handover == self.world.handover

    def restore(self, look: Look) -> float | None:
        self.enter("restore")
        self.world.need("a", Copy.FROZEN)
        self.look("restore", look)
        self.world.put("b", Copy.FROZEN)
        return 0.2

    def patch(self, what: str, look: Look) -> None:
        assert self.enter("patch", what) == (self.world.sent_again,)

    def adopt(self, survey: Survey) -> None:
        assert self.enter("adopt", survey) == (SURVEY,)

    def thaw(self) -> None:
        self.enter("thaw")
        self.world.put("b", Copy.RUNNING)

    def await_first_run(self) -> float | None:
        return None

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

    def forecast(self, place: Placement) -> tuple[int, float]:
        return 1000, 0.1

    def tracks_dirty_pages(self) -> bool:
        return True

    def pager_obstacle(self) -> str:
        return self.world.pager_obstacle if self.name == "b" else ""

    def engine_obstacle(self) -> str:
        return "no CRIU" if self.name == "c" else ""

    def move_obstacle(self, place: Placement) -> str:
        return f"a debugger at {self.name}"

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


@pytest.fixture
def world() -> World:
    return World()


def mover_of(world: World) -> ContainerMover:
    return ContainerDriver(world).mover(place("a"), place("b"))


def run(mover: ContainerMover, steps: int = 6) -> None:
    """A move up to a step."""
    mover.limit_rate(1e9)
    every: list[Callable[[], object]] = [
        mover.prepare,
        lambda: mover.round(1),
        mover.freeze,
        mover.transfer,
        mover.restore,
        lambda: (mover.release(), mover.thaw(), mover.close()),
    ]
    for step in every[:steps]:
        step()


WHOLE = [
    *("a.prepare", "b.offer", "a.connect", "b.prepare", "a.begin_pass", "b.begin_pass"),
    *("b.offer", "a.connect", "a.pre_dump", "b.receive", "a.sent", "a.begin_pass", "b.begin_pass"),
    *("a.warm_up", "a.freeze"),
    *("b.inherit", "a.dump", "a.send", "b.receive", "a.sent"),
    *("b.restore", "a.compare", "b.adopt"),
    *("a.release", "b.thaw", "b.close", "a.close"),
]


def in_one_thread(calls: list[str]) -> list[str]:
    """The calls, with those that go side by side in the order of WHOLE."""
    calls = list(calls)
    for one, other in (("b.inherit", "a.dump"), ("a.send", "b.receive")):
        at = [number for number, call in enumerate(calls) if call in (one, other)][-2:]
        calls[at[0]], calls[at[1]] = one, other
        assert at[1] == at[0] + 1
    return calls


def test_a_whole_move(world: World) -> None:
    run(mover_of(world))
    assert in_one_thread(world.calls) == WHOLE
    assert world.copies == {"b": Copy.RUNNING} and not world.open


def test_the_pager_has_rounds_of_its_own_in_one_pass(world: World) -> None:
    world.pager_obstacle = ""
    run(mover_of(world), 2)
    assert world.calls == [*WHOLE[:6], "a.pre_dump", "b.receive", "a.sent"]
    assert Channel.MEMORY in world.offered and Channel.PAGES not in world.offered


def test_what_is_handed_over_is_inherited_during_the_dump_and_what_differs_is_patched(world: World) -> None:
    world.handover, world.sent_again = HANDOVER, "process 7, 4096 bytes"
    run(mover_of(world))
    assert world.calls.index("a.freeze") < world.calls.index("b.inherit") < world.calls.index("b.restore")
    assert world.calls.index("a.compare") + 1 == world.calls.index("b.patch") == world.calls.index("b.adopt") - 1


BEFORE_COMMIT = len(WHOLE) - 4


@pytest.mark.parametrize("anew", [False, True], ids=["same mover", "mover made anew"])
@pytest.mark.parametrize("at", range(BEFORE_COMMIT))
def test_a_call_that_fails_is_taken_back(world: World, at: int, anew: bool) -> None:
    world.fail_at = at
    mover = mover_of(world)
    with pytest.raises(Failed, match="failed"):
        run(mover)
    begun = len(world.calls)
    (mover_of(world) if anew else mover).roll_back()
    assert world.copies == {"a": Copy.RUNNING} and (anew or not world.open)
    assert world.calls[begun:] == ["a.abort", "b.kill", "a.resume", "b.close", "a.close", "b.stop"]


@pytest.mark.parametrize("steps", range(6))
def test_a_roll_back_may_fail_anywhere_and_be_repeated(world: World, steps: int) -> None:
    mover = mover_of(world)
    run(mover, steps)
    for ahead in range(6):
        world.fail_at = len(world.calls) + ahead
        with pytest.raises(Failed, match="failed"):
            mover.roll_back()
        assert ahead < 3 or world.copies["a"] == Copy.RUNNING
    mover.roll_back()
    assert world.copies == {"a": Copy.RUNNING} and not world.open


def test_a_failed_dump_or_stream_is_the_error_and_the_threads_beside_it_have_ended(world: World) -> None:
    world.handover = HANDOVER
    ended: list[str] = []

    def fail(_look: Look) -> None:
        raise Failed(Code.MOVE_FAILED, "the first error")

    def later(look: Look) -> None:
        while look(""):
            pass  # until the source makes no progress any more
        ended.append("receive")
        raise Failed(Code.TIMED_OUT, "a later error")

    def cut(look: Look) -> None:
        world.idle["a"] = 3.0
        fail(look)

    for what, during in (("dump", {"dump": fail}), ("send", {"send": cut, "receive": later})):
        world.during = during
        mover = mover_of(world)
        with pytest.raises(Failed, match="the first error"):
            run(mover)
        assert ended == ([] if what == "dump" else ["receive"])
        mover.roll_back()


@pytest.mark.parametrize("step", ["pre_dump", "send"])
def test_what_ended_at_the_destination_is_told_with_the_broken_connection(world: World, step: str) -> None:
    def cut(_look: Look) -> None:
        world.problem = "the host is out of memory"
        raise Failed(Code.MOVE_FAILED, "not sent", "connection reset")

    world.during = {step: cut}
    with pytest.raises(Failed, match="connection reset; at b: the host is out of memory"):
        run(mover_of(world))


@pytest.mark.parametrize("step", ["dump", "send", "receive", "restore", "compare"])
def test_a_look_tells_the_other_hosts_progress_and_cancels(world: World, step: str) -> None:
    other = "b" if step in ("dump", "send") else "a"
    seen: list[bool] = []
    asked = 0

    def during(look: Look) -> None:
        for world.idle[other] in (0.0, 5.0):
            seen.append(look("some"))
        nonlocal asked
        asked = -1

    def progress(_text: str) -> None:
        if asked < 0:
            raise Failed(Code.CANCELLED, "it was cancelled")

    world.during = {step: lambda look: (during(look), look(""))[0]}
    mover = mover_of(world)
    run(mover, 3)
    with pytest.raises(Failed, match="it was cancelled"):
        mover.transfer(progress)
        mover.restore(progress)
    assert seen == [True, False]
    mover.roll_back()


def test_a_round_tells_what_it_sent(world: World) -> None:
    texts: list[str] = []
    mover = mover_of(world)
    mover.prepare()
    done = mover.round(1, texts.append)
    assert (done.number, done.bytes, done.dirty, texts) == (1, 100, None, ["pre_dump has begun"])
    world.pager_obstacle = ""
    assert mover_of(world).round(1).dirty == 17


def test_the_driver_asks_the_host_of_the_placement(world: World) -> None:
    driver = ContainerDriver(world)
    driver.stop(place("a"))
    assert not driver.alive(place("a"))
    driver.start(place("b"))
    assert driver.alive(place("b")) and not driver.alive(place("a"))
    assert driver.usage(place("b")).processes == 1
    assert world.calls == ["a.stop", "b.start"]
    assert driver.move_obstacle(place("a"), place("b")) == "a debugger at a"
    assert driver.move_obstacle(place("a"), place("c")) == "no CRIU"
