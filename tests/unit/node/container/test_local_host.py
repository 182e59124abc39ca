"""A container's move at a local host: the remains of a failed step, a roll-back and a killed daemon."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

import waiting
from wherry.base.errors import Code, Failed, LostContact
from wherry.base.paths import native_library
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.records import Node
from wherry.node.container import local_arrival, local_departure, progress_bounds
from wherry.node.container.criu.engine import CriuDump, CriuRestore, work_of_group
from wherry.node.container.criu.rpc import Worker
from wherry.node.container.file_tree import TreeSender
from wherry.node.container.host import Channel, ContainerHosts
from wherry.node.container.local_arrival import LocalArrival
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mounts import Layout
from wherry.node.container.movable import move_obstacle
from wherry.node.container.mover import ContainerMover
from wherry.node.container.rate_limit import RateLimit
from wherry.node.container.streams import Receiver, end_receivers
from wherry.node.container.warm_connections import Underlay
from wherry.node.protocol import Placement

_UNDERLAY = Underlay(cast(Fabric, None), "a1")
_NOTHING = Failed(Code.TIMED_OUT, "it does not end")


def _place(host: str) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, address="10.0.0.1", mac="02:00:00:00:00:01",
        cpus=1.0, memory=1 << 28,
    )  # fmt: skip
    group = f"wherry-test-{os.getpid()}/{host}/c-0"
    return Placement(node=node, host=host, netns="/proc/self/ns/net", cgroup=group, key=SecretStr("k"), user="0:0:")


def _remove() -> None:
    raise _NOTHING


@pytest.fixture
def departure(tmp_path: Path) -> Iterator[LocalDeparture]:
    """The source's half of a move of a node that does not run."""
    place = _place("a1")
    group = Cgroup(f"{place.cgroup}.pager")
    yield LocalDeparture(_UNDERLAY, place, Layout(tmp_path / "a1", place.owner), group, _remove)
    Cgroup(f"wherry-test-{os.getpid()}").remove()


@pytest.fixture
def arrival(tmp_path: Path) -> Iterator[LocalArrival]:
    """The destination's half."""
    place = _place("b1")
    layout, groups = (
        Layout(tmp_path / "b1", place.owner),
        (Cgroup(f"{place.cgroup}-engine"), Cgroup(f"{place.cgroup}.pager")),
    )
    yield LocalArrival(_UNDERLAY, place, layout, groups, _remove)
    Cgroup(f"wherry-test-{os.getpid()}").remove()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    with near, far:
        yield near, far


Ends = tuple[socket.socket, socket.socket]


def begin_files(departure: LocalDeparture, ends: Ends) -> TreeSender:
    """Begins to send the node's files over the first of the ends."""

    class Connections:
        def take(self, channel: Channel) -> socket.socket:
            assert channel == Channel.TREE
            return ends[0]

    departure._begin_files(cast(Any, Connections()))
    return departure._files[0]


def test_a_receiver_that_is_given_up_ends_with_the_move(arrival: LocalArrival, ends: Ends) -> None:
    receiver = arrival._receivers[Channel.PAGES] = Receiver("pages", ends[1], ["sleep", "100"], stdin=True)

    def cancelled(_text: str) -> bool:
        raise Failed(Code.CANCELLED, "cancelled")

    with pytest.raises(Failed, match="cancelled"):
        arrival._await(Channel.PAGES, cancelled)
    arrival.close()
    try:
        assert receiver._process.poll() is not None
    finally:
        receiver.close()


