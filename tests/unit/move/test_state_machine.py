"""The state machine of a move: whatever fails or is killed at whatever step, one copy of the node runs afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakeworld import Killed, World, fabric_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.records import Move, Node, NodeState, Phase, Prediction, Round
from wherry.move import state_machine
from wherry.move.moves import MovePlan
from wherry.node.fake import Copy, FakeDriver, FakeMover

NODE, SOURCE, DESTINATION = "hello-2", "b1", "a2"
BY_POST_COPY = MoveOptions(parameters=MigrationParameters(mode="post-copy"))
STEPS = 60
"""More than the calls and writes of one move with rounds; a fault beyond the last step does not strike."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, rounds=True)
    world.make()
    return world


class Striker:
    """Raises at the n-th call; records the calls. With `every` it also raises at later calls of the same name."""

    def __init__(self, at: int, error: BaseException, every: bool = False) -> None:
        self.at, self.error, self.every = at, error, every
        self.calls: list[str] = []

    def __call__(self, name: str) -> None:
        self.calls.append(name)
        struck = len(self.calls) == self.at + 1
        if struck or (self.every and len(self.calls) > self.at and name == self.calls[self.at]):
            raise self.error


def last_move(world: World) -> Move:
    return world.store.moves()[-1]


def assert_settled(world: World) -> None:
    """The node runs at the host in the record, and nowhere else."""
    moves = world.store.moves()
    assert not world.store.moves(unfinished=True)
    world.assert_one_copy(NODE, moves[-1].destination if moves and moves[-1].committed else SOURCE)


def test_moves_and_records(world: World) -> None:
    told: list[str] = []
    move = world.moves.run(NODE, DESTINATION, progress=told.append)
    world.assert_one_copy(NODE, DESTINATION)
    assert (move.phase, move.source, move.destination, move.error) == (Phase.DONE, SOURCE, DESTINATION, None)
    assert move == world.store.move(move.id)
    assert len(move.rounds) >= 2 and move.bytes > sum(r.bytes for r in move.rounds)
    assert set(move.phases) >= {"prepare", "rounds", "freeze", "transfer", "restore", "commit", "thaw"}
    assert move.downtime and move.total and move.downtime < move.total and move.downtime_engine == 0.01
    assert move.downtime_peer is not None and move.predicted is not None and move.ended
    assert any("round 1" in text for text in told)
    assert {event.kind for event in world.store.events()} >= {"move.begin", "move.done"}


