"""The forecast of a move in numbers, and the thresholds of the policy of pre-copy."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Move, Phase, Prediction, Round
from wherry.move.forecast import forecast
from wherry.move.precopy_policy import MAX_ROUNDS, PATIENT, another_round, switches_to_post_copy
from wherry.node.protocol import Measured

MB, MIB = 10**6, 2**20


def measured(size: int, overhead: float) -> Measured:
    """A node whose writes were not sampled."""
    return Measured(bytes=size, overhead=overhead)


def past(size: int, downtime: float | None, total: float | None, **more: Any) -> Move:
    """A finished move of `size` bytes."""
    fields = {"id": "m", "node": "n", "cluster": "c", "source": "a", "destination": "b", "created": 0, **more}
    return Move.model_validate({"phase": Phase.DONE, "bytes": size, "downtime": downtime, "total": total, **fields})


def test_without_earlier_moves_rates_are_assumed() -> None:
    """500 MB/s and a second beside it; rounds leave a tenth for the freeze."""
    found = forecast(measured(500 * MB, 0.1), False, [])
    assert (found.bytes, found.rounds, found.basis) == (500 * MB, 0, "assumed rates, as there are no earlier moves")
    assert (found.downtime, found.seconds) == pytest.approx((1.1, 2.1))
    rounds = forecast(measured(500 * MB, 0.1), True, [])
    assert (rounds.bytes, rounds.rounds) == (550 * MB, 2)
    assert (rounds.downtime, rounds.seconds) == pytest.approx((0.2, 2.2))


@pytest.mark.parametrize(("bandwidth", "downtime"), [(800 * MB, 5.1), (8000 * MB, 1.1)])
def test_the_bandwidth_of_the_link_bounds_the_rate(bandwidth: float, downtime: float) -> None:
    assert forecast(measured(500 * MB, 0.1), False, [], bandwidth).downtime == pytest.approx(downtime)


def test_one_move_tells_the_overhead() -> None:
    """0.3 s for 10 MB is 0.28 s beside sending; half a second of the move was not downtime."""
    found = forecast(measured(500 * MB, 9.0), False, [past(10 * MB, 0.3, 0.8)])
    assert found.basis == "the last move"
    assert (found.downtime, found.seconds) == pytest.approx((1.28, 1.78))
    faster = forecast(measured(500 * MB, 9.0), False, [past(100 * MB, 0.1, 0.05)])
    assert (faster.downtime, faster.seconds) == pytest.approx((1.0, 1.0)), "neither is ever negative"


def test_what_rounds_sent_was_not_sent_while_frozen() -> None:
    round = Round(number=1, bytes=40 * MB, seconds=1)
    move = past(90 * MB, 0.3, 0.8, rounds=(round, round))
    assert forecast(measured(500 * MB, 0.0), False, [move]).downtime == pytest.approx(1.28)


@pytest.mark.parametrize(
    "other",
    [
        past(10 * MB, 7.0, 9.0, phase=Phase.ROLLED_BACK),
        past(10 * MB, 7.0, 9.0, error={"code": "FAILED"}),
        past(10 * MB, None, 9.0),
        past(10 * MB, 7.0, None),
        past(0, 7.0, 9.0),
    ],
    ids=["rolled back", "silent", "no downtime", "taken over", "no bytes"],
)
def test_moves_that_tell_nothing_are_not_counted(other: Move) -> None:
    counted = past(10 * MB, 0.3, 0.8)
    assert forecast(measured(500 * MB, 0.1), False, [other]) == forecast(measured(500 * MB, 0.1), False, [])
    assert forecast(measured(500 * MB, 0.1), False, [other, counted]) == forecast(
        measured(500 * MB, 0.1), False, [counted]
    )


def test_the_newest_twenty_are_counted() -> None:
    old, new = past(10 * MB, 5.0, 9.0), past(10 * MB, 0.3, 0.8)
    found = forecast(measured(500 * MB, 0.1), False, [*[old] * 20, *[new] * 20])
    assert found.basis == "the last 20 moves" and found.downtime == pytest.approx(1.28)
    found = forecast(measured(500 * MB, 0.1), False, [*[old] * 2, *[new] * 2])
    assert found.basis == "the last 4 moves" and found.downtime == pytest.approx((4.98 + 0.28) / 2 + 1.0)


def test_a_rate_is_fitted_to_sizes_that_differ_enough() -> None:
    """At 100 MB/s and 0.5 s of overhead, from a difference of 64 MiB."""

    def made(size: int, downtime: float | None = None) -> Move:
        return past(size, 0.5 + size / (100 * MB) if downtime is None else downtime, 5.0)

    fitted = forecast(measured(500 * MB, 0.0), False, [made(MIB), made(65 * MIB)])
    assert fitted.downtime == pytest.approx(5.5)
    near = forecast(measured(500 * MB, 0.0), False, [made(MIB), made(65 * MIB - 1)])
    overheads = [made(size).downtime - size / (500 * MB) for size in (MIB, 65 * MIB - 1)]  # type: ignore[operator]
    assert near.downtime == pytest.approx(sum(overheads) / 2 + 1.0)
    quick = forecast(measured(500 * MB, 0.0), False, [made(MIB), made(65 * MIB)], 80 * MB)
    assert quick.downtime == pytest.approx(50.5), "no faster than the link"
    falling = forecast(measured(500 * MB, 0.0), False, [made(MIB, 1.0), made(65 * MIB, 0.9)])
    assert falling.downtime == pytest.approx((1.0 - MIB / (500 * MB) + 0.9 - 65 * MIB / (500 * MB)) / 2 + 1.0)
    level = forecast(measured(500 * MB, 0.0), False, [made(MIB, 1.0), made(65 * MIB, 1.0)])
    assert level.downtime == pytest.approx((2.0 - 66 * MIB / (500 * MB)) / 2 + 1.0), "a level line has no rate"
    steep = forecast(measured(500 * MB, 0.0), False, [made(100 * MB, 0.5), made(200 * MB, 1.5)])
    assert steep.downtime == pytest.approx(5.0), "no overhead below zero"


def rounds(*sent_and_left: tuple[int, int | None], seconds: float = 1.0) -> list[Round]:
    return [Round(number=i + 1, bytes=b, seconds=seconds, dirty=d) for i, (b, d) in enumerate(sent_and_left)]


def way(mode: str, downtime: str | None = None) -> MigrationParameters:
    return MigrationParameters.model_validate({"mode": mode, "downtime": downtime})


def test_a_round_must_leave_at_most_four_fifths_of_what_was_left() -> None:
    assert another_round(rounds((10 * MIB, 8 * MIB)))
    assert not another_round(rounds((10 * MIB, 8 * MIB + 1)))
    assert another_round(rounds((100 * MIB, 10 * MIB), (10 * MIB, 8 * MIB)))
    assert not another_round(rounds((100 * MIB, 10 * MIB), (10 * MIB, 8 * MIB + 1)))
    assert another_round(rounds((100 * MIB, None), (80 * MIB, None)))
    assert not another_round(rounds((100 * MIB, None), (80 * MIB + 1, None)))


def test_a_mebibyte_is_not_worth_a_round() -> None:
    assert not another_round(rounds((100 * MIB, MIB)))
    assert another_round(rounds((100 * MIB, MIB + 1)))


def test_what_fits_the_permitted_downtime_is_not_worth_a_round() -> None:
    """100 MiB in 2 s are 50 MiB in the permitted one; a round of 0 s has no rate."""
    for left, more in ((50 * MIB, False), (50 * MIB + 1, True)):
        assert another_round(rounds((100 * MIB, left), seconds=2), parameters=way("pre-copy", "1s")) == more
        assert another_round(rounds((100 * MIB, left), seconds=2), parameters=way("auto-converge", "1s")) == more
    assert another_round(rounds((100 * MIB, 50 * MIB), seconds=0), parameters=way("pre-copy", "1s"))
    assert another_round(rounds((200 * MIB, 50 * MIB), seconds=0.5), parameters=way("pre-copy", "100ms"))


def test_the_number_of_rounds_is_limited() -> None:
    halved = rounds(*[(2 ** (60 - i), 2 ** (59 - i)) for i in range(40)])
    assert another_round(halved[: MAX_ROUNDS - 1]) and not another_round(halved[:MAX_ROUNDS])
    assert another_round(halved[:1], 2) and not another_round(halved[:2], 2)
    level = [halved[0]] * 40  # throttled, but not yet enough
    patient = way("auto-converge")
    assert another_round(level[: MAX_ROUNDS * PATIENT - 1], parameters=patient)
    assert not another_round(level[: MAX_ROUNDS * PATIENT], parameters=patient)
    assert another_round([], parameters=patient) and not another_round([], 0, patient)


def test_where_dirty_memory_is_not_counted_two_rounds_tell_who_outruns_them() -> None:
    for second, outruns in ((90 * MIB, True), (90 * MIB - 1, False)):
        assert switches_to_post_copy(rounds((100 * MIB, None), (second, None)), way("hybrid")) == outruns
    assert not switches_to_post_copy(rounds((100 * MIB, None)), way("hybrid"))


def test_a_node_that_outruns_the_rounds_is_switched_at_nine_tenths() -> None:
    for left, outruns in ((9 * MIB, True), (9 * MIB - 1, False)):
        assert switches_to_post_copy(rounds((10 * MIB, left)), way("hybrid")) == outruns
    begun = rounds((100 * MIB, 50 * MIB), (40 * MIB, 38 * MIB))  # gains, and is outrun
    assert [another_round(begun, parameters=way(mode)) for mode in ("pre-copy", "hybrid", "post-copy")] == [
        True,
        False,
        False,
    ]
    assert [switches_to_post_copy(begun, way(mode)) for mode in ("pre-copy", "auto-converge", "post-copy")] == [
        False,
        False,
        True,
    ]


def test_the_comparison_of_files_counts_once() -> None:
    """A move that was as the first forecast leads to the same forecast."""
    node = Measured(bytes=3000 * MB, overhead=0.1, engine="pager", files=2000 * MB)
    first = forecast(node, True, [])
    rounds = [Round(number=number, bytes=size * MB, seconds=1) for number, size in ((1, 3000), (2, 100))]
    frozen = first.frozen or 0
    move = past(3100 * MB + frozen, first.downtime, 4.0, rounds=rounds, predicted=first)
    assert first.files == 2000 * MB and first.downtime > 0.3
    again = forecast(node, True, [move])
    assert again.downtime - (again.frozen or 0) / 1e9 == pytest.approx(first.downtime - frozen / 1e9, abs=0.01)


def test_files_on_a_disk_are_sent_in_rounds_and_not_compared() -> None:
    in_memory = Measured(bytes=3000 * MB, overhead=0.1, engine="pager", files=2000 * MB)
    on_disk = Measured(bytes=3000 * MB, overhead=0.1, engine="pager", disk=2000 * MB)
    first, second = (forecast(node, True, []) for node in (in_memory, on_disk))
    assert second.bytes == first.bytes and second.downtime < first.downtime - 0.15
    assert (second.disk, second.files) == (2000 * MB, 0) and on_disk.memory == in_memory.memory == 1000 * MB


def of_processes(processes: int, downtime: float, mappings: int = 0) -> Move:
    told = Prediction(
        bytes=1, rounds=0, seconds=1, downtime=1, basis="x", engine="pager", processes=processes, mappings=mappings
    )
    return past(MIB, downtime, 1.0, predicted=told)


def node_of(processes: int, mappings: int = 0) -> Measured:
    return Measured(bytes=MIB, overhead=0.05, engine="pager", processes=processes, mappings=mappings)


def test_a_freeze_is_foretold_from_moves_of_similar_nodes() -> None:
    """Of 3 and of 27 processes in turn; a third of them was disturbed."""
    moves = [
        of_processes(*each)
        for _ in range(3)
        for each in ((3, 0.10), (27, 0.30), (3, 0.10), (27, 0.30), (3, 0.9), (27, 0.9))
    ]
    few, many = (forecast(node_of(number), False, moves).downtime for number in (3, 27))
    assert (few, many) == pytest.approx((0.10, 0.30), rel=0.02)


def test_a_node_like_none_before_is_foretold_in_proportion() -> None:
    moves = [of_processes(3, 0.078)] * 5
    assert forecast(node_of(3), False, moves).downtime == pytest.approx(0.078, rel=0.02)
    assert forecast(node_of(27), False, moves).downtime == pytest.approx(0.222, rel=0.02)
    assert forecast(node_of(3, 4000), False, moves).downtime == pytest.approx(0.236, rel=0.02)
    uncounted = [past(MIB, 0.078, 1.0, predicted=of_processes(0, 1.0).predicted)] * 5
    assert forecast(node_of(27), False, uncounted).downtime == pytest.approx(0.078, rel=0.02), "as before"


def test_the_newer_of_similar_moves_count_for_more() -> None:
    moves = [of_processes(3, 0.5)] * 10 + [of_processes(3, 0.1)] * 8
    assert forecast(node_of(3), False, moves).downtime == pytest.approx(0.1, rel=0.02)


def test_what_is_sent_beside_the_rest_of_the_rounds_belongs_to_any_freeze() -> None:
    """CRIU's images are 2 MiB of each, whatever is left: so they are a part of any freeze."""
    rounds = (Round(number=1, bytes=1024 * MIB, seconds=1.0, dirty=64 * 1024),)
    told = Prediction(bytes=1, rounds=1, seconds=1.0, downtime=1.0, basis="", engine="pager")
    moves = [past(1026 * MIB, 0.05, 2.0, rounds=rounds, predicted=told) for _ in range(5)]
    measured = Measured(bytes=1024 * MIB, overhead=0.2, engine="pager", written=((1.0, 64 * 1024),))
    assert forecast(measured, True, moves).downtime == pytest.approx(0.05, rel=0.02)


# Records, addresses, units and errors; pre-copy policy and forecast.


def test_forecast_learns_rate_and_overhead() -> None:
    def made(size: int) -> Move:
        down = 0.05 + size / 200e6
        return Move(
            id="m", node="n", cluster="c", source="a", destination="b", phase=Phase.DONE, created=0, bytes=size,
            downtime=down, total=down + 0.2,
        )  # fmt: skip

    small = [made(2**20)] * 3
    assert forecast(measured(2**28, 0.05), False, small).downtime < 2, "small moves tell nothing of the rate"
    guess = forecast(measured(2**29, 0.0), False, [*small, made(2**27), made(2**28)])
    assert guess.downtime == pytest.approx(0.05 + 2**29 / 200e6, rel=0.01)
    assert guess.seconds == pytest.approx(guess.downtime + 0.2, rel=0.01)
    slow = forecast(measured(2**29, 0.0), False, [*small, made(2**27), made(2**28)], 8e6)
    assert slow.downtime > 2**29 / 1e6, "the earlier rate is bounded by the present limit"
    with_rounds = forecast(measured(2**29, 0.0), True, small)
    assert with_rounds.rounds and with_rounds.downtime < guess.downtime and with_rounds.bytes > guess.bytes