def test_all_is_closed_when_the_filling_fails(arrival: LocalArrival, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's limits, the connections, and the priority of the thread, which others use afterwards."""
    closed = list[str]()

    def fails() -> None:
        raise _NOTHING

    monkeypatch.setattr(arrival, "_end_memory", fails)
    monkeypatch.setattr(local_arrival, "restore_limits", lambda _: closed.append("limits"))
    monkeypatch.setattr(local_arrival, "unmount_below", lambda _: closed.append("images"))
    arrival._connections = cast(Any, SimpleNamespace(close=lambda: closed.append("connections")))
    arrival._priority = cast(Any, SimpleNamespace(reset=lambda: closed.append("priority")))
    with pytest.raises(Failed, match="does not end"):
        arrival.close()
    assert closed == ["limits", "connections", "priority", "images"] and arrival._connections is None


def test_what_a_receiver_forked_ends_with_it(ends: Ends) -> None:
    """As CRIU does while it starts; its child would keep the pipe of the error output open."""
    script = "exec 3<&0; sleep 1000 & echo forked >&2; exec sleep 1000"
    receiver = Receiver("pages", ends[1], ["sh", "-c", script], stdin=True)
    assert receiver._process.stderr and receiver._process.stderr.readline() == b"forked\n"
    receiver.close()
    receiver.close()
    ends[0].settimeout(waiting.bound())
    assert ends[0].recv(1) == b"", "which the last process with the other end has closed"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is given up by itself before a test is."""
    for name in ("STALL", "STALL_SENDING", "TOTAL"):
        monkeypatch.setattr(progress_bounds, name, waiting.bound())


def test_a_dump_that_fails_is_reported_at_once_while_the_tree_is_sent(
    departure: LocalDeparture, ends: Ends, patient: None
) -> None:
    departure._layout.private.mkdir(parents=True)
    (departure._layout.private / "large").write_bytes(os.urandom(1 << 20) * 32)
    files = begin_files(departure, ends)
    engine = departure._engine = CriuDump(departure._placement, departure._layout, "", departure._limit)
    with pytest.raises(Failed, match="has no first process"):
        departure.dump(lambda _: False)
    assert departure._trees and engine.worker is None
    with pytest.raises(Failed, match="program that sends the files ended early"):
        departure._trees[0].result()
    files.close()


def test_a_dump_that_fails_does_not_wait_for_the_comparison_of_files(
    departure: LocalDeparture, ends: Ends, patient: None
) -> None:
    """The comparison sends nothing, and so does not see that its connection is cut; here it is stopped."""
    departure._layout.private.mkdir(parents=True)
    files = begin_files(departure, ends)
    departure._engine = CriuDump(departure._placement, departure._layout, "", departure._limit)
    os.kill(files.pid, signal.SIGSTOP)
    with pytest.raises(Failed, match="has no first process"):
        departure.dump(lambda _: False)
    assert departure._trees and files._process.returncode is not None
    with pytest.raises(Failed, match="program that sends the files ended early"):
        departure._trees[0].result()
    files.close()


def test_a_program_of_the_files_that_does_not_begin_ends_with_the_move(departure: LocalDeparture, ends: Ends) -> None:
    with pytest.raises(Failed, match="program that sends the files ended early"):
        begin_files(departure, ends)  # the node has no directory of files
    (files,) = departure._files
    departure._files = []
    files.close()
    assert files.stream._end.fileno() < 0


def test_what_cannot_be_ended_at_the_destination_leaves_no_lock_and_no_descriptor(
    departure: LocalDeparture, arrival: LocalArrival, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt may be another mover's, which has none of them."""

    class Hosts:
        def of(self, name: str) -> Hosts:
            return self

        def pager_obstacle(self) -> str:
            return "there is none"

        def departure(self, place: Placement, paged: bool) -> LocalDeparture:
            return departure

        def arrival(self, place: Placement, paged: bool) -> LocalArrival:
            return arrival

    mover = ContainerMover(cast(ContainerHosts, Hosts()), departure._placement, arrival._placement)
    engine = arrival._engine = CriuRestore(arrival._placement, arrival._layout, "", arrival._own_group)
    engine._descriptors["net"] = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(Cgroup, "kill", lambda *_: (_ for _ in ()).throw(_NOTHING))
    with open(tmp_path / "file", "w") as file, open(tmp_path / "file") as again:
        fcntl.flock(file, fcntl.LOCK_EX)
        departure._locks._external["file"] = os.dup(file.fileno())
        with pytest.raises(Failed, match="does not end"):
            mover.roll_back()
        file.close()  # the node's program
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not engine._descriptors


class Halves:
    """Both halves of a move whose destination is silent; records the calls of the source."""

    def __init__(self) -> None:
        self.asked = list[str]()

    def of(self, name: str) -> Halves:
        return self

    def pager_obstacle(self) -> str:
        return "there is none"

    def departure(self, place: Placement, paged: bool) -> Halves:
        return self

    def arrival(self, place: Placement, paged: bool) -> Halves:
        return self

    def abort(self) -> None:
        self.asked.append("abort")

    def resume(self) -> None:
        self.asked.append("resume")

    def close(self) -> None:
        self.asked.append("close")

    def kill(self) -> None:
        raise LostContact(Code.UNREACHABLE, "host a2 does not answer", "a cut", "wherry host show a2")


def test_source_runs_at_once_when_the_destination_is_silent() -> None:
    """And the move is not rolled back yet: its remains there are still to be removed."""
    halves = Halves()
    mover = ContainerMover(cast(ContainerHosts, halves), _place("a1"), _place("a2"))
    with pytest.raises(LostContact, match="c-0 runs on a1, and the remains of its move at a2 are still there: host a2"):
        mover.roll_back()
    assert halves.asked == ["abort", "resume", "close"]


def test_what_does_not_end_hides_no_error_of_criu(arrival: LocalArrival) -> None:
    class Stuck:
        def work(self) -> object:
            return None

        def begin(self, *_: object) -> None:
            pass

        def finish(self, *_: object) -> int:
            raise Failed(Code.MOVE_FAILED, "CRIU reported an error", "the first one")

        def kill(self) -> None:
            raise _NOTHING

        close = kill

    arrival._layout.images.mkdir(parents=True)
    engine = CriuRestore(arrival._placement, arrival._layout, "", arrival._own_group)
    engine.images.mkdir()
    engine._descriptors["net"] = os.open("/proc/self/ns/net", os.O_RDONLY)
    worker = engine.worker = cast(Worker, Stuck())
    with pytest.raises(Failed, match="the first one"):
        engine.restore((), lambda: None)
    assert engine.worker is worker  # the roll-back ends it
    engine.worker = None
    engine.close()


class Stream:
    """A sender that notes its rate."""

    def __init__(self) -> None:
        self.rate = 0.0

    def limit_rate(self, rate: float) -> None:
        self.rate = rate

    def round_trip(self) -> float:
        return 0.0

    traffic = round_trip
    send_tree = cut = close = sent = lambda self, *_: 0


def test_the_last_pass_shares_the_rate_with_what_is_sent_beside_it(departure: LocalDeparture) -> None:
    dumping, sending, rates = threading.Event(), threading.Event(), list[float]()

    class Memory:
        stream = Stream()
        work = begin_last = end_last = close = lambda *_: None

    class Engine:
        images = departure._layout.images

        def dump_paged(self, *_: object) -> None:
            assert sending.wait(30)
            rates.extend((Memory.stream.rate, Files.stream.rate))
            dumping.set()

        close = lambda _: None  # noqa: E731 - not a function of this test

    class Files:
        stream, size = Stream(), 0
        work = close = lambda *_: None

        def last(self, *_: object) -> int:
            sending.set()
            assert dumping.wait(30)
            return 0

    departure._limit = RateLimit(100.0)
    departure._memory, departure._engine = cast(Any, Memory()), cast(Any, Engine())
    departure._files = [cast(Any, Files())]
    departure._senders = cast(Any, {Channel.IMAGES: Stream()})
    departure.dump(lambda _: True)
    departure.send(lambda _: True)
    assert rates == [50.0, 50.0] and not departure._limit._sending


_TRACES_ITS_CHILD = """
import ctypes, subprocess, sys
sys.stdin.readline()
child = subprocess.Popen(["sleep", "100"])
assert ctypes.CDLL(None).ptrace(0x4206, child.pid, 0, 0) == 0  # PTRACE_SEIZE
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
"""


@contextmanager
def traced_process(group: Cgroup, tracer_too: bool, **environment: str) -> Iterator[Callable[[], None]]:
    """A process of the group, with its tracer if `tracer_too`; yields a function that ends both."""
    group.create()
    words = [sys.executable, "-c", _TRACES_ITS_CHILD]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(words, env={**os.environ, **environment}, **pipes) as tracer:
        assert tracer.stdin and tracer.stdout
        if tracer_too:
            group.add(tracer.pid)
        tracer.stdin.write("\n")
        pid = int(tracer.stdout.readline())
        group.add(pid)

        def end() -> None:
            if tracer.poll() is None:
                tracer.communicate("\n")

        assert pid in group.pids() and (tracer.pid in group.pids()) == tracer_too
        yield end
        end()


@pytest.mark.parametrize("in_the_node", [True, False])
def test_a_debugger_is_no_engine_and_refused(
    departure: LocalDeparture, monkeypatch: pytest.MonkeyPatch, in_the_node: bool
) -> None:
    """Wherever it runs: a node that is given back does not wait for the end of an administrator's strace."""

    def sleep(_: float) -> None:
        pytest.fail("the debugger is waited for")

    monkeypatch.setattr(local_departure, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    group = Cgroup(departure._placement.cgroup)
    with traced_process(group, in_the_node):
        departure._await_engine()
        assert "traced" in move_obstacle(group.pids())


def test_a_dump_that_outlived_its_daemon_is_waited_for(
    departure: LocalDeparture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, waits = Cgroup(departure._placement.cgroup), list[float]()
    with traced_process(group, False, LD_PRELOAD=str(native_library("libwherry-criu.so"))) as end:

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            end()

        monkeypatch.setattr(local_departure, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
        departure._await_engine()
    assert waits


def test_a_frozen_node_shows_no_progress(departure: LocalDeparture) -> None:
    group = Cgroup(departure._placement.cgroup)
    group.create()
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process:
        try:
            group.add(process.pid)
            sign = work_of_group(group)
            assert sign()
            group.freeze()
            sign()
            assert not sign()
        finally:
            group.thaw()
            process.kill()


def test_who_waits_for_a_killed_daemons_move_is_ended_and_nobody_else(tmp_path: Path) -> None:
    here, other = tmp_path / "c-0@b1", tmp_path / "c-0@b10"
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"]
    words = [
        ("page-server", "--images-dir", f"{here}/images/criu"),
        ("--extract", f"--directory={here}/private"),
        ("--extract", f"--directory={other}/private"),
        ("--create", f"--directory={here}/private"),
    ]
    processes = [subprocess.Popen([*sleep, *more], stdout=subprocess.PIPE) for more in words]
    try:
        for process in processes:  # until it runs with its words
            assert process.stdout and process.stdout.readline()
        end_receivers(here)
        assert [processes[index].wait(20) for index in (0, 1)] == [-9, -9]
        assert [processes[index].poll() for index in (2, 3)] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# The freeze of a node is tried again for a while, and at last with all patience.


@pytest.mark.parametrize("attempt", [0.3, 0.01])
def test_the_last_attempt_is_the_patient_one(monkeypatch: pytest.MonkeyPatch, attempt: float) -> None:
    """Also when the attempt before it ends behind the time for all of them."""
    now, tried = [100.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(local_departure, "time", clock)
    departure: Any = object.__new__(LocalDeparture)
    departure._group = SimpleNamespace(prefer=lambda _: None, limit=lambda *_: None, thaw=lambda: None)
    departure._placement = SimpleNamespace(node=SimpleNamespace(memory=1))

    def obstacle(patience: float) -> Failed:
        tried.append(patience)
        now[0] += attempt
        return Failed(Code.FAILED, "it is not frozen")

    departure._obstacle = obstacle
    with pytest.raises(Failed, match="is not frozen"):
        departure.freeze()
    assert len(tried) > 2 and tried[-1] == 5.0 and set(tried[:-1]) == {0.25}
