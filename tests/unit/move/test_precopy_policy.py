"""The effect of a sample of a node's writes on the forecast and the rounds of its move; the ledger of forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from fakeworld import World
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.records import Gain, Job, JobState, Move, Phase, Prediction, Round
from wherry.move.forecast import forecast
from wherry.move.ledger import bounds, ledger, spread, trust
from wherry.move.precopy_policy import MAX_ROUNDS, another_round, switches_to_post_copy
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.host import ContainerHosts
from wherry.node.container.write_sample import lasting
from wherry.node.protocol import Measured
from wherry.schedule.dirtying import left_by_rounds, written_in

MB = 10**6
NODE, DESTINATION = "hello-2", "a2"
STEADY = ((0.01, MB), (1.0, 100 * MB))
"""100 MB/s of memory that is not written twice."""
SET = ((0.01, 50 * MB), (1.0, 50 * MB))
"""50 MB, written again and again."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, rounds=True)
    world.make()
    return world


def auto() -> MigrationParameters:
    return MigrationParameters()


def container(size: int, written: tuple[tuple[float, int], ...] = (), **more: Any) -> Measured:
    return Measured(bytes=size, overhead=0.05, engine="pager", written=written, **more)


def made(foretold: float, came: float, **more: Any) -> Move:
    """A finished move whose downtime was to be `foretold`; its total was foretold right."""
    told = Prediction(
        bytes=100 * MB, rounds=0, seconds=2.0, downtime=foretold, basis="x", mode="stop", engine="pager",
        seconds_between=(1.0, 4.0), downtime_between=(foretold / 2, foretold * 2),
    )  # fmt: skip
    fields = {"id": "m", "node": "n", "cluster": "c", "source": "a", "destination": "b", "created": 100.0}
    figures = {"phase": Phase.DONE, "bytes": 100 * MB, "downtime": came, "total": 2.0, "predicted": told}
    return Move.model_validate({**fields, **figures, **more})


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(0.0, 0), (0.005, 0.5 * MB), (0.01, MB), (0.505, 50.5 * MB), (1.0, 100 * MB), (2.0, 200 * MB)],
)
def test_between_the_looks_of_a_sample_are_straight_lines(seconds: float, found: float) -> None:
    assert written_in(STEADY, seconds) == pytest.approx(found, rel=1e-3, abs=1)
    assert written_in((), seconds) == 0


def test_what_a_process_wrote_that_ended_is_not_counted() -> None:
    assert lasting([(0.1, 9), (0.2, 4), (0.5, 5), (1.0, 7)]) == ((0.1, 4), (0.2, 4), (0.5, 5), (1.0, 7))
    assert lasting([]) == ()


def test_what_rounds_leave() -> None:
    assert left_by_rounds(1000 * MB, 1e9, SET) == pytest.approx(50 * MB)
    assert left_by_rounds(1000 * MB, 1e9, STEADY) < MB
    assert left_by_rounds(1000 * MB, 50e6, STEADY) == 1000 * MB, "it writes faster than that"


def test_the_rounds_are_foretold_one_by_one() -> None:
    """At 1 GB/s each leaves a tenth, until the rest is not worth one."""
    found = forecast(container(1000 * MB, STEADY), True, [])
    assert (found.mode, found.rounds, found.engine, found.written) == ("pre-copy", 3, "pager", STEADY)
    assert found.frozen == pytest.approx(MB, rel=0.1) and found.bytes == pytest.approx(1111 * MB, rel=0.01)
    assert found.downtime == pytest.approx(0.05 + 0.001 + 0.015 * 1000 / 1074, rel=0.01)
    assert found.seconds == pytest.approx(0.3 + 0.5 + 1.11 + found.downtime, rel=0.01)
    assert found.basis.endswith("it wrote 95.4 MiB in 1 s; bounds assumed") and found.dirty_rate == 100 * MB
    assert found.downtime_between == pytest.approx((found.downtime / 2, found.downtime * 2))
    slow = forecast(container(1000 * MB, STEADY, files=10 * MB), True, [], bandwidth=1.6e9)
    assert slow.rounds > 2 * found.rounds and slow.seconds > 9.9, "at 200 MB/s, of which half is written anew"


