"""A container's mover: what a failed step, a roll-back and a killed daemon leave."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pydantic import SecretStr

from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.model.records import Node
from wherry.node.container.criu.engine import work_of_group
from wherry.node.container.criu.rpc import Worker
from wherry.node.container.mounts import Layout
from wherry.node.container.movable import move_obstacle
from wherry.node.container.mover import ContainerMover
from wherry.node.container.streams import Stream
from wherry.node.container.transport import end_receivers
from wherry.node.protocol import Placement, Usage

_NOTHING = Failed(Code.TIMED_OUT, "it does not end")


def _place(host: str) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, host=host, address="10.0.0.1", mac="02:00:00:00:00:01",
        cpus=1.0, memory=1 << 28,
    )  # fmt: skip
    group = f"wherry-test-{os.getpid()}/{host}/c-0"
    return Placement(node=node, host=host, netns="/proc/self/ns/net", cgroup=group, key=SecretStr("k"), user="0:0:")


class _Driver:
    """Placements below a directory; their engines' cgroups cannot be asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def layout(self, place: Placement) -> Layout:
        return Layout(self._directory / place.host, place.owner)

    def engine_group(self, place: Placement) -> Cgroup:
        return Cgroup(f"{place.cgroup}-engine")

    def stop(self, place: Placement) -> None:
        raise _NOTHING

    def usage(self, place: Placement) -> Usage:
        raise _NOTHING


@pytest.fixture
def mover(tmp_path: Path) -> Iterator[ContainerMover]:
    """A mover between two placements that do not run."""
    source, destination = _place("a1"), _place("b1")
    yield ContainerMover(_Driver(tmp_path), cast(Fabric, None), source, destination)
    Cgroup(f"wherry-test-{os.getpid()}").remove()


def _stream(what: str) -> Stream:
    """A stream whose receiver reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return Stream(what, (near, server.accept()[0]), ["sleep", "100"], stdin=True)


def test_a_receiver_that_is_given_up_ends_with_the_move(mover: ContainerMover) -> None:
    stream = mover._transport.streams["tree"] = _stream("tree")

    def cancelled() -> None:
        raise Failed(Code.CANCELLED, "cancelled")

    mover._transport.cancelled = cancelled
    with pytest.raises(Failed, match="cancelled"):
        mover._transport.finish("tree")
    mover._transport.close()
    try:
        assert stream._receiver.poll() is not None
    finally:
        stream.close()


def test_a_dump_that_fails_is_reported_at_once_while_the_tree_is_sent(
    mover: ContainerMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    mover._from.private.mkdir(parents=True)
    (mover._from.private / "large").write_bytes(os.urandom(1 << 20) * 32)
    mover._transport.streams["tree"] = _stream("tree")

    def dump(*_: object) -> None:
        raise Failed(Code.MOVE_FAILED, "CRIU could not dump")

    monkeypatch.setattr(mover._engine, "dump", dump)
    began = time.monotonic()
    try:
        with pytest.raises(Failed, match="CRIU could not dump"):
            mover.transfer()
        assert time.monotonic() - began < 1.5  # less than what a connection may stall
    finally:
        mover._transport.close()


def test_a_roll_back_that_fails_leaves_no_lock_and_no_descriptor(
    mover: ContainerMover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt may be another mover's, which knows none of them."""
    mover._engine._descriptors["net"] = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(Cgroup, "kill", lambda *_: (_ for _ in ()).throw(_NOTHING))
    with open(tmp_path / "file", "w") as file, open(tmp_path / "file") as again:
        fcntl.flock(file, fcntl.LOCK_EX)
        mover._locks._foreign["file"] = os.dup(file.fileno())
        with pytest.raises(Failed, match="does not end"):
            mover.roll_back()
        file.close()  # the node's program
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not mover._engine._descriptors


def test_what_does_not_end_hides_no_error_of_criu(mover: ContainerMover) -> None:
    class Stuck:
        def work(self) -> object:
            return None

        def request(self, *_: object) -> int:
            raise Failed(Code.MOVE_FAILED, "CRIU reported an error", "the first one")

        def kill(self) -> None:
            raise _NOTHING

        close = kill

    mover._to.images.joinpath("0").mkdir(parents=True)
    mover._engine._descriptors["net"] = os.open("/proc/self/ns/net", os.O_RDONLY)
    worker = mover._engine.workers["restore"] = cast(Worker, Stuck())
    with pytest.raises(Failed, match="the first one"):
        mover._engine.restore(())
    assert mover._engine.workers == {"restore": worker}  # the roll-back ends it
    mover._engine.workers.clear()
    mover._engine.close()


_TRACES_ITS_CHILD = """
import ctypes, subprocess, sys
sys.stdin.readline()
child = subprocess.Popen(["sleep", "100"])
assert ctypes.CDLL(None).ptrace(0x4206, child.pid, 0, 0) == 0  # PTRACE_SEIZE
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
"""


def test_a_debugger_in_the_node_is_no_engine_and_refused(mover: ContainerMover) -> None:
    group = Cgroup(mover._source.cgroup)
    group.create()
    words = [sys.executable, "-c", _TRACES_ITS_CHILD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as tracer:
        assert tracer.stdin and tracer.stdout
        group.add(tracer.pid)
        tracer.stdin.write("\n")
        assert int(tracer.stdout.readline()) in group.pids()
        began = time.monotonic()
        mover._await_engine()
        assert time.monotonic() - began < 5.0
        assert "traced" in move_obstacle(group.pids())
        tracer.stdin.write("\n")


def test_a_frozen_node_shows_no_progress(mover: ContainerMover) -> None:
    group = Cgroup(mover._source.cgroup)
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
        ("page-server", "--images-dir", f"{here}/images/0"),
        ("--extract", f"--directory={here}/private"),
        ("--extract", f"--directory={other}/private"),
        ("--create", f"--directory={here}/private"),
    ]
    processes = [subprocess.Popen([*sleep, *more], stdout=subprocess.PIPE) for more in words]
    try:
        for process in processes:  # until it is what its words say
            assert process.stdout and process.stdout.readline()
        end_receivers(here)
        assert [processes[index].wait(20) for index in (0, 1)] == [-9, -9]
        assert [processes[index].poll() for index in (2, 3)] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
