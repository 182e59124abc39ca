"""Counters of hosts: of a cgroup that is not there, of the whole machine, and from one agent to the next."""

from __future__ import annotations

import os
import time

import pytest

from wherry.base.errors import Code, Refused
from wherry.fabric import host_counters, host_facts
from wherry.fabric.host_counters import (
    CountedHere,
    FrameCounts,
    HostCounters,
    LocalFrameCounter,
    NodeCounters,
    PairCount,
)
from wherry.fabric.host_network import HostNetwork
from wherry.fabric.traffic_matrix import Count
from wherry.hostlink.interface import Interface
from wherry.hostlink.values import from_plain, to_plain


class Nowhere(CountedHere):
    """Hosts that were not made."""

    def cgroup(self, host: str) -> str:
        return f"wherry-none/{host}"

    def host_netns(self, host: str) -> str:
        return f"/none/{host}"

    def take_bridges(self, netns: str, wanted: bool) -> None:
        raise AssertionError(netns)


def test_a_host_without_a_cgroup_is_unknown() -> None:
    for ask in (Nowhere().counters, Nowhere().use):
        with pytest.raises(Refused, match="host a1 has no counters") as caught:
            ask("a1", ["c-0"])
        assert caught.value.code == Code.NOT_FOUND


def test_the_whole_machine_is_counted() -> None:
    first = host_facts.machine_cpu_seconds()
    assert 0 < first <= time.clock_gettime(time.CLOCK_BOOTTIME) * (os.cpu_count() or 1) + 1


def test_each_counter_is_a_reader_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has turns for frames that other hosts count, too."""
    counts = {("02:00", "02:01"): Count(3, 200, 0), ("02:01", "02:00"): Count(0, 0, 2)}
    monkeypatch.setattr(host_counters.TrafficMatrix, "read", lambda _self, far: counts if "/none/a1" in far else {})
    counters = [LocalFrameCounter("/none/a1", lambda _netns, _wanted: None) for _ in range(2)]
    found = [counter.read(frozenset()) for counter in counters]
    assert found[0].pairs == (PairCount("02:00", "02:01", 3, 200, 0), PairCount("02:01", "02:00", 0, 0, 2))
    assert found[0].reader == counters[0].read(frozenset()).reader != found[1].reader


@pytest.mark.parametrize(
    "value",
    [
        HostCounters(at=1.5, cpu=2.0, throttled=0.0, nodes={"c-0": NodeCounters(cpu=1.0, throttled=0.5)}, machine=9.0),
        FrameCounts(reader="r", pairs=(PairCount("02:00", "02:01", 3, 200, 1),)),
    ],
)
def test_they_cross_to_the_daemon(value: HostCounters | FrameCounts) -> None:
    assert from_plain(type(value), to_plain(value)) == value


def test_a_counter_stays_at_its_host() -> None:
    returned = Interface(HostNetwork).method("frame_counter").returned
    assert returned and "read" in returned and "close" in returned