def test_comparing_all_memory_is_foretold() -> None:
    """Each round but the first, and the freeze, read it all; the rest of a round is known only after the next one."""
    tracked = forecast(container(1000 * MB, STEADY), True, [])
    compared = forecast(container(1000 * MB, STEADY).model_copy(update={"engine": "pager-comparison"}), True, [])
    assert compared.mode == "pre-copy" and compared.rounds >= tracked.rounds
    assert compared.downtime > tracked.downtime + 0.1
    assert compared.seconds > tracked.seconds + 0.1 * compared.rounds - 0.01
    stop = MigrationParameters(mode="stop")
    alike = [forecast(container(1000 * MB).model_copy(update={"engine": engine}), True, [], parameters=stop).downtime
             for engine in ("pager", "pager-comparison")]  # fmt: skip
    assert alike[0] == alike[1], "the first copy is compared with nothing"


def test_the_time_to_compare_is_not_learned_as_that_of_sending() -> None:
    """Rounds at 500 MB/s with 0.01 s each, of which those after the first compare all at 10 GB/s."""

    def past(size: int) -> Move:
        rounds = [Round(number=1, bytes=size, seconds=0.01 + size / 500e6)]
        rounds += [Round(number=n, bytes=5 * MB, seconds=0.02 + size / 8.5e9) for n in (2, 3)]
        downtime = 0.08 + 15e-3 * size / 2**30 + size / 8.5e9
        total = downtime + 0.3 + size / 2e9 + sum(round.seconds for round in rounds)
        told = made(1.0, 1.0).predicted
        assert told
        predicted = told.model_copy(update={"engine": "pager-comparison"})
        return made(1.0, downtime, bytes=size + 10 * MB, rounds=rounds, total=total, predicted=predicted)

    node = container(2000 * MB, ((0.01, 0), (1.0, 0))).model_copy(update={"engine": "pager-comparison"})
    found = forecast(node, True, [past(size * MB) for size in (100, 400, 1000)])
    assert found.rounds == 2 and found.downtime == pytest.approx(0.08 + 15e-3 * 2e9 / 2**30 + 2 / 8.5, rel=0.02)
    assert found.seconds == pytest.approx(0.3 + 1.0 + 4.02 + 2 / 8.5 + found.downtime, rel=0.02)


