"""A machine that gets no processor for twenty seconds is busy, not dead (docs/design/0032-bounds.md).

A question without an answer in time is asked again, and the bounds of one protocol keep their order.
"""

from __future__ import annotations

import fcntl
import inspect
import itertools
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rest_service import Here

import waiting
from wherry.base import remembered as remembered_module
from wherry.base.errors import Failed, Refused
from wherry.base.remembered import Undecided, remembered
from wherry.client import daemon_process
from wherry.fabric import link_emulator, netlink, nft, packet_hold, recorded_process, vpn_gateway, vpn_tunnel
from wherry.fabric import poll as poll_module
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.poll import any_waits_for_a_processor, poll
from wherry.fabric.run_program import output_of
from wherry.hostlink import entrance, link, ssh
from wherry.job import holder_files, holder_start, job_end, mpi, readiness
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.records import Cluster
from wherry.model.spec.fabric import SHORTEST_LEASE
from wherry.node import netns_socket
from wherry.node.container import local_arrival, local_host, mover, tracking, warm_connections
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.progress_bounds import MoveTimeouts
from wherry.node.container.tracking import Tracking
from wherry.node.vm import agent_liveness, libvirt_client, live_migration, qemu_probe
from wherry.node.vm.emulated import driver
from wherry.node.vm.image.catalog import VmImage
from wherry.service.instance_lock import InstanceLock
from wherry.store import database, lease

BUSY = 20.0
"""Seconds for which a host may get no processor."""
NATIVE = Path(__file__).parents[3] / "native"


def milliseconds(file: str, name: str) -> float:
    """A constant of a native program, in seconds."""
    (found,) = re.findall(rf"\b{name}\b(?: =)? +(\d+)", (NATIVE / file).read_text())
    return int(found) / 1000


class Program:
    """Stands for `subprocess.run`: it does not end in time while `busy`, and counts its calls."""

    def __init__(self, stdout: str = "", stderr: str = "", code: int = 0) -> None:
        self.said = stdout, stderr, code
        self.busy, self.calls = True, 0

    def __call__(self, words: Any, *_: Any, timeout: float, **__: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        if self.busy:
            raise subprocess.TimeoutExpired(words, timeout)
        stdout, stderr, code = self.said
        return subprocess.CompletedProcess(words, code, stdout, stderr)


def test_an_answer_is_kept_and_one_that_is_none_is_not() -> None:
    asked = list[str]()

    @remembered()
    def answer(name: str) -> str:
        asked.append(name)
        if len(asked) == 1:
            raise Undecided("perhaps", "the machine was busy")
        return name

    assert [answer("a"), answer("a"), answer("a"), answer(name="b")] == ["perhaps", "a", "a", "b"]
    assert asked == ["a", "a", "b"]
    answer.cache_clear()
    assert answer("a") == "a" and len(asked) == 4


def test_what_takes_long_to_ask_is_not_asked_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], list[int]()
    monkeypatch.setattr(remembered_module.time, "monotonic", lambda: now[0])

    @remembered(again=10.0)
    def answer() -> str:
        asked.append(1)
        raise Undecided("unknown", "busy")

    assert answer() == answer() == "unknown" and len(asked) == 1
    now[0] = 11.0
    assert answer() == "unknown" and len(asked) == 2


