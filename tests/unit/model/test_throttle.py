"""A container is slowed down until its rounds of pre-copy converge: how much, and when that ends."""

from __future__ import annotations

import pytest

from wherry.cli.move import forecast as told
from wherry.cli.move import slowed_down
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Move, Phase, Round
from wherry.model.throttle import MIN_SHARE, exhausted, next_share
from wherry.move.forecast import forecast
from wherry.move.precopy_policy import another_round
from wherry.node.protocol import Measured

MB = 10**6
PARAMETERS = MigrationParameters(mode="auto-converge")


def rounds(*each: tuple[int, int | None, float | None]) -> list[Round]:
    """Rounds of these bytes, what was left, and the node's share."""
    return [
        Round(number=number + 1, bytes=sent, seconds=0.5, dirty=left, share=share)
        for number, (sent, left, share) in enumerate(each)
    ]


@pytest.mark.parametrize(
    ("before", "share"),
    [
        ((), 1.0),
        (((100, 50, 1.0),), 1.0),
        (((100, 60, 1.0),), 0.8),
        (((100, 80, 1.0),), 0.625),
        (((100, 300, 1.0),), 0.5),
        (((100, 90, 1.0), (90, 90, 0.5)), 0.25),
        (((100, 90, 0.2), (90, 20, 0.15)), 0.15),
        (((100, 90, 0.12), (90, 90, 0.12)), MIN_SHARE),
        (((100, None, 1.0),), 1.0),
        (((100, None, 1.0), (90, None, 1.0)), 0.5 / 0.9),
    ],
)
def test_the_share_follows_what_rounds_leave(
    before: tuple[tuple[int, int | None, float | None], ...], share: float
) -> None:
    assert next_share(rounds(*before)) == pytest.approx(share)


def test_rounds_end_when_the_least_share_gains_no_more() -> None:
    steady = [(90 * MB, 90 * MB, share) for share in (1.0, 0.5, 0.25, 0.125)]
    assert another_round(rounds(*steady), parameters=PARAMETERS)
    least = [*steady, (90 * MB, 80 * MB, MIN_SHARE)]
    assert exhausted(rounds(*least)) and not another_round(rounds(*least), parameters=PARAMETERS)
    assert another_round(rounds(*steady, (90 * MB, 60 * MB, MIN_SHARE)), parameters=PARAMETERS), "it still gains"
    machine = [(90 * MB, 90 * MB, None)] * 8
    assert another_round(rounds(*machine), parameters=PARAMETERS), "QEMU slows down by itself"
    assert not another_round(rounds(*machine * 4), parameters=PARAMETERS)


def test_the_forecast_slows_the_node_down_round_by_round() -> None:
    """It writes as fast as is sent, 1 GB/s; at a half of that and less, rounds converge."""
    measured = Measured(bytes=400 * MB, overhead=0.05, engine="pager", written=((0.1, 100 * MB), (1.0, 1000 * MB)))
    fast = forecast(measured, True, [], parameters=MigrationParameters(mode="pre-copy"))
    slowed = forecast(measured, True, [], parameters=PARAMETERS)
    assert fast.share is None and slowed.share == 0.5 and slowed.mode == "auto-converge"
    assert slowed.frozen is not None and fast.frozen is not None and slowed.frozen < fast.frozen / 100
    assert "slowed down to 50% of its CPU time" in told(slowed) and "slowed" not in told(fast)
    calm = forecast(measured.model_copy(update={"written": ((1.0, MB),)}), True, [], parameters=PARAMETERS)
    assert calm.share == 1.0 and "slowed" not in told(calm)


def test_what_was_done_to_the_node_is_told() -> None:
    fields = {"id": "m", "node": "n", "cluster": "c", "source": "a", "destination": "b", "phase": Phase.DONE}
    done = Move.model_validate({**fields, "created": 1.0, "rounds": rounds((9, 9, 1.0), (9, 9, 0.5), (9, 1, 0.25))})
    assert slowed_down(done) == "slowed down to 25% of its CPU time for 1.0 s"
    assert slowed_down(done.model_copy(update={"rounds": tuple(rounds((9, 9, 1.0), (9, 9, None)))})) == ""