def test_auto_stops_a_node_that_rounds_cost_more_than_they_save() -> None:
    small = forecast(container(MB // 2, ((0.01, 0), (1.0, 0))), True, [])
    assert (small.mode, small.rounds, small.frozen, small.bytes) == ("stop", 0, MB // 2, MB // 2)
    eager = forecast(container(1000 * MB, ((0.01, 990 * MB), (1.0, 1000 * MB))), True, [])
    assert eager.mode == "stop", "its rounds save nothing"
    told = forecast(container(3 * MB), True, [], parameters=MigrationParameters(mode="pre-copy"))
    assert (told.mode, told.rounds) == ("pre-copy", 2) and "was not sampled" in told.basis
    stop = forecast(container(1000 * MB), True, [], parameters=MigrationParameters(mode="stop"))
    assert (stop.mode, stop.rounds) == ("stop", 0) and stop.downtime == pytest.approx(1.05)
    assert forecast(container(1000 * MB, STEADY), False, []).mode == "stop"
    assert forecast(container(1000 * MB, STEADY), True, [], max_rounds=0).mode == "stop"
    assert forecast(Measured(bytes=3 * MB, overhead=0.1), True, []).mode == "pre-copy", "a virtual machine's rounds"


def test_files_go_in_the_first_round_and_are_compared_in_the_freeze() -> None:
    parameters, still = MigrationParameters(mode="pre-copy"), ((0.01, MB), (1.0, MB))
    without = forecast(container(1000 * MB, still), True, [], parameters=parameters)
    told = forecast(container(1500 * MB, still, files=500 * MB), True, [], parameters=parameters)
    assert (told.frozen, told.rounds) == (without.frozen, without.rounds) == (MB, 1)
    assert told.bytes == without.bytes + 500 * MB
    assert told.downtime == pytest.approx(without.downtime + 0.5 / 8.5)
    post_copy = MigrationParameters(mode="post-copy")
    later = forecast(container(1500 * MB, still, files=500 * MB), True, [], parameters=post_copy)
    assert (later.frozen, later.later) == (0, MB)
    stop = forecast(container(1500 * MB, still, files=500 * MB), True, [], parameters=MigrationParameters(mode="stop"))
    assert stop.frozen == 1500 * MB and stop.downtime == pytest.approx(1.55)


def test_auto_makes_no_round_that_leaves_the_same_again() -> None:
    first = [Round(number=1, bytes=1000 * MB, seconds=1.0, dirty=50 * MB)]
    assert another_round(first) and another_round(first, parameters=MigrationParameters(mode="pre-copy"), written=SET)
    assert not another_round(first, parameters=auto(), written=SET), "50 MB are written in 50 ms"
    calmer = [Round(number=1, bytes=1000 * MB, seconds=1.0, dirty=20 * MB)]
    assert not another_round(calmer, parameters=auto(), written=SET), "20 of the 50 MB, then: the same again"
    assert another_round([Round(number=1, bytes=1000 * MB, seconds=1.0, dirty=90 * MB)], written=STEADY)
    uncounted = [Round(number=1, bytes=1000 * MB, seconds=1.0)]
    assert another_round(uncounted, parameters=auto(), written=SET), "the engine does not count"
    assert not another_round([], parameters=MigrationParameters(mode="stop"))


def test_rates_are_learned_of_the_same_engine() -> None:
    """Rounds at 500 MB/s with 0.01 s each, and 0.08 s for the freeze."""

    def past(size: int, engine: str = "pager") -> Move:
        rounds = [
            Round(number=1, bytes=size, seconds=0.01 + size / 500e6, dirty=5 * MB),
            Round(number=2, bytes=5 * MB, seconds=0.02, dirty=0),
        ]
        downtime = 0.08 + 15e-3 * size / 2**30
        total = downtime + 0.3 + size / 2e9 + sum(round.seconds for round in rounds)
        told = made(1.0, 1.0).predicted
        assert told
        return made(
            1.0, downtime, bytes=size + 5 * MB, rounds=rounds, total=total,
            predicted=told.model_copy(update={"engine": engine}),
        )  # fmt: skip

    moves = [past(size * MB) for size in (100, 400, 1000)]
    found = forecast(container(2000 * MB, ((0.01, 0), (1.0, 0))), True, [*moves, past(10 * MB, "criu")])
    assert found.basis.startswith("the last 3 moves")
    assert found.downtime == pytest.approx(0.08 + 15e-3 * 2e9 / 2**30, rel=0.02)
    assert found.seconds == pytest.approx(0.3 + 1.0 + 4.01 + found.downtime, rel=0.02)
    assert forecast(container(2000 * MB), True, [past(10 * MB, "criu")]).basis.startswith("assumed rates")


def test_what_changes_with_the_load_is_learned_of_the_newest() -> None:
    moves = [made(1.0, 0.5, bytes=MB)] * 11 + [made(1.0, 0.1, bytes=MB)] * 9
    assert forecast(container(MB), False, moves).downtime == pytest.approx(0.1)


def test_the_ledger_tells_how_forecasts_came_out() -> None:
    moves = [made(1.0, came) for came in (0.9, 1.0, 1.0, 1.1, 1.2, 1.0, 3.0)]
    old = made(1.0, 9.0, predicted=Prediction(bytes=1, rounds=0, seconds=1, downtime=1, basis="x"))
    silent = made(1.0, 9.0, error={"code": "UNREACHABLE"})
    found = ledger([*moves, old, silent, made(1.0, 9.0, phase=Phase.ROLLED_BACK)])
    assert len(found.entries) == 7 and found.entries[0].downtime.came == 0.9
    assert (found.downtime.number, found.downtime.median) == (7, 1.0)
    assert found.downtime.error == pytest.approx(0.2 + 0.4 * 1.8) and found.downtime.within == pytest.approx(6 / 7)
    assert found.total.error == 0.0 and spread([]).number == 0 and spread([]).median is None


def test_bounds_come_from_eight_forecasts() -> None:
    few, enough = [made(1.0, 1.1)] * 7, [made(1.0, 1.1)] * 8
    assert bounds(few, 4.0, 0.1) == ((2.0, 8.0), (0.05, 0.2), 0)
    totals, downtimes, number = bounds(enough, 4.0, 0.1)
    assert (totals, number) == ((4.0, 4.0), 8) and downtimes == pytest.approx((0.1, 0.11))
    assert "bounds from 8 forecasts" in forecast(container(100 * MB), True, enough).basis


def test_the_gain_is_counted_of_jobs_whose_end_was_known() -> None:
    def job(**more: Any) -> Job:
        fields = {"id": "j", "cluster": "c", "argv": ("a",), "ranks": 1, "mpi": "x", "uid": 0, "gid": 0, "cwd": "/"}
        known = {"state": JobState.ENDED, "created": 90.0, "started": 95.0, "ended": 130.0, "expected": 65.0}
        return Job.model_validate({**fields, **known, **more})

    move = made(1.0, 1.0, gain=Gain(before=60.0, after=40.0))
    gain = ledger([move], [job()]).entries[0].gain
    assert gain and (gain.foretold, gain.came) == (20.0, 30.0), "30 s were left instead of 60"
    for other in ({"expected": None}, {"cluster": "d"}, {"ended": 99.0}, {"state": JobState.FAILED}):
        assert ledger([move], [job(**other)]).entries[0].gain is None
    assert ledger([made(1.0, 1.0)], [job()]).entries[0].gain is None


def test_the_gain_is_what_was_measured_after_the_moves_else_why_not() -> None:
    """Two moves of one plan: a step was to take half the time, and took three quarters."""
    plan = Gain(before=60.0, after=32.0, cost=2.0, step=0.5, measured=0.75)
    silent = Gain(before=50.0, after=40.0, unmeasured="its jobs ended, or others began")
    found = ledger([made(1.0, 1.0, gain=plan), made(1.0, 1.0, gain=plan), made(1.0, 1.0, gain=silent), made(1.0, 1.0)])
    told = found.entries[0].gain
    assert told and (told.foretold, told.came) == (28.0, 13.0) and found.entries[0].unmeasured == ""
    assert found.entries[2].gain is None and found.entries[2].unmeasured == silent.unmeasured
    assert found.entries[3].unmeasured == "" and found.gain.number == 1, "a plan is counted once"
    assert found.gain.median == pytest.approx(13 / 28)


def test_a_plan_with_several_moves_begins_with_its_first() -> None:
    """Whatever came of it counts from there."""
    job = Job(
        id="j", cluster="c", argv=("a",), ranks=1, mpi="x", uid=0, gid=0, cwd="/", state=JobState.ENDED, created=90.0,
        started=95.0, ended=130.0, expected=65.0,
    )  # fmt: skip
    first = made(1.0, 1.0, gain=Gain(before=60.0, after=40.0))
    later = first.model_copy(update={"created": first.created + 10.0})
    assert ledger([first, later], [job]).gain.median == ledger([first], [job]).gain.median


def test_the_balancer_counts_on_what_came_of_earlier_promises() -> None:
    def plans(number: int, measured: float) -> list[Move]:
        gains = [Gain(before=60.0 + n, after=30.0 + n, step=0.5, measured=measured) for n in range(number)]
        return [made(1.0, 1.0, gain=gain) for gain in gains]

    assert trust(plans(7, 0.8), []) == 1.0, "too few"
    assert trust(plans(8, 0.8), []) == pytest.approx(0.4, abs=0.05)
    assert trust(plans(8, 0.2), []) == 1.0 and trust(plans(8, 1.5), []) == 0.25
    undone = [move.model_copy(update={"phase": Phase.ROLLED_BACK}) for move in plans(8, 1.5)]
    assert trust(undone, []) == 1.0, "an abandoned plan gains nothing"


def test_rows_of_earlier_versions_are_read() -> None:
    move = made(1.0, 1.0)
    row = move.model_dump(mode="json", exclude={"gain": True, "predicted": {"mode", "engine", "frozen", "written",
                          "seconds_between", "downtime_between"}})  # fmt: skip
    read = Move.model_validate(row)
    assert read.predicted and read.predicted.downtime_between is None and read.gain is None
    assert read.predicted.dirty_rate is None and ledger([read]).entries == ()


def test_containers_have_these_modes() -> None:
    driver = ContainerDriver(cast(ContainerHosts, None))
    for mode in ("auto", "stop", "pre-copy", "auto-converge", "post-copy", "hybrid"):
        assert driver.parameters_obstacle(MigrationParameters.model_validate({"mode": mode})) == ""
        more = MigrationParameters.model_validate({"mode": mode, "connections": 2, "zstd": True})
        assert "are for virtual machines" in driver.parameters_obstacle(more)
        patient = MigrationParameters.model_validate({"mode": mode, "deadline": "5s"})
        assert (driver.parameters_obstacle(patient) == "") == (mode in ("post-copy", "hybrid"))


def test_with_post_copy_what_rounds_leave_comes_after_the_thaw() -> None:
    node = container(400 * MB, ((0.01, 200 * MB), (1.0, 390 * MB)), files=10 * MB)
    frozen = forecast(node, True, [], parameters=MigrationParameters(mode="pre-copy"))
    for mode, limit, later in (
        ("post-copy", None, True),
        ("post-copy", 0, True),
        ("hybrid", None, True),
        ("hybrid", 0, False),
    ):
        parameters = MigrationParameters.model_validate({"mode": mode})
        found = forecast(node, True, [], parameters=parameters, max_rounds=limit)
        assert (found.later > 100 * MB and found.later_seconds > 0.1) == later
        assert (found.downtime < frozen.downtime - 0.1) == later
        files = 0 if limit is None else 10 * MB  # without a round they are sent in the freeze
        assert later is False or (found.frozen == files and found.mode == mode)
    assert forecast(node, True, [], parameters=auto()).later == 0


@pytest.mark.parametrize(
    ("mode", "written", "rounds", "moved_by"),
    [("auto", ((0.5, 0),), True, "pre-copy"), ("stop", ((0.5, 0),), False, "stop"),
     ("auto", ((0.001, 2**40), (0.5, 2**40)), False, "stop"), ("pre-copy", (), True, "pre-copy")],
)  # fmt: skip
def test_a_move_keeps_to_its_forecast(
    world: World, mode: str, written: tuple[tuple[float, int], ...], rounds: bool, moved_by: str
) -> None:
    world.driver.engine, world.driver.written = "pager", written
    options = MoveOptions(parameters=MigrationParameters.model_validate({"mode": mode}))
    move = world.moves.run(NODE, DESTINATION, options, gain=Gain(before=2, after=1))
    assert move.predicted and move.predicted.mode == moved_by and bool(move.rounds) == rounds
    assert move.gain == Gain(before=2, after=1)
    assert [entry.mode for entry in ledger(world.store.moves()).entries] == [moved_by]


def test_precopy_is_refused_where_nothing_tells_what_is_written(world: World) -> None:
    world.driver.rounds = False
    with pytest.raises(Refused) as refused:
        world.moves.plan(NODE, DESTINATION, MoveOptions(parameters=MigrationParameters(mode="pre-copy")))
    assert refused.value.code == Code.UNSUPPORTED and world.store.moves() == []
    assert world.moves.plan(NODE, DESTINATION).predicted


# The rounds of a move.


def rounds(*dirty: int) -> list[Round]:
    return [Round(number=i + 1, bytes=2**30, seconds=1, dirty=left) for i, left in enumerate(dirty)]


def test_precopy_continues_while_rounds_gain() -> None:
    assert another_round([]) and not another_round([], 0)
    assert another_round(rounds(2**28))
    assert another_round(rounds(2**28, 2**26))
    assert not another_round(rounds(2**28, 2**28))
    assert not another_round(rounds(2**30))
    assert not another_round(rounds(2**28, 2**19))


def test_hybrid_switches_to_post_copy_at_a_high_dirty_rate() -> None:
    """The ratio of dirty rate to bandwidth is that of dirtied to sent bytes in a round."""
    sizes = 100 * 2**20
    for mode, written, more, switched in (
        ("pre-copy", 0.95, False, False),  # is frozen instead
        ("hybrid", 0.95, False, True),
        ("hybrid", 0.85, False, False),  # gains too little, but does not outrun the rounds
        ("hybrid", 0.5, True, False),
        ("post-copy", 0.5, True, True),
    ):
        parameters = MigrationParameters.model_validate({"mode": mode})
        rounds_so_far = [Round(number=1, bytes=sizes, seconds=1, dirty=int(written * sizes))]
        assert (
            another_round(rounds_so_far, parameters=parameters),
            switches_to_post_copy(rounds_so_far, parameters),
        ) == (
            more,
            switched,
        ), (mode, written)
    hybrid = MigrationParameters.model_validate({"mode": "hybrid", "downtime": "2s"})
    assert not switches_to_post_copy(
        [Round(number=1, bytes=sizes, seconds=1, dirty=sizes)], hybrid
    )  # fits into the permitted downtime
    assert not switches_to_post_copy([], MigrationParameters(mode="hybrid")) and not switches_to_post_copy(
        rounds(2**19), MigrationParameters(mode="hybrid")
    )


def test_precopy_policy_without_dirty_counts() -> None:
    """CRIU does not report dirty pages: the size of a round shows what its predecessor left."""

    def sent(*sizes: int) -> list[Round]:
        return [Round(number=i + 1, bytes=size, seconds=1) for i, size in enumerate(sizes)]

    assert not another_round(sent(1)) and another_round(sent(2**30))
    assert another_round(sent(2**30, 2**26))
    assert not another_round(sent(2**30, 2**30)) and not another_round(sent(2**30, 2**26, 2**19))


@given(st.lists(st.integers(0, 2**34), min_size=20, max_size=20))
def test_precopy_always_terminates(dirty: list[int]) -> None:
    done = 0
    while another_round(rounds(*dirty[:done])):
        done += 1
    assert done <= MAX_ROUNDS