def test_a_probe_that_times_out_once_does_not_switch_the_pager_off(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Program(stdout="wp-async\n")
    monkeypatch.setattr(tracking.subprocess, "run", run)
    for ask in (tracking.probed, tracking.receiver_obstacle):
        ask.cache_clear()
    try:
        assert "timed out" in tracking.probed().obstacle and "timed out" in tracking.receiver_obstacle()
        run.busy = False
        for _ in range(2):
            assert tracking.probed() == tracking.Probed(Tracking.WP_ASYNC) and tracking.receiver_obstacle() == ""
        assert run.calls == 4
    finally:
        for ask in (tracking.probed, tracking.receiver_obstacle):
            ask.cache_clear()


def test_what_the_kernel_lacks_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Program(stderr="no userfaultfd", code=1)
    run.busy = False
    monkeypatch.setattr(tracking.subprocess, "run", run)
    tracking.probed.cache_clear()
    try:
        assert tracking.probed().obstacle == tracking.probed().obstacle == "no userfaultfd" and run.calls == 1
    finally:
        tracking.probed.cache_clear()


def test_a_criu_that_is_too_slow_once_can_still_restore_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Program()
    monkeypatch.setattr(criu_probe, "find", lambda: criu_probe.Criu(("criu",), "criu", "4.2", True, ""))
    monkeypatch.setattr(criu_probe.subprocess, "run", run)
    criu_probe.lazy_obstacle.cache_clear()
    try:
        assert "timed out" in criu_probe.lazy_obstacle()
        run.busy = False
        assert criu_probe.lazy_obstacle() == criu_probe.lazy_obstacle() == "" and run.calls == 2
    finally:
        criu_probe.lazy_obstacle.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU needs root")
def test_a_criu_that_is_too_slow_once_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the next who asks, in this process or another: the answers are in a file."""
    program, run = tmp_path / "criu", Program(stdout="Version: 4.2\n")
    program.write_text("")
    monkeypatch.setattr(criu_probe, "directory", lambda: tmp_path / "versions")
    monkeypatch.setenv("WHERRY_CRIU", str(program))
    monkeypatch.setattr(criu_probe.subprocess, "run", run)
    monkeypatch.setattr(criu_probe, "self_test", lambda _: "")
    monkeypatch.setattr(criu_probe, "_prime", lambda _: None)
    assert not criu_probe.find().works and "timed out" in criu_probe.find().reason
    run.busy = False
    assert criu_probe.find().works and criu_probe.find().version == "4.2"
    calls = run.calls
    assert criu_probe.find().works and run.calls == calls


def test_kvm_that_says_nothing_in_time_is_not_given_up_for_the_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boots = tmp_path / "boots"
    program = tmp_path / qemu_probe.EMULATOR
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo version 10.0; exit; }}\n'
        f'[ -e {boots} ] && echo "Linux version 6.1" || exec sleep 60\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(qemu_probe, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(qemu_probe, "_PROBE", 0.1)
    monkeypatch.setattr(qemu_probe.os, "access", lambda _path, _mode: True)
    (tmp_path / "kernel").touch()
    image = VmImage(tmp_path / "kernel", tmp_path / "initrd", "default", "digest")
    for known in (qemu_probe.version, qemu_probe.kvm):
        known.cache_clear()
    try:
        assert "does not boot" in qemu_probe.kvm(image)
        assert not (tmp_path / "cache" / "kvm.json").exists()
        boots.touch()
        monkeypatch.setattr(qemu_probe, "_PROBE", 60.0)
        assert "does not boot" in qemu_probe.kvm(image)  # for some minutes, as many ask
        qemu_probe.kvm.cache_clear()  # as in another process
        assert qemu_probe.kvm(image) == ""
    finally:
        for known in (qemu_probe.version, qemu_probe.kvm):
            known.cache_clear()


def test_silence_of_a_busy_host_is_not_its_loss() -> None:
    """And an agent ends before nodes stand for want of a lease, so that the next one finds them standing."""
    assert BUSY + 2 * link._ASK < link._SILENT < entrance.LEASE < SHORTEST_LEASE
    assert ssh._STOPS > BUSY
    assert libvirt_client.KEEPALIVE_SECONDS * libvirt_client.KEEPALIVES >= 60


def test_tiles_of_a_busy_host_are_not_lost() -> None:
    board = "../tiles/native/board/hosts/membership.h"
    silent, alone, lost = (milliseconds(board, name) for name in ("SILENT_MS", "ALONE_MS", "LOST_MS"))
    assert silent < BUSY < alone < lost and lost - alone >= 3.0


def test_a_busy_leader_keeps_its_lease() -> None:
    """The server ends its transactions before another may lead."""
    assert BUSY < database.IDLE_SECONDS < lease.LEASE_SECONDS


def test_who_starts_a_program_at_a_node_may_wait_for_a_processor() -> None:
    assert milliseconds("init/session.c", "ANSWER_MS") > BUSY


def test_a_connection_outlasts_what_a_node_waits_for_its_memory() -> None:
    with socket.create_server(("127.0.0.1", 0)) as far, socket.create_connection(far.getsockname()) as end:
        netns_socket.tune(end, sends=True)
        bound = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
        assert bound > mover._DEADLINE >= 60
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < bound


class Receiver:
    """A group of the receiver of a node's memory, which works for so many looks, and never if it hangs."""

    def __init__(self, looks: int, works: bool) -> None:
        self.left, self.works, self.killed = looks, works, False

    def pids(self) -> list[int]:
        self.left -= 1
        return [1] if self.left > 0 else []

    def frozen(self) -> bool:
        return False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("works", [True, False])
def test_a_node_that_fetches_for_long_is_given_up_only_when_its_receiver_hangs(
    monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    group, receiver = Receiver(10**6, True), Receiver(40, works)
    arrival = local_arrival.LocalArrival.__new__(local_arrival.LocalArrival)
    for name, value in (("_thawed", True), ("_group", group), ("_memory", None), ("_pager_group", receiver)):
        setattr(arrival, name, value)
    arrival._timeouts = MoveTimeouts(1 << 20)

    def work_of(_: Callable[[], Any]) -> Callable[[], bool]:
        return lambda: works

    monkeypatch.setattr(local_arrival, "fetch_timeouts", lambda _: (0.05, 100.0))
    monkeypatch.setattr(local_arrival, "work_of", work_of)
    monkeypatch.setattr(local_arrival, "_HANG_MARGIN", 0.05)
    if works:
        assert arrival.fill() is None and not group.killed
    else:
        with pytest.raises(Failed, match="stalled"):
            arrival.fill()
        assert group.killed


def test_a_daemon_waits_for_a_client_that_looks_whether_one_runs(tmp_path: Path) -> None:
    place = Here("lock", tmp_path)
    place.run.mkdir()
    with open(place.run / "lock", "w") as client:
        fcntl.flock(client, fcntl.LOCK_SH)
        got = list[InstanceLock]()
        daemon = threading.Thread(target=lambda: got.append(InstanceLock(place, patience=0.02)))
        daemon.start()
        daemon.join(0.2)
        assert not got and daemon.is_alive()
        fcntl.flock(client, fcntl.LOCK_UN)
        daemon.join(60)
        assert got
        with pytest.raises(Refused, match="runs already"):
            InstanceLock(place, patience=0.02)
        got[0].release()


def test_a_standby_does_not_wait_for_clients(tmp_path: Path) -> None:
    place = Here("lock", tmp_path)
    place.run.mkdir()
    with open(place.run / "lock", "w") as client:
        fcntl.flock(client, fcntl.LOCK_SH)
        with pytest.raises(Refused):
            InstanceLock(place, patience=0)


# Steps in which a node stops, or is waited for, on a machine that gives no processor (docs/design/0032-bounds.md).


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
