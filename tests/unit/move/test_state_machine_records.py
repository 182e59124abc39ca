"""A move's rows, events, progress and errors, word for word; and which earlier moves a forecast uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakeworld import Killed, World, fabric_spec

from wherry.base.errors import Code, Failed, LostContact
from wherry.cluster.lookup import find_node
from wherry.model.migration_parameters import MoveOptions
from wherry.model.records import Event, Move, NodeState, Phase, Round
from wherry.move import state_machine
from wherry.node.fake import Copy, FakeMover
from wherry.node.protocol import Transferred

NODE, SOURCE, DESTINATION = "hello-2", "b1", "a2"
RETRIES = "wait: the daemon retries while both hosts answer; for a host that will not return: wherry host lost HOST"
STARTS = "wherry up FILE starts it again"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made between attempts, without the waiting."""
    made = list[float]()
    monkeypatch.setattr(state_machine.time, "sleep", made.append)
    return made


@pytest.fixture
def world(tmp_path: Path, pauses: list[float]) -> World:
    world = World(tmp_path, rounds=True)
    world.make()
    return world


def events(world: World, kind: str) -> list[Event]:
    return [event for event in world.store.events() if event.kind == kind]


def failing(world: World, **errors: Exception) -> Callable[[str], None]:
    """Each call with one of these names (`_` for `.`) fails."""

    def strike(name: str) -> None:
        if error := errors.get(name.replace(".", "_")):
            raise error

    return strike


