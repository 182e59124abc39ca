"""Loads of hosts: since the last measurement, or for a moment when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from wherry.base.errors import Code, LostContact
from wherry.cluster import host_loads
from wherry.cluster.host_loads import HostLoads
from wherry.fabric.host_counters import HostCounters
from wherry.fabric.protocol import Fabric


class Machine:
    """A clock, and the CPU seconds of two hosts' cgroups; host `b` uses half a CPU unless a test sets another rate."""

    def __init__(self) -> None:
        self.now, self.slept, self.rate = 1000.0, 0.0, 0.5
        self.used = {"a": 7.0, "b": 500.0}
        self.there = {"a", "b"}
        self.booted = 900.0
        """The clocks of hosts are others than the daemon's."""

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

    def counters(self, host: str) -> HostCounters:
        if host not in self.there:
            raise LostContact(Code.UNREACHABLE, f"host {host} does not answer")
        return HostCounters(at=self.now - self.booted, cpu=self.used[host], throttled=0.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(host_loads, "time", made)
    return made


def loads(machine: Machine, uncounted: str = "") -> HostLoads:
    hosts = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    spec = SimpleNamespace(hosts=hosts)
    return HostLoads(cast(Fabric, SimpleNamespace(uncounted=uncounted, spec=spec, counters=machine.counters)))


def test_only_the_first_measurement_in_a_while_waits(machine: Machine) -> None:
    """The next one is over all the time since; one of a moment ago is used again; one of long ago counts for
    nothing."""
    measured = loads(machine)
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
    measured = loads(machine)
    machine.there = {"a"}
    assert set(measured()) == {"a"}
    machine.work(10, 0.9)
    machine.there, machine.rate = {"a", "b"}, 0.4
    assert measured() == pytest.approx({"a": 0.0, "b": 0.4})


def test_hosts_without_counters_are_left_out(machine: Machine) -> None:
    assert loads(machine, "nobody counts")() == {}
    machine.there = set()
    assert loads(machine)() == {} and machine.slept == 0


def test_a_host_that_falls_silent_or_boots_is_unknown_and_not_idle(machine: Machine) -> None:
    measured = loads(machine)
    measured()
    machine.work(10, 0.5)
    machine.there = {"a"}
    assert measured() == {"a": 0.0}
    machine.there = {"a", "b"}
    machine.work(10, 0.5)
    assert measured() == pytest.approx({"a": 0.0, "b": 0.5})
    machine.work(6, 0.5)
    machine.booted, machine.used["b"] = machine.now - 1, 0.1
    assert measured() == {}
