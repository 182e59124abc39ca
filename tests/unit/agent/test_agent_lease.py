"""The agent's lease: an agent stops acting when its daemon receives nothing of it, whichever direction is cut."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import waiting
from wherry.agent import lease as lease_module
from wherry.agent.lease import Lease
from wherry.agent.server import Server
from wherry.hostlink import link as link_module
from wherry.hostlink.link import HostLink

_AGENT = """\
import runpy
import wherry.hostlink.entrance as entrance
entrance.LEASE = 1.0
runpy.run_module("wherry.agent", run_name="__main__")
"""


class Clock:
    """Seconds that pass when a test adds them, or when the watch of a lease sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lease_module, "clock", lambda: self.now)
        monkeypatch.setattr(lease_module, "time", SimpleNamespace(sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        assert self.now < 2000.0, "the lease does not end"
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Noted(Lease):
    """A lease of this process of 8 s, which records the stamps that prolong it, and its end."""

    def __init__(self) -> None:
        self.ended, self.came_back = threading.Event(), [0.0]
        super().__init__(self.ended.set, 8.0)
        self.prolonged = self.came_back.append

    def run_out(self) -> None:
        """Watches to the end."""
        assert not self.ended.is_set()
        self.watch()
        assert self.ended.wait(waiting.bound())


def test_lease_that_nobody_prolongs_runs_out(clock: Clock) -> None:
    Noted().run_out()
    assert clock.now == 1008.0


def test_lease_lasts_from_the_stamp_that_came_back_and_no_longer(clock: Clock) -> None:
    lease = Noted()
    clock.now += 2.0
    stamp = lease.stamp()
    for _ in range(6):
        clock.now += 1.0
        lease.heard(stamp)  # again and again, as from a pipe that was full
    lease.run_out()
    assert clock.now == 1010.0


def test_stamps_of_nobody_prolong_nothing(clock: Clock) -> None:
    lease = Noted()
    clock.now += 2.0
    for stamp in (0, -1, 1, lease.stamp() + 10**12, 1 << 200):
        lease.heard(stamp)
    lease.run_out()
    assert clock.now == 1008.0


class World:
    """An agent of this process, whose answers may be lost."""

    def __init__(self, lease: Lease) -> None:
        (reads, answers), (requests, writes) = os.pipe(), os.pipe()
        self.heard, self.pings = True, 0

        def write(frame: bytes) -> None:
            self.pings += 1
            if self.heard:
                os.write(answers, frame)

        server = Server({}, write, lease=lease)
        threading.Thread(target=server.serve, args=(requests,), daemon=True).start()
        self.link = HostLink("h1", reads, writes)


def test_agent_that_is_heard_keeps_its_lease(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(link_module, "_ASK", 0.005)
    lease = Noted()
    world = World(lease)
    for _ in range(3):
        clock.now += 7.0
        waiting.until(lambda: lease.came_back[-1] == clock.now, "a ping with the stamp of now")
    world.heard = False  # a cut in one direction: pings still arrive
    pings = world.pings
    waiting.until(lambda: world.pings > pings + 2, "pings after the cut")
    clock.now += 7.0
    pings = world.pings
    waiting.until(lambda: world.pings > pings + 2, "pings late in the lease")
    lease.run_out()
    assert clock.now == 1029.0 and world.link.alive
    world.link.close()


def test_agent_of_a_silent_daemon_ends_by_itself() -> None:
    """Its connection is still open, as one is that was cut."""
    words = [sys.executable, "-c", _AGENT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert agent.stderr and agent.wait(waiting.bound()) == 0
        assert b"no longer receives its frames" in agent.stderr.read()