def failed(world: World, **more: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        world.moves.run(NODE, DESTINATION, **more)
    return caught.value


def unfinished(world: World, after: str = "thaw") -> Move:
    """A move whose daemon was killed at that call."""

    def strike(name: str) -> None:
        if name == after:
            raise Killed

    world.watch(strike)
    with pytest.raises(Killed):
        world.moves.run(NODE, DESTINATION)
    world.reborn()
    (move,) = world.store.moves(unfinished=True)
    return move


def test_the_events_of_a_move(world: World) -> None:
    move = world.moves.apply(world.moves.plan(NODE, DESTINATION), operation="op-7")
    (begin,), (done,) = events(world, "move.begin"), events(world, "move.done")
    assert (begin.target, begin.text, begin.data) == (NODE, f"{NODE} moves from b1 to a2", {"move": move.id})
    assert done.target == NODE and done.text.startswith(f"{NODE} moved from b1 to a2 in ")
    assert ", downtime " in done.text and "None" not in done.text
    figures = {"bytes": move.bytes, "rounds": len(move.rounds), "downtime": move.downtime, "total": move.total}
    assert done.data == {"move": move.id, **figures}
    assert (move.operation, move.cluster, move.node) == ("op-7", "hello", NODE)
    assert move.id.startswith("mv-") and move.created <= (move.ended or 0) and move.phases.keys() >= {"done"}


def test_the_progress_of_a_move(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are reported when they end, and nothing between the freeze and the commit."""
    monkeypatch.setattr(FakeMover, "can_round", lambda _: True)
    told, calls = list[str](), world.driver.calls
    world.moves.run(NODE, DESTINATION, MoveOptions(max_rounds=2), progress=lambda t: told.append(f"{len(calls)} {t}"))
    texts = [text.partition(" ")[2] for text in told]
    assert [text.rpartition(" ")[0].rpartition(" ")[0] for text in texts if "prepare" in text or "rounds" in text] == [
        f"{NODE}: prepare",
        f"{NODE}: rounds",
    ]
    assert f"{NODE}: round 1: 8.0 MiB, 4.0 MiB changed meanwhile" in texts
    assert f"{NODE}: round 2: 4.0 MiB, 2.0 MiB changed meanwhile" in texts
    assert texts[-1] == f"{NODE}: freeze"


def test_the_progress_of_a_round_is_told_twice_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = [1000.0], list[str]()

    def send(_mover: FakeMover, number: int, progress: Callable[[str], None]) -> Round:
        for tick in range(5):
            progress("")  # of a part that has no number
            progress(f"{tick}")
            clock[0] += 0.25
        return Round(number=number, bytes=2**20, seconds=1)

    monkeypatch.setattr(FakeMover, "round", send)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    world.moves.run(NODE, DESTINATION, MoveOptions(max_rounds=1), progress=told.append)
    assert [text for text in told if "round 1: " in text] == [
        f"{NODE}: round 1: 0",
        f"{NODE}: round 1: 2",
        f"{NODE}: round 1: 4",
        f"{NODE}: round 1: 1.0 MiB",
    ]


def test_what_is_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reports for how long the node was frozen before the freeze returned; each view counts from there."""
    clock, seconds = [1000.0], {"round": 3.0, "freeze": 1.0, "transfer": 0.5, "restore": 0.25, "thaw": 0.125}
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def tick(name: str) -> None:
        clock[0] += seconds.get(name, 0.0)

    freeze = FakeMover.freeze
    monkeypatch.setattr(FakeMover, "freeze", lambda mover, post_copy=False: (freeze(mover, post_copy), 0.0625)[1])
    monkeypatch.setattr(FakeMover, "restore", _restored(0.75))
    monkeypatch.setattr(FakeMover, "await_first_run", lambda _: 2.0)
    world.watch(tick)
    move = world.moves.run(NODE, DESTINATION, MoveOptions(max_rounds=1))
    assert move.downtime == 0.0625 + 0.5 + 0.25 + 0.125
    assert move.downtime_engine == 0.01 + 0.75
    assert (move.downtime_program, move.downtime_peer) == (move.downtime + 2.0, move.downtime)
    assert move.total == sum(seconds.values()) == sum(move.phases.values())
    assert move.phases["rounds"] == 3.0 and move.phases["transfer"] == 0.5 and "link wait" not in move.phases
    assert [(round.number, round.bytes) for round in move.rounds] == [(1, 8 * 2**20)]
    assert move.bytes == 8 * 2**20 + 4 * 2**20


def _restored(seconds: float | None) -> Callable[..., float | None]:
    restore = FakeMover.restore

    def restored(mover: FakeMover, progress: Callable[[str], None]) -> float | None:
        restore(mover, progress)
        return seconds

    return restored


@pytest.mark.parametrize(("frozen", "restored"), [(None, 0.5), (0.5, None)])
def test_what_the_engine_does_not_measure(
    world: World, monkeypatch: pytest.MonkeyPatch, frozen: float | None, restored: float | None
) -> None:
    transfer = FakeMover.transfer

    def sent(mover: FakeMover, progress: Callable[[str], None]) -> Transferred:
        return Transferred(bytes=transfer(mover, progress).bytes, frozen=frozen)

    monkeypatch.setattr(FakeMover, "transfer", sent)
    monkeypatch.setattr(FakeMover, "restore", _restored(restored))
    move = world.moves.run(NODE, DESTINATION)
    assert move.phase == Phase.DONE and move.downtime_engine is None and move.downtime_program is None


@pytest.mark.parametrize(("ran", "timeout"), [(None, 0.0), (0.5, 0.25)])
def test_the_first_frame_is_waited_for_when_ranks_run(
    world: World, monkeypatch: pytest.MonkeyPatch, ran: float | None, timeout: float
) -> None:
    asked, hold = list[float](), world.fabric.hold

    def made(port: Any) -> Any:
        found = hold(port)
        found.first_sent = asked.append  # type: ignore[method-assign]
        return found

    monkeypatch.setattr(world.fabric, "hold", made)
    monkeypatch.setattr(FakeMover, "await_first_run", lambda _: ran)
    assert world.moves.run(NODE, DESTINATION).downtime_peer is None
    assert asked == [timeout]


def test_a_move_that_was_rolled_back(world: World, pauses: list[float]) -> None:
    world.driver.fail_at["restore"] = Failed(Code.NO_CAPACITY, "restore failed", "out of memory", "free some")
    error = failed(world)
    assert error.to_dict() == {
        "code": Code.MOVE_FAILED,
        "what": f"{NODE} was not moved; it runs on b1 as before",
        "why": "restore: restore failed: out of memory",
        "next": "free some",
    }
    (move,) = world.store.moves()
    assert move.phase == Phase.ROLLED_BACK and move.error == error.to_dict() and move.total and move.ended
    (event,) = events(world, "move.rolled-back")
    assert (event.target, event.text) == (NODE, str(error))
    assert event.data == {"move": move.id, "phase": "restore", "error": error.to_dict()}
    assert pauses == [] and world.driver.calls.count("close") == 1


@pytest.mark.parametrize(
    ("cause", "why", "remedy"),
    [
        (RuntimeError("no route"), "transfer: no route", "wherry doctor"),
        (RuntimeError(), "transfer: RuntimeError", "wherry doctor"),
        (Failed(Code.FAILED, "it failed"), "transfer: it failed", "wherry doctor"),
    ],
)
def test_the_cause_is_told(world: World, cause: Exception, why: str, remedy: str) -> None:
    world.driver.fail_at["transfer"] = cause
    error = failed(world)
    assert (error.code, error.why, error.next) == (Code.MOVE_FAILED, why, remedy)


def test_a_move_that_was_cancelled(world: World) -> None:
    error = failed(world, cancelled=lambda: "round" in world.driver.calls)
    assert error.to_dict() == {
        "code": Code.CANCELLED,
        "what": f"the move of {NODE} was cancelled",
        "why": f"{NODE} runs on b1 as before",
        "next": "",
    }


def test_a_roll_back_that_fails(world: World, pauses: list[float]) -> None:
    world.watch(failing(world, transfer=RuntimeError("no route"), roll_back=LostContact(Code.UNREACHABLE, "silent")))
    error = failed(world)
    assert error.to_dict() == {
        "code": Code.MOVE_FAILED,
        "what": f"{NODE} was not moved, and is not rolled back yet",
        "why": "transfer: no route; the roll-back failed, too: silent",
        "next": RETRIES,
    }
    (move,) = world.store.moves(unfinished=True)
    assert move.error == error.to_dict() and find_node(world.store, NODE).state == NodeState.MOVING
    assert pauses == [0.1, 0.2, 0.4] and world.driver.calls.count("roll_back") == 4
    (event,) = events(world, "move.rolled-back")
    assert (event.target, event.text) == (NODE, str(error))
    assert not world.fabric.holds, "the successor makes none, and would find this one's device"


def test_a_hold_that_has_ended_does_not_stop_the_roll_back(world: World) -> None:
    world.watch(failing(world, transfer=RuntimeError(), hold_give_back=Failed(Code.FAILED, "the hold has ended")))
    failed(world)
    world.assert_one_copy(NODE, SOURCE)


def test_a_node_that_ended_before_the_commit(world: World) -> None:
    def strike(name: str) -> None:
        if name == "transfer":
            world.driver.placements.pop((NODE, SOURCE), None)

    world.watch(strike)
    error = failed(world)
    assert (error.code, error.what, error.next) == (Code.MOVE_FAILED, f"{NODE} ended while it was moved", STARTS)
    (move,) = world.store.moves()
    assert (move.phase, move.error) == (Phase.ROLLED_BACK, error.to_dict()) and move.ended
    assert (NODE, DESTINATION) not in world.fabric.ports and "stop" in world.driver.calls
    assert find_node(world.store, NODE).host == SOURCE


def test_a_finish_that_fails(world: World, pauses: list[float]) -> None:
    world.watch(failing(world, release=LostContact(Code.UNREACHABLE, "no host answers", "timeout")))
    error = failed(world)
    assert error.to_dict() == {
        "code": Code.MOVE_FAILED,
        "what": f"the move of {NODE} is committed but not finished",
        "why": "no host answers: timeout",
        "next": RETRIES,
    }
    (move,) = world.store.moves(unfinished=True)
    assert move.phase == Phase.COMMIT and move.error == error.to_dict() and move.ended is None
    (event,) = events(world, "move.failed")
    assert (event.target, event.text) == (NODE, str(error))
    assert event.data == {"move": move.id, "error": error.to_dict()}
    assert pauses == [0.1, 0.2, 0.4]
    assert not world.fabric.holds, "the successor makes none, and would find this one's device"
    world.watch(None)
    world.moves.recover()
    world.assert_one_copy(NODE, DESTINATION)
    assert world.store.moves()[0].error is None


def test_a_node_that_ended_after_the_commit(world: World) -> None:
    def strike(name: str) -> None:
        if name == "thaw":
            world.driver.placements.pop((NODE, DESTINATION), None)

    world.watch(strike)
    error = failed(world)
    assert (error.what, error.next) == (f"{NODE} ended while it was moved", STARTS)
    assert error.why == f"no copy of {NODE} to thaw at {DESTINATION}", "there was no further attempt"
    (move,) = world.store.moves()
    assert (move.phase, move.error) == (Phase.DONE, error.to_dict()) and move.ended
    (event,) = events(world, "move.failed")
    assert event.data["error"] == error.to_dict()
    assert (NODE, SOURCE) not in world.fabric.ports


def test_a_node_that_ended_before_its_source_was_released(world: World) -> None:
    """Nothing of it is left at either host, else an `up` would start a second copy beside it."""

    def strike(name: str) -> None:
        if name == "release":
            world.driver.placements.pop((NODE, DESTINATION), None)

    world.watch(strike)
    assert failed(world).what == f"{NODE} ended while it was moved"
    assert world.driver.copies(NODE) == {} and [host for name, host in world.fabric.ports if name == NODE] == ["a2"]


def test_a_hold_that_cannot_be_dropped_hides_no_error(world: World) -> None:
    silent = LostContact(Code.UNREACHABLE, "no host answers")
    world.watch(failing(world, release=silent, hold_drop=Failed(Code.FAILED, "the hold has ended")))
    assert failed(world).why == "no host answers"


@pytest.mark.parametrize("fails", [False, True])
def test_frames_that_had_no_room_have_an_event(world: World, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    hold = world.fabric.hold

    def made(port: Any) -> Any:
        found = hold(port)
        found.lost = 7
        return found

    monkeypatch.setattr(world.fabric, "hold", made)
    if fails:
        world.driver.fail_at["restore"] = Failed(Code.NO_CAPACITY, "restore failed", "out of memory", "free some")
        with pytest.raises(Failed, match="restore failed"):
            world.moves.run(NODE, DESTINATION)
    else:
        world.moves.run(NODE, DESTINATION)
    (event,) = events(world, "move.frames-lost")
    assert event.target == NODE and event.data["frames"] == 7 and "7 frames" in event.text


def test_a_silent_node_has_an_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = LostContact(Code.UNREACHABLE, "it does not answer", "waited 60 s")

    def wait(_mover: FakeMover) -> float | None:
        raise silent

    monkeypatch.setattr(FakeMover, "await_first_run", wait)
    move = world.moves.run(NODE, DESTINATION)
    (event,) = events(world, "move.silent")
    assert (event.target, event.text) == (NODE, "it does not answer: waited 60 s")
    assert event.data == {"move": move.id, "error": silent.to_dict()} and move.error == silent.to_dict()


@pytest.mark.parametrize(("after", "text"), [("thaw", "finishing"), ("transfer", "rolling back")])
def test_recovery_is_told(world: World, after: str, text: str) -> None:
    move, told = unfinished(world, after), list[str]()
    world.moves.recover(told.append, only="mv-other")
    assert told == [] and world.store.moves(unfinished=True)
    world.moves.recover(told.append, only=move.id)
    assert told[0] == f"{NODE}: {text} the move to a2" and not world.store.moves(unfinished=True)
    (now,) = world.store.moves()
    if after == "transfer":
        assert now.error == {
            "code": Code.MOVE_FAILED,
            "what": f"{NODE} was not moved; it runs on b1 as before",
            "why": f"{move.phase}: the daemon ended during the move",
            "next": "move it again",
        }


def test_a_recovery_that_fails_leaves_the_others_be(world: World, pauses: list[float]) -> None:
    move, told = unfinished(world), list[str]()
    gone = Move(
        id="mv-0", node="gone-1", cluster="gone", source="a1", destination="b1", phase=Phase.FREEZE, created=0
    )  # fmt: skip
    world.store.put_move(gone)
    world.watch(failing(world, release=Failed(Code.FAILED, "no host answers")))
    world.moves.recover(told.append)
    assert told[-1] == (f"move {move.id} of {NODE}: the move of {NODE} is committed but not finished: no host answers")
    assert [left.id for left in world.store.moves(unfinished=True)] == [move.id]
    removed = world.store.move("mv-0")
    assert removed and removed.phase == Phase.ROLLED_BACK and removed.ended, "its node was removed"


def test_recovery_needs_both_hosts(world: World) -> None:
    move = unfinished(world)
    assert world.moves.recoverable() == [move]
    for host in (SOURCE, DESTINATION):
        world.fabric.set_down(host, True)
        assert world.moves.recoverable() == []
        world.store.set_host_flag(host, "lost", True)
        assert world.moves.recoverable() == [move]
        world.store.set_host_flag(host, "lost", False)
        world.fabric.set_down(host, False)


def test_recovery_leaves_moves_that_have_ended(world: World) -> None:
    world.moves.run(NODE, DESTINATION)
    world.driver.fail_at["transfer"] = "no route"
    with pytest.raises(Failed):
        world.moves.run(NODE, SOURCE)
    before, calls, told = world.store.moves(), len(world.driver.calls), list[str]()
    assert len(before) == 2 and world.moves.recoverable() == []
    world.moves.recover(told.append)
    assert (world.store.moves(), len(world.driver.calls), told) == (before, calls, [])


def test_unfinished_moves_to_a_host(world: World) -> None:
    move = unfinished(world)
    assert world.moves.unfinished(DESTINATION) == [move] and world.moves.unfinished(SOURCE) == []
    world.moves.recover()
    assert world.moves.unfinished(DESTINATION) == []


def test_a_forecast_uses_moves_of_the_same_kind_over_the_same_links(tmp_path: Path) -> None:
    """Not those of another kind of node, over another link, or of hosts that exist no more."""
    spec = fabric_spec()
    link = spec.effective_links()[0].model_copy(update={"bandwidth": 10**9})
    world = World(tmp_path, spec.model_copy(update={"links": (link,)}))
    world.make()
    world.store.put_node(find_node(world.store, "hello-3").model_copy(update={"kind": "vm"}))

    def basis(host: str) -> str:
        predicted = world.moves.plan(NODE, host).predicted
        assert predicted
        return predicted.basis

    def past(id: str, node: str, source: str, destination: str) -> None:
        fields = {"id": id, "node": node, "cluster": "hello", "source": source, "destination": destination}
        figures = {"bytes": 10**6, "downtime": 0.1, "total": 0.2, "created": 0, "ended": 1, "phase": Phase.DONE}
        world.store.put_move(Move.model_validate({**fields, **figures}))

    assumed = "assumed rates, as there are no earlier moves"
    past("1", "hello-3", "b1", "a1")
    past("2", "gone-0", "b1", "a1")
    past("3", "hello-0", "b1", "moon")
    past("4", "hello-0", "moon", "a1")
    past("5", "hello-0", "a1", "b1")  # the link's other direction
    assert (basis(DESTINATION), basis("b2")) == (assumed, assumed)
    past("6", "hello-0", "a1", "a2")
    past("7", "hello-1", "b2", "b1")
    assert (basis(DESTINATION), basis("b2")) == (assumed, "the last 2 moves")
    past("8", "hello-0", "b2", "a1")
    assert (basis(DESTINATION), basis("b2")) == ("the last move", "the last 2 moves")
    assert world.moves.plan(NODE, DESTINATION).path.rate == 0.9e9
    assert world.moves.plan(NODE, DESTINATION, MoveOptions(bandwidth=10**8)).path.rate == 1e8
    world.moves.run(NODE, DESTINATION, MoveOptions(bandwidth=10**8))
    assert world.driver.rates[NODE] == 1e8 and "link wait" in world.store.moves()[-1].phases


def test_rounds_are_forecast_when_they_are_allowed(world: World) -> None:
    for most, rounds in ((None, 2), (1, 1), (0, 0)):
        predicted = world.moves.plan(NODE, DESTINATION, MoveOptions(max_rounds=most)).predicted
        assert predicted and predicted.rounds == rounds
    world.driver.rounds = False
    predicted = world.moves.plan(NODE, DESTINATION).predicted
    assert predicted and predicted.rounds == 0 and predicted.bytes == world.driver.memory


# A database that fails during a move, its disk broken for instance: the node runs again before anything else.


@pytest.mark.parametrize("phase", [Phase.ROUNDS, Phase.FREEZE])
def test_the_node_runs_at_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)
    world = World(tmp_path, rounds=True)
    world.make()
    store: Any = world.store
    names = ("put_move", "put_node", "move", "node", "add_event")
    real = {name: getattr(store, name) for name in names}

    def fail(*_: object, **__: object) -> None:
        raise Failed(Code.FAILED, "the instance's database cannot be read", "disk I/O error")

    def put_move(move: Any) -> None:
        if move.phase == phase:
            for name in names:
                setattr(store, name, fail)
            fail()
        real["put_move"](move)

    store.put_move = put_move
    with pytest.raises(Failed, match="database"):
        world.moves.run(NODE, DESTINATION)
    assert world.driver.copies(NODE) == {SOURCE: Copy.RUNNING} and world.fabric.plugged(NODE) == [SOURCE]
    for name in names:
        setattr(store, name, real[name])
    world.moves.recover()
    assert not world.store.moves(unfinished=True)
    found = world.store.node(NODE)
    assert found and (found.state, found.host) == (NodeState.RUNNING, SOURCE)
    world.assert_one_copy(NODE, SOURCE)
