"""The order of a container's move, over hosts that only record (recordinghosts): nothing of this machine is touched."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from recordinghosts import HANDOVER, World, place

from wherry.base.errors import Code, Failed, Refused
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.background import CacheWarmer
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.host import Channel, Clocks, ClocksAhead, StepMonitor
from wherry.node.container.memory_shortage import Shortage
from wherry.node.container.mover import ContainerMover
from wherry.node.fake import Copy


@pytest.fixture
def world() -> World:
    return World()


NO_PAGER = "this kernel tracks no writes"


def mover_of(world: World) -> ContainerMover:
    return ContainerDriver(world).mover(place("a"), place("b"))


def run(mover: ContainerMover, steps: int = 6, post_copy: bool = False) -> None:
    """A move up to a step."""
    mover.limit_rate(1e9)
    every: list[Callable[[], object]] = [
        mover.prepare,
        lambda: mover.round(1) if mover.can_round() else None,
        lambda: mover.freeze(post_copy),
        mover.transfer,
        mover.restore,
        lambda: (mover.release(), mover.thaw(), mover.complete(), mover.close()),
    ]
    for step in every[:steps]:
        step()


WHOLE = [
    *("a.prepare", "b.offer", "a.connect", "b.prepare", "a.begin", "b.begin"),
    *("a.round", "b.receive", "a.sent"),
    *("a.prepare_freeze", "a.freeze"),
    *("b.take_passed", "a.dump", "a.send", "b.receive", "a.sent"),
    *("b.restore", "a.compare", "b.apply_state"),
    *("a.release", "b.thaw", "b.fill", "a.discard", "b.close", "a.close"),
]


def in_one_thread(calls: list[str]) -> list[str]:
    """The calls, with simultaneous ones in the order of WHOLE."""
    calls = list(calls)
    for one, other in (("b.take_passed", "a.dump"), ("a.send", "b.receive")):
        at = [number for number, call in enumerate(calls) if call in (one, other)][-2:]
        calls[at[0]], calls[at[1]] = one, other
        assert at[1] == at[0] + 1
    return calls


def test_a_whole_move(world: World) -> None:
    run(mover_of(world))
    assert in_one_thread(world.calls) == WHOLE
    assert world.copies == {"b": Copy.RUNNING} and not world.open
    assert Channel.MEMORY in world.offered and Channel.PAGES not in world.offered


def test_without_the_pager_all_memory_is_sent_while_the_node_is_frozen(world: World) -> None:
    world.pager_obstacle = NO_PAGER
    run(mover := mover_of(world))
    assert not mover.can_round() and in_one_thread(world.calls) == [*WHOLE[:6], *WHOLE[9:]]
    assert world.copies == {"b": Copy.RUNNING} and not world.open
    assert Channel.PAGES in world.offered and Channel.MEMORY not in world.offered


def test_what_is_handed_over_is_inherited_during_the_dump_and_what_differs_is_patched(world: World) -> None:
    world.handover, world.sent_again = HANDOVER, "process 7, 4096 bytes"
    run(mover_of(world))
    assert world.calls.index("a.freeze") < world.calls.index("b.take_passed") < world.calls.index("b.restore")
    assert world.calls.index("a.compare") + 1 == world.calls.index("b.patch") == world.calls.index("b.apply_state") - 1


BEFORE_COMMIT = WHOLE.index("a.release")


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

    def fail(_monitor: StepMonitor) -> None:
        raise Failed(Code.MOVE_FAILED, "the first error")

    def later(monitor: StepMonitor) -> None:
        while monitor(""):
            pass  # until the source makes no progress any more
        ended.append("receive")
        raise Failed(Code.TIMED_OUT, "a later error")

    def cut(monitor: StepMonitor) -> None:
        world.idle["a"] = 3.0
        fail(monitor)

    for what, during in (("dump", {"dump": fail}), ("send", {"send": cut, "receive": later})):
        world.during = during
        mover = mover_of(world)
        with pytest.raises(Failed, match="the first error"):
            run(mover)
        assert ended == ([] if what == "dump" else ["receive"])
        mover.roll_back()


@pytest.mark.parametrize("step", ["round", "send"])
def test_what_ended_at_the_destination_is_told_with_the_broken_connection(world: World, step: str) -> None:
    def cut(_monitor: StepMonitor) -> None:
        world.problem = "the host is out of memory"
        raise Failed(Code.MOVE_FAILED, "not sent", "connection reset")

    world.during = {step: cut}
    with pytest.raises(Failed, match="connection reset; at b: the host is out of memory"):
        run(mover_of(world))


@pytest.mark.parametrize("step", ["round", "send", "restore"])
def test_a_host_that_runs_out_of_memory_is_named_with_what_to_type(world: World, step: str) -> None:
    def cut(_monitor: StepMonitor) -> None:
        world.problem, world.shortage = "it was killed", Shortage("host b ran out of memory: 1 MiB", "type this")
        raise Failed(Code.MOVE_FAILED, "not sent", "PID sending error: Broken pipe")

    world.during = {step: cut}
    with pytest.raises(Failed, match="^host b ran out of memory: 1 MiB$") as caught:
        run(mover_of(world))
    assert caught.value.next == "type this"


def test_a_node_is_slowed_down_before_the_rounds_that_follow(world: World) -> None:
    """Each round leaves as much as the one before sent: half of the time is taken each time, down to a tenth."""
    world.dirty = None
    mover = ContainerDriver(world).mover(place("a"), place("b"), MigrationParameters(mode="auto-converge"))
    mover.prepare()
    shares = [mover.round(number).share for number in range(1, 7)]
    assert shares == [1.0, 1.0, 0.5, 0.25, 0.125, 0.1]
    told = [call.removeprefix("a.throttle to ") for call in world.calls if "throttle" in call]
    assert told == ["0.50", "0.25", "0.12", "0.10"]
    (unslowed := mover_of(world)).prepare()
    assert {unslowed.round(number).share for number in (1, 2, 3)} == {None}


@pytest.mark.parametrize("step", ["dump", "send", "receive", "restore", "compare"])
def test_a_look_tells_the_other_hosts_progress_and_cancels(world: World, step: str) -> None:
    other = "b" if step in ("dump", "send") else "a"
    seen, asked = list[bool](), list[bool]()

    def during(monitor: StepMonitor) -> None:
        for world.idle[other] in (0.0, 5.0):
            seen.append(monitor("some"))
        asked.append(True)

    def progress(_text: str) -> None:
        if asked:
            raise Failed(Code.CANCELLED, "it was cancelled")

    world.during = {step: lambda monitor: (during(monitor), monitor(""))[0]}
    mover = mover_of(world)
    run(mover, 3)
    with pytest.raises(Failed, match="it was cancelled"):
        mover.transfer(progress)
        mover.restore(progress)
    assert seen == [True, False]
    mover.roll_back()


def test_a_round_tells_what_it_sent(world: World) -> None:
    texts, mover = list[str](), mover_of(world)
    mover.prepare()
    done = mover.round(1, texts.append)
    assert (done.number, done.bytes, done.dirty, texts) == (1, 100, 17, ["round has begun"])


def test_the_driver_asks_the_host_of_the_placement(world: World) -> None:
    driver = ContainerDriver(world)
    driver.stop(place("a"))
    assert not driver.alive(place("a"))
    driver.start(place("b"))
    assert driver.alive(place("b")) > driver.alive(place("a")) and driver.usage(place("b")).processes == 1
    assert world.calls == ["a.stop", "b.start"]
    assert [driver.move_obstacle(place("a"), place(to)) for to in "bc"] == ["no CAP_SYS_RESOURCE", "no CRIU"]
    with pytest.raises(Refused, match="a debugger at a"):
        driver.require_movable(place("a"))


def test_the_clocks_of_a_node_go_on_at_another_kernel(world: World) -> None:
    here = Clocks("one boot", 50 * 10**9, 70 * 10**9, ClocksAhead(1, 2))
    world.clocks |= {"a": here, "b": Clocks("another", 900 * 10**9, 10**9)}
    run(mover_of(world), 1)
    ahead = world.ahead
    assert ahead and 0 <= ahead.monotonic - (1 - 850 * 10**9) < 10**9  # never behind, ahead by the time of the calls
    assert ahead.boottime - ahead.monotonic == 2 - 1 + 69 * 10**9 + 850 * 10**9
    assert world.two_kernels


def test_a_node_keeps_its_clocks_between_hosts_of_one_kernel(world: World) -> None:
    world.clocks["a"] = Clocks("a boot", 5, 7, ClocksAhead(3, -4))
    run(mover_of(world), 1)
    assert (world.ahead, world.two_kernels) == (ClocksAhead(3, -4), False)


def test_with_post_copy_the_source_is_retired_until_its_memory_is_there() -> None:
    world = World()
    parameters = MigrationParameters(mode="post-copy", deadline="7s")
    mover = ContainerDriver(world).mover(place("a"), place("b"), parameters)
    run(mover, 6, post_copy=True)
    end = ["a.release", "b.thaw", "a.send_rest", "b.fill", "a.discard", "b.close", "a.close"]
    assert world.calls[-len(end) :] == end and world.copies == {"b": Copy.RUNNING}
    assert world.deadline == 7.0 and not world.open


def test_without_the_pager_there_is_no_post_copy(world: World) -> None:
    world.pager_obstacle = NO_PAGER
    with pytest.raises(Refused, match=NO_PAGER):
        ContainerDriver(world).mover(place("a"), place("b"), MigrationParameters(mode="hybrid"))


# Acts beside others: repeated ones.


def test_an_act_is_called_at_once_and_again_until_it_is_stopped() -> None:
    called = threading.Semaphore(0)
    warmer = CacheWarmer(called.release, 0.001)
    assert called.acquire(blocking=False)
    assert called.acquire(timeout=30)
    warmer.stop()
    warmer.stop()
    while called.acquire(blocking=False):
        pass
    assert not called.acquire(timeout=0.05)


def test_an_act_that_fails_at_first_is_not_repeated_and_later_failures_end_it() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError

    CacheWarmer(fail, 0.001).stop()
    with pytest.raises(OSError):
        CacheWarmer(fail, 0.001)
