"""Threads of the daemon that run every few seconds, and the probes of the doctor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from wherry.fabric import direct_forwarding
from wherry.service import doctor, periodic
from wherry.service.doctor import Health
from wherry.service.periodic import PeriodicTask, stop_all


class Blocked(PeriodicTask):
    """A run that takes as long as the test wants."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__("blocked", 0.0)
        self.entered, self.closed, self._go = threading.Event(), threading.Event(), go

    def run_once(self) -> None:
        self.entered.set()
        self._go.wait()

    def close(self) -> None:
        self.closed.set()


def test_all_threads_are_ended_within_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """wherryd is killed 40 s after SIGTERM: its threads must not wait for a silent host one after another."""
    go, waited = threading.Event(), list[float]()
    tasks = [Blocked(go) for _ in range(3)]
    for task in tasks:
        task.start()
        task.entered.wait()
        monkeypatch.setattr(task._thread, "join", waited.append)
    monkeypatch.setattr(periodic, "time", SimpleNamespace(monotonic=lambda: sum(waited)))
    stop_all(tasks, 40.0)
    assert waited == [40.0, 0.0, 0.0]
    assert not any(task.closed.is_set() for task in tasks)
    go.set()
    for task in tasks:
        task.closed.wait()


def test_a_probe_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken() -> Iterator[doctor.Finding]:
        raise KeyError("tracking")

    monkeypatch.setattr(doctor, "_PROBES", (_broken,))
    (finding,) = doctor.examine()
    assert (finding.name, finding.health) == ("broken", doctor.Health.MISSING) and "tracking" in finding.text


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's")
def test_a_machine_that_cannot_forward_past_bridges_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_forwarding, "obstacle", lambda: "no libbpf")
    found = {one.name: one for one in doctor._network()}["forwarding"]
    assert found.health == doctor.Health.LIMITED and "bridges" in found.text and "no libbpf" in found.text


@pytest.mark.parametrize(
    ("flags", "driver", "health"),
    [
        ("fpu hypervisor lahf_lm", "haltpoll", Health.OK),
        ("fpu hypervisor lahf_lm", "none", Health.LIMITED),
        ("fpu hypervisor lahf_lm", None, Health.LIMITED),
        ("fpu lahf_lm", "intel_idle", Health.OK),
    ],
)
def test_a_virtual_machine_whose_processors_halt_at_once_is_told(
    flags: str, driver: str | None, health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    if driver:
        (tmp_path / "current_driver").write_text(f"{driver}\n")
    monkeypatch.setattr(doctor, "_CPUIDLE", tmp_path)
    monkeypatch.setattr(doctor, "_CPUINFO", tmp_path / "cpuinfo")
    (finding,) = doctor._idle_processors()
    assert finding.health == health
    assert finding.health == Health.OK or "haltpoll" in finding.remedy
