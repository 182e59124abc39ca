"""The freeze of a node is tried again for a while, and at last with all patience."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wherry.base.errors import Code, Failed
from wherry.node.container import local_departure
from wherry.node.container.local_departure import LocalDeparture


@pytest.mark.parametrize("attempt", [0.3, 0.01])
def test_the_last_attempt_is_the_patient_one(monkeypatch: pytest.MonkeyPatch, attempt: float) -> None:
    """Also when the attempt before it ends behind the time for all of them."""
    now, tried = [100.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(local_departure, "time", clock)
    departure: Any = object.__new__(LocalDeparture)
    departure._group = SimpleNamespace(prefer=lambda _: None, limit=lambda *_: None, thaw=lambda: None)
    departure._place = SimpleNamespace(node=SimpleNamespace(memory=1))

    def obstacle(patience: float) -> Failed:
        tried.append(patience)
        now[0] += attempt
        return Failed(Code.FAILED, "it does not stand")

    departure._obstacle = obstacle
    with pytest.raises(Failed, match="does not stand"):
        departure.freeze()
    assert len(tried) > 2 and tried[-1] == 5.0 and set(tried[:-1]) == {0.25}
