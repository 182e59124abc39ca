"""Steps in which a node stops, or is waited for, on a machine that gives no processor (docs/design/0032-bounds.md)."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
from types import SimpleNamespace
from typing import Any, cast

import pytest

import waiting
from wherry.base.errors import Failed
from wherry.client import daemon_process
from wherry.fabric import link_emulator, netlink, nft, packet_hold, recorded_process, vpn_gateway, vpn_tunnel
from wherry.fabric import poll as poll_module
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.poll import any_waits_for_a_processor, poll
from wherry.fabric.run_program import output_of
from wherry.job import holder_files, holder_start, job_end, mpi, readiness
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.records import Cluster
from wherry.node.container import local_host, warm_connections
from wherry.node.vm import agent_liveness, libvirt_client, live_migration
from wherry.node.vm.emulated import driver

BUSY = 20.0
"""Seconds for which a host may get no processor."""
CLUSTER = cast(Cluster, SimpleNamespace(name="hello"))


class Clock:
    """Stands for `time`: each pause adds a second, and a test may add more."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(poll_module, "time", clock)
    monkeypatch.setattr(readiness, "time", clock)
    return clock


def test_who_stood_meanwhile_looks_once_more(clock: Clock) -> None:
    """Between its look and that at the clock."""
    looks = itertools.count()

    def done() -> bool:
        if next(looks) == 0:
            clock.now += 20.0
            return False
        return True

    assert poll(done, 5.0)


def test_what_waits_for_a_processor_is_waited_for_longer(clock: Clock) -> None:
    began = clock.now
    assert poll(lambda: clock.now - began > 20.0, 5.0, lambda: True)
    began = clock.now
    assert not poll(lambda: False, 5.0) and clock.now - began < 8.0
    began = clock.now
    assert not poll(lambda: False, 5.0, lambda: True) and 30.0 < clock.now - began < 35.0, "but not for ever"


def test_a_process_that_computes_waits_for_a_processor_and_one_that_sleeps_does_not() -> None:
    assert any_waits_for_a_processor([os.getpid()]), "it runs now"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as sleeps:
        waiting.until(lambda: not any_waits_for_a_processor([sleeps.pid]), "cat waits for its input")
        assert sleeps.stdin
        sleeps.stdin.close()
        sleeps.wait()
    assert not any_waits_for_a_processor([sleeps.pid]), "it has ended"


class Silent:
    """A node that does not answer for so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._until = clock, clock.now + seconds

    def ping(self, seconds: float) -> int:
        left = self._until - self._clock.now
        self._clock.now += min(seconds, max(0.0, left))
        if left > seconds:
            raise AgentError("no answer")
        return 1


def ask(node: Silent, moving: Any) -> None:
    readiness.require_ready(CLUSTER, [("hello-0", cast(AgentEndpoint, node))], lambda: None, moving)


def test_a_job_waits_for_a_node_that_stands_in_a_move(clock: Clock) -> None:
    """A move may have it stand for minutes."""
    with pytest.raises(Failed, match="do not answer"):
        ask(Silent(clock, 100.0), lambda _name: False)
    ask(Silent(clock, 280.0), lambda _name: True)
    states = iter([True, False])
    ask(Silent(clock, 50.0), lambda _name: next(states))
    with pytest.raises(Failed, match="do not answer"):
        ask(Silent(clock, 10_000.0), lambda _name: True)


@pytest.mark.parametrize(
    "bound",
    [
        libvirt_client.KEEPALIVE_SECONDS * libvirt_client.KEEPALIVES,
        warm_connections._TIMEOUT,
        packet_hold.TIMEOUT,
        link_emulator.TIMEOUT,
        vpn_gateway.START_TIMEOUT,
        vpn_tunnel.TIMEOUT,
        recorded_process._KILLED,
        netlink._ANSWER,
        netlink._FULL,
        nft._SECONDS,
        *(
            inspect.signature(of).parameters[name].default
            for of, name in ((Cgroup.kill, "timeout"), (Cgroup.remove, "timeout"))
        ),
        inspect.signature(output_of).parameters["seconds"].default,
        readiness._READY_SECONDS,
        holder_start._START_SECONDS,
        holder_files._GRACE,
        job_end._CLEANUP_SECONDS,
        mpi._VERSION_SECONDS,
        live_migration._STALLED,
        agent_liveness._ANSWER_TIMEOUT,
        driver._GONE_TIMEOUT,
        local_host._LISTEN_TIMEOUT,
        daemon_process._PID_SECONDS,
    ],
)
def test_a_peer_may_get_no_processor_for_twenty_seconds(bound: float) -> None:
    """Those of the table "Bounds that were short" of the page."""
    assert bound > BUSY
