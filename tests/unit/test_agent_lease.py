"""The agent's lease: who is not heard by its daemon acts no more, whatever of the connection is cut."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

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


class Watched(Lease):
    """A lease of this process, whose end is noted."""

    def __init__(self, seconds: float) -> None:
        self.ended = threading.Event()
        super().__init__(self.ended.set, seconds)
        self.watch()


def test_lease_that_nobody_prolongs_runs_out() -> None:
    assert Watched(0.2).ended.wait(20)


def test_lease_lasts_from_the_stamp_that_came_back_and_no_longer() -> None:
    lease = Watched(1.0)
    stamp = lease.stamp()
    for _ in range(6):
        time.sleep(0.1)
        lease.heard(stamp)  # again and again, as from a pipe that was full
    assert lease.ended.wait(0.9)


def test_stamps_of_nobody_prolong_nothing() -> None:
    lease = Watched(0.5)
    for stamp in (0, -1, 1, lease.stamp() + 10**12, 1 << 200):
        lease.heard(stamp)
    assert lease.ended.wait(1.0)


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


def test_agent_that_is_heard_keeps_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_ASK", 0.05)
    lease = Watched(1.0)
    world = World(lease)
    assert not lease.ended.wait(2.5) and world.link.alive
    heard = world.link.heard
    world.heard = False  # a cut in one direction: pings still arrive
    pings = world.pings
    assert lease.ended.wait(20)
    assert world.pings > pings + 2
    assert time.monotonic() <= heard + 1.0 + 2.0
    world.link.close()


def test_agent_of_a_silent_daemon_ends_by_itself() -> None:
    """Its connection is still open, as one is that was cut."""
    words = [sys.executable, "-c", _AGENT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
        assert agent.stderr and agent.wait(60) == 0
        assert b"does not hear it any more" in agent.stderr.read()