def test_a_clock_that_is_set_changes_no_duration(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock goes back an hour during the move, as NTP may set it after a boot."""
    times = iter([5000.0])
    monkeypatch.setattr(time, "time", lambda: next(times, 1400.0))
    move = world.moves.run(NODE, DESTINATION)
    assert move.downtime is not None and move.total is not None and move.downtime < move.total < 60


def test_taking_over_keeps_the_phases_of_the_daemon_before(world: World) -> None:
    """Nobody measured how long such a move took, as a forecast must know."""

    def strike(name: str) -> None:
        if name == "thaw":
            raise Killed

    world.watch(strike)
    with pytest.raises(Killed):
        world.moves.run(NODE, DESTINATION)
    before = last_move(world).phases
    assert before["transfer"]
    world.reborn()
    world.moves.recover()
    move = last_move(world)
    assert move.phase == Phase.DONE and move.phases.items() >= before.items() and "thaw" in move.phases
    assert move.total is None


def test_a_node_to_which_something_came_is_frozen_anew(world: World) -> None:
    """With its port plugged, and with the frames that were held for it."""
    world.driver.arrivals = 2
    called: list[str] = []
    world.watch(called.append)
    world.moves.run(NODE, DESTINATION)
    world.assert_one_copy(NODE, DESTINATION)
    steps = [name for name in called if name in ("freeze", "port_unplug", "port_plug", "settled", "hold", "transfer")]
    again = ["freeze", "port_unplug", "settled", "port_plug", "hold"]
    assert steps[: steps.index("transfer")] == ["hold", *again, *again, "freeze", "port_unplug", "settled"]


def test_a_node_to_which_something_always_comes_stays(world: World) -> None:
    world.driver.arrivals = 1000
    with pytest.raises(Failed, match="connections to .* are made all the time"):
        world.moves.run(NODE, DESTINATION)
    assert_settled(world)


def test_source_is_killed_before_destination_runs(world: World) -> None:
    world.driver.calls.clear()
    world.moves.run(NODE, DESTINATION, MoveOptions(max_rounds=0))
    calls = world.driver.calls
    assert "round" not in calls
    assert calls.index("restore") < calls.index("release") < calls.index("thaw")


def test_a_node_that_does_not_answer_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_mover: FakeMover) -> float | None:
        raise LostContact(Code.UNREACHABLE, "it does not answer", "waited 60 s")

    monkeypatch.setattr(FakeMover, "await_first_run", silent)
    move = world.moves.run(NODE, DESTINATION)
    assert move.phase == Phase.DONE and move.error and move.error["why"] == "waited 60 s" and move.downtime
    assert "move.silent" in {event.kind for event in world.store.events()}
    assert_settled(world)


def test_a_node_is_asked_by_who_takes_over_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move ends when the node answers, also when the daemon was killed behind the commit."""
    asked = list[int]()
    monkeypatch.setattr(FakeMover, "await_first_run", lambda _mover: asked.append(1))

    def strike(name: str) -> None:
        if name == "thaw":
            raise Killed

    world.watch(strike)
    with pytest.raises(Killed):
        world.moves.run(NODE, DESTINATION)
    assert asked == []
    world.reborn()
    world.moves.recover()
    assert asked == [1]
    assert_settled(world)


def test_without_rounds_a_node_does_not_stand_for_long(world: World) -> None:
    with pytest.raises(Refused, match="would have a downtime of"):
        world.moves.run(NODE, DESTINATION, MoveOptions(max_rounds=0, bandwidth=200_000))
    assert world.moves.run(NODE, DESTINATION, MoveOptions(bandwidth=200_000)).phase == Phase.DONE


def test_there_and_back_again(world: World) -> None:
    for number in range(10):
        world.moves.run(NODE, (DESTINATION, SOURCE)[number % 2])
    world.assert_one_copy(NODE, SOURCE)
    assert predicted(world, DESTINATION).basis == "the last 10 moves"


def test_all_but_one_at_once(world: World) -> None:
    targets = {"hello-1": "b2", "hello-2": "a2", "hello-3": "a1"}
    with ThreadPoolExecutor(len(targets)) as threads:
        moves = [threads.submit(world.moves.run, *pair) for pair in targets.items()]
    assert [move.result().phase for move in moves] == [Phase.DONE] * len(targets)
    for node, host in targets.items():
        world.assert_one_copy(node, host)
    world.assert_one_copy("hello-0", "a1")


KINDS = {"we switch": {}, "the engine switches": {"switches": True}, "memory is fetched": {"fetches": True}}


def world_of(directory: Path, kind: str, nodes: int = 4) -> tuple[World, MoveOptions]:
    world = World(directory, rounds=True, **KINDS[kind])
    world.make(nodes=nodes)
    return world, BY_POST_COPY if world.driver.fetches else MoveOptions()


def _each_step(directory: Path, kind: str) -> Iterator[tuple[int, World, MovePlan]]:
    """A world as it was for each call and write of a move, and the move's plan, which needs none of them."""
    world, options = world_of(directory, kind)
    called: list[str] = []
    world.watch(called.append)
    plan = world.moves.plan(NODE, DESTINATION, options)
    assert not called
    bring_back = world.keep()
    for step in range(STEPS):
        yield step, world, plan
        bring_back()


OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@OF_EACH_KIND
@pytest.mark.parametrize("every", [False, True], ids=["once", "for ever"])
def test_failure_at_each_step(tmp_path: Path, every: bool, kind: str) -> None:
    for step, world, plan in _each_step(tmp_path, kind):
        striker = Striker(step, Failed(Code.FAILED, "struck"), every)
        world.watch(striker)
        try:
            world.moves.apply(plan)
        except Failed:
            pass
        if len(striker.calls) <= step:
            assert_settled(world)
            break
        world.reborn()
        world.moves.recover()
        assert_settled(world)
    else:
        pytest.fail(f"a move has more than {STEPS} steps")


@OF_EACH_KIND
def test_kill_at_each_step(tmp_path: Path, kind: str) -> None:
    for step, world, plan in _each_step(tmp_path, kind):
        striker = Striker(step, Killed())
        world.watch(striker)
        try:
            world.moves.apply(plan)
            break
        except Killed:
            world.reborn()
        world.moves.recover()
        assert_settled(world)
        world.moves.recover()
        assert_settled(world)
    else:
        pytest.fail(f"a move has more than {STEPS} steps")


def test_kill_of_the_recovery_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    worlds = {kind: world_of(tmp_path_factory.mktemp("world"), kind) for kind in KINDS}
    fresh = {kind: world.keep() for kind, (world, _) in worlds.items()}

    @given(
        first=st.integers(0, 35), second=st.integers(0, 12), third=st.integers(0, 12), kind=st.sampled_from([*KINDS])
    )
    @settings(max_examples=examples(40), deadline=None)
    def kill(first: int, second: int, third: int, kind: str) -> None:
        world, options = worlds[kind]
        fresh[kind]()
        for step, act in (
            (first, lambda: world.moves.run(NODE, DESTINATION, options)),
            (second, world.moves.recover),
            (third, world.moves.recover),
        ):
            world.watch(Striker(step, Killed()))
            try:
                act()
            except Killed:
                pass
            world.reborn()
        world.moves.recover()
        assert_settled(world)

    kill()


@pytest.mark.parametrize("phase", ["prepare", "rounds", "freeze", "transfer", "restore"])
def test_fault_before_the_commit_goes_back(world: World, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    with pytest.raises(Failed) as caught:
        world.moves.run(NODE, DESTINATION, fault=f"{phase}:fail")
    assert caught.value.code == Code.MOVE_FAILED and "runs on b1 as before" in caught.value.what
    move = last_move(world)
    assert move.phase == Phase.ROLLED_BACK and move.error and move.error["code"] == "MOVE_FAILED"
    assert_settled(world)


@pytest.mark.parametrize(("written", "step"), [(0.5, "freeze"), (0.95, "switch")])
def test_the_policy_tells_the_engine_to_switch(
    world: World, monkeypatch: pytest.MonkeyPatch, written: float, step: str
) -> None:
    def send(mover: FakeMover, number: int, _during: object) -> Round:
        return Round(number=number, bytes=2**24, seconds=1, dirty=int(written**number * 2**24))

    monkeypatch.setattr(FakeMover, "round", send)
    monkeypatch.setattr(FakeDriver, "parameters_obstacle", lambda _driver, _parameters: "")
    world.moves.run(NODE, DESTINATION, MoveOptions(parameters=MigrationParameters(mode="hybrid")))
    assert {"freeze", "switch"} & set(world.driver.calls) == {step}
    assert_settled(world)


def test_frames_that_were_kept_go_back_before_the_node_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the hold still takes frames until the port is announced."""
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    calls: list[str] = []
    world.watch(calls.append)
    with pytest.raises(Failed):
        world.moves.run(NODE, DESTINATION, fault="restore:fail")
    order = ["hold.divert", "hold.give_back", "port_plug", "roll_back", "hold.drop"]
    places = [max(at for at, call in enumerate(calls) if call.startswith(name)) for name in order]
    assert places == sorted(places), calls


def test_a_transfer_that_was_cancelled_goes_back(world: World) -> None:
    """While it is under way: it may take an hour."""
    calls = world.driver.calls
    with pytest.raises(Failed) as caught:
        world.moves.run(NODE, DESTINATION, cancelled=lambda: "transfer" in calls)
    assert caught.value.code == Code.CANCELLED and "transfer" not in last_move(world).phases
    assert_settled(world)


@pytest.mark.parametrize("phase", ["commit", "thaw"])
def test_fault_after_the_commit_is_finished(world: World, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    assert world.moves.run(NODE, DESTINATION, fault=f"{phase}:fail").phase == Phase.DONE
    world.assert_one_copy(NODE, DESTINATION)


def test_faults_are_for_tests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHERRY_FAULTS", raising=False)
    with pytest.raises(Refused) as caught:
        world.moves.run(NODE, DESTINATION, fault="restore:fail")
    assert caught.value.code == Code.UNSUPPORTED
    monkeypatch.setenv("WHERRY_FAULTS", "1")
    for text in ("restore", "lunch:fail", "restore:explode", "restore:pause", "restore:pause:x", "done:fail"):
        with pytest.raises(Refused) as caught:
            world.moves.run(NODE, DESTINATION, fault=text)
        assert caught.value.code == Code.USAGE
    assert not world.store.moves()


@pytest.mark.parametrize("after", range(9))
def test_cancel(world: World, after: int) -> None:
    asked = iter(range(100))
    try:
        world.moves.run(NODE, DESTINATION, cancelled=lambda: next(asked) >= after)
    except Failed as error:
        assert error.code == Code.CANCELLED
    assert_settled(world)


def test_lost_source(world: World) -> None:
    """The node dies by itself while frozen: nothing is left at the destination, the node is known as lost."""

    def strike(name: str) -> None:
        if name == "transfer":
            del world.driver.placements[(NODE, SOURCE)]

    world.watch(strike)
    with pytest.raises(Failed) as caught:
        world.moves.run(NODE, DESTINATION)
    assert "ended while it was moved" in caught.value.what
    assert world.driver.copies(NODE) == {} and (NODE, DESTINATION) not in world.fabric.ports
    assert _row(world).state == NodeState.LOST and not world.store.moves(unfinished=True)
    world.reborn()
    world.make()
    world.assert_one_copy(NODE, SOURCE)


def test_lost_destination(world: World) -> None:
    entered = []

    def strike(name: str) -> None:
        entered.append(name)
        if name == "thaw":
            world.driver.placements.pop((NODE, DESTINATION), None)

    world.watch(strike)
    with pytest.raises(Failed):
        world.moves.run(NODE, DESTINATION)
    assert (_row(world).state, _row(world).host) == (NodeState.LOST, DESTINATION)
    assert not world.store.moves(unfinished=True)
    assert "close" in entered  # its programs are not left to a later one
    world.reborn()
    world.make()
    world.assert_one_copy(NODE, DESTINATION)


def _row(world: World) -> Node:
    node = world.store.node(NODE)
    assert node is not None
    return node


def predicted(world: World, host: str) -> Prediction:
    found = world.moves.plan(NODE, host).predicted
    assert found is not None
    return found


class TestRefusals:
    """Obstacles that are known before the start are refused before the start, and nothing is changed."""

    def refused(self, world: World, code: Code, words: str, node: str = NODE, host: str = DESTINATION) -> None:
        before = dict(world.driver.placements), dict(world.fabric.ports), world.store.nodes()
        for act in (world.moves.plan, world.moves.run):
            with pytest.raises(Refused) as caught:
                act(node, host)
            error = caught.value
            assert error.code == code and words in f"{error.what} {error.why}", str(error)
        assert before == (dict(world.driver.placements), dict(world.fabric.ports), world.store.nodes())
        assert not world.store.moves(unfinished=True)

    def test_names(self, world: World) -> None:
        self.refused(world, Code.NOT_FOUND, "did you mean hello-2?", node="helo-2")
        self.refused(world, Code.NOT_FOUND, "known: a1, a2, b1, b2", host="mars")

    def test_same_host(self, world: World) -> None:
        self.refused(world, Code.WRONG_STATE, "already", host=SOURCE)

    def test_host_down_or_drained(self, world: World) -> None:
        world.store.set_host_flag(DESTINATION, "drained", True)
        self.refused(world, Code.WRONG_STATE, "drained")
        world.store.set_host_flag(DESTINATION, "drained", False)
        world.fabric.set_down(DESTINATION, True)
        self.refused(world, Code.HOST_DOWN, "a2 is down")
        world.fabric.set_down(DESTINATION, False)
        world.fabric.set_down(SOURCE, True)
        self.refused(world, Code.HOST_DOWN, "b1 is down")

    def test_node_lost_or_moving(self, world: World) -> None:
        for state, words in ((NodeState.LOST, "it is lost"), (NodeState.MOVING, "moved already")):
            world.store.put_node(_row(world).model_copy(update={"state": state}))
            self.refused(world, Code.WRONG_STATE, words)

    def test_driver_says_no(self, world: World) -> None:
        world.driver.immovable = "CRIU cannot dump another user's processes"
        self.refused(world, Code.UNSUPPORTED, "another user")

    def test_capacity(self, tmp_path: Path) -> None:
        world = World(tmp_path, fabric_spec(memory="1GiB"))
        world.make(memory="600MiB")
        self.refused(world, Code.NO_CAPACITY, "of memory left")

    @pytest.mark.parametrize(
        ("facts", "words"),
        [({"without_cpu_features": ["avx2"]}, "avx2"), ({"without_files": ["/home/user"]}, "/home/user")],
    )
    def test_other_host(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, list[str]], words: str
    ) -> None:
        monkeypatch.setattr("wherry.cluster.binds.trusted_path", lambda path, _: path)  # the owner's home is imagined
        world = World(tmp_path, fabric_spec(a2=facts))
        world.make(hosts=["b1"], nodes=3)
        self.refused(world, Code.INCOMPATIBLE_HOST, words)

    def test_needed_file(self, tmp_path: Path) -> None:
        world = World(tmp_path, fabric_spec(a2={"without_files": ["/opt/program"]}))
        world.make(hosts=["b1"], nodes=3, needs=["/opt/program"])
        self.refused(world, Code.INCOMPATIBLE_HOST, "/opt/program")

    def test_moving_twice(self, world: World) -> None:
        seen: list[Refused] = []

        def second(name: str) -> None:
            if name == "freeze":
                with pytest.raises(Refused) as caught:
                    world.moves.run(NODE, "b2")
                seen.append(caught.value)
                with pytest.raises(Refused):
                    world.clusters.down("hello")

        world.watch(second)
        world.moves.run(NODE, DESTINATION)
        assert seen[0].code == Code.WRONG_STATE
        world.assert_one_copy(NODE, DESTINATION)


def test_prediction_says_what_it_stands_on(world: World) -> None:
    first = predicted(world, DESTINATION)
    assert "assumed" in first.basis and first.downtime > 0 and first.seconds > first.downtime and first.bytes > 0
    world.moves.run(NODE, DESTINATION)
    assert predicted(world, SOURCE).basis == "the last move"
    assert world.driver.copies(NODE) == {DESTINATION: Copy.RUNNING}
