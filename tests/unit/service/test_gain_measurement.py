"""The time of a step after moves: by iterations where they are seen before and after, else by messages."""

from __future__ import annotations

from wherry.model.balance import Kind, Verdict
from wherry.model.profile import Flow, Profile
from wherry.service.gain_measurement import step_beside


def verdict(rate: float | None, period: float | None = None) -> Verdict:
    return Verdict(cluster="c", kind=Kind.NETWORK, text="", jobs=("job-1",), rate=rate, period=period, steps=4)


def profile(messages: float | None, period: float | None = None, steps: int = 4, job: str = "job-1") -> Profile:
    flows = None if messages is None else (Flow(source="a", target="b", messages=messages, bytes=1.0, turns=1.0),)
    return Profile(
        cluster="c", jobs=(job,), time=0.0, seconds=4.0, ran=9.0, remaining=9.0, basis="", nodes=(), flows=flows,
        period=period, steps=steps,
    )  # fmt: skip


def test_iterations_count_before_messages() -> None:
    assert step_beside(verdict(100.0, 0.5), profile(100.0, 0.25)) == (0.5, "")
    assert step_beside(verdict(None, 0.5), profile(None, 0.25)) == (0.5, "")
    assert step_beside(verdict(100.0, 0.5), profile(400.0)) == (0.25, ""), "none is seen afterwards"
    assert step_beside(verdict(100.0, 0.5), profile(400.0, 0.5, steps=8)) == (0.25, ""), "it is another loop"


def test_without_iterations_too_few_messages_show_nothing() -> None:
    for before, after, why in (
        (verdict(None, 0.5), profile(100.0), "messages are not counted here"),
        (verdict(1.0, 0.5), profile(100.0), "too few"),
        (verdict(100.0), profile(0.0), "no messages"),
        (verdict(100.0, 0.5), profile(100.0, 0.5, job="job-2"), "others began"),
    ):
        step, reason = step_beside(before, after)
        assert step is None and why in reason
