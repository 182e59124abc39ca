"""Loads of hosts: since the last measurement, or for a moment when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wherry.cluster import host_loads
from wherry.cluster.host_loads import HostLoads
from wherry.fabric.protocol import Fabric


class Machine:
    """A clock, and the CPU seconds of two hosts' cgroups; host `b` uses half a CPU unless a test sets another rate."""

    def __init__(self) -> None:
        self.now, self.slept, self.rate = 1000.0, 0.0, 0.5
        self.used = {"a": 7.0, "b": 500.0}
        self.there = {"a", "b"}

    def work(self, seconds: float, rate: float) -> None:
        """Time passes, in which `b` uses so many CPUs; it continues at that rate."""
        self.rate = rate
        self.now += seconds
        self.used["b"] += seconds * rate

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.work(seconds, self.rate)
        self.slept += seconds

    def group(self, name: str) -> Any:
        return SimpleNamespace(exists=lambda: name in self.there, cpu_seconds=lambda: self.used[name])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(host_loads, "time", made)
    monkeypatch.setattr(host_loads, "Cgroup", made.group)
    return made


def loads(uncounted: bool = False) -> HostLoads:
    hosts = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    spec = SimpleNamespace(hosts=hosts)
    return HostLoads(cast(Fabric, SimpleNamespace(uncounted=uncounted, spec=spec, cgroup=lambda name: name)))


def test_only_the_first_measurement_in_a_while_waits(machine: Machine) -> None:
    """The next one is over all the time since; one of a moment ago is used again; one of long ago counts for
    nothing."""
    measured = loads()
    assert measured() == pytest.approx({"a": 0.0, "b": 0.5}) and machine.slept == pytest.approx(0.2)
    machine.work(6, 0.1)
    machine.work(4, 0.6)
    assert measured() == pytest.approx({"a": 0.0, "b": 0.3}) and machine.slept == pytest.approx(0.2)
    machine.work(4, 1.0)
    assert measured() == pytest.approx({"a": 0.0, "b": 0.3})
    machine.work(61, 0.9)
    machine.rate = 0.2
    assert measured() == pytest.approx({"a": 0.0, "b": 0.2}) and machine.slept == pytest.approx(0.4)


def test_a_host_that_came_meanwhile_is_measured(machine: Machine) -> None:
    measured = loads()
    machine.there = {"a"}
    assert set(measured()) == {"a"}
    machine.work(10, 0.9)
    machine.there, machine.rate = {"a", "b"}, 0.4
    assert measured() == pytest.approx({"a": 0.0, "b": 0.4})


def test_hosts_without_counters_are_left_out(machine: Machine) -> None:
    assert loads(uncounted=True)() == {}
    machine.there = set()
    assert loads()() == {} and machine.slept == 0
