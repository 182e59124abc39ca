"""The latency of a link while the machine's clock is set."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from wherry.fabric import link_probe

HERE = ("/proc/self/ns/net", "127.0.0.1")


class SetBack:
    """The module `time` of a machine whose wall clock is ten seconds ahead, and is set right after some looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def clock_gettime_ns(self, clock: int) -> int:
        self.looks -= 1
        return time.clock_gettime_ns(clock) + (10**10 if self.looks >= 0 else 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
@pytest.mark.parametrize("looks", [1, 5])
def test_a_clock_that_is_set_meanwhile_falsifies_no_delay(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    monkeypatch.setattr(link_probe, "time", SetBack(looks))
    found = link_probe.delays(HERE, HERE, 9, 0.002, 0.01)
    assert len(found) == 9 and all(0 < delay < 1 for delay in found)
