"""Locks on files, held while a container is moved: carried over without a moment without them, or refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_node import Stand

from wherry.base.errors import WherryError
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="container nodes need root"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the program that takes locks"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module"),
]
PRIVATE = "/tmp/wherry-locked"  # noqa: S108 - the node's own
ROOT = Owner(uid=0, gid=0, home="/", cwd="/")
SECONDS = 20


def await_true(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Locks:
    """A node that is shown a directory, and programs in it and beside it that take locks."""

    def __init__(self, stand: Stand, directory: Path, program: Path) -> None:
        self.stand, self.directory = stand, directory
        self.outside: list[subprocess.Popen[bytes]] = []
        shutil.copy(program, self.program)
        stand.here, stand.there = (
            place.model_copy(update={"binds": (str(directory),)}) for place in (stand.here, stand.there)
        )
        stand.driver.start(stand.here)

    @property
    def program(self) -> str:
        return str(self.directory / "locks")

    @property
    def file(self) -> str:
        return str(self.directory / "file")

    def inside(self, script: str) -> int:
        node = self.stand.here
        agent = AgentEndpoint(node.netns, node.node.address, node.key.get_secret_value())
        return agent.run(["/bin/sh", "-c", script], ROOT, {"PATH": "/usr/bin:/bin"}, SECONDS).code

    def begin(self, act: str, *locks: str, name: str = "held") -> Path:
        """Starts a program in the node; its report."""
        ready = self.directory / name
        words = " ".join([self.program, act, str(ready), f"{ready}.go", *locks])
        assert self.inside(f"setsid {words} </dev/null >/dev/null 2>{ready}.err &") == 0
        await_true(ready.exists)
        return ready

    def end(self, ready: Path) -> None:
        Path(f"{ready}.go").touch()
        await_true(lambda: ready.read_text() == "released\n")

    def runs(self, ready: Path) -> bool:
        before = ready.read_text()
        deadline = time.monotonic() + SECONDS
        while ready.read_text() == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return ready.read_text() != before

    def is_free(self, lock: str) -> bool:
        """True when one outside of the node can have it."""
        return subprocess.run([self.program, "try", lock], check=False).returncode == 0

    def move(self) -> None:
        stand = self.stand
        mover = stand.mover()
        try:
            for step in stand.steps(mover):
                step()
        except WherryError:
            stand.take_back(mover)
            raise
        stand.finish(mover)
        stand.assert_runs_at(stand.there)
        stand.here, stand.there = stand.there, stand.here

    def refused(self) -> str:
        """Why a move is refused; the node must not have stood for it."""
        mover = self.stand.mover()
        with pytest.raises(WherryError) as caught:
            mover.prepare()
        self.stand.take_back(mover)
        self.stand.assert_runs_at(self.stand.here)
        assert caught.value.next
        return str(caught.value)


class Watcher:
    """A program outside of the node that tries to get a lock every 100 us."""

    def __init__(self, locks: Locks, lock: str, name: str = "watched") -> None:
        self._ready = locks.directory / name
        words = [locks.program, "watch", str(self._ready), f"{self._ready}.go", lock]
        self._process = subprocess.Popen(words)
        locks.outside.append(self._process)
        await_true(self._ready.exists)

    def result(self) -> tuple[int, int]:
        """How often it tried, and how often it got it."""
        Path(f"{self._ready}.go").touch()
        assert self._process.wait(SECONDS) == 0
        tries, got = self._ready.read_text().split()
        return int(tries), int(got)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("locks") / "locks"
    flags = ["-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["gcc", *flags, str(Path(__file__).with_name("locks.c")), "-o", str(built)], check=True)
    return built


@pytest.fixture
def locks(nodes: tuple[NodeDriver, Fabric], program: Path) -> Iterator[Locks]:
    assert isinstance(nodes[0], ContainerDriver)
    with tempfile.TemporaryDirectory(prefix="wherry-", dir="/var/tmp") as name:  # noqa: S108 - shared with the node
        stand = Stand(*nodes)
        try:
            if reason := stand.driver.move_obstacle(stand.here, stand.there):
                pytest.skip(reason)
            made = Locks(stand, Path(name), program)
            try:
                yield made
            finally:
                for process in made.outside:
                    process.kill()
                    process.wait()
        finally:
            stand.remove()


def on(file: str, *kinds: str, mode: str = "write") -> list[str]:
    """A lock of each kind, on a file of its own."""
    return [f"{kind}:{mode}:10:20:{file}.{kind}" for kind in kinds]


def test_locks_on_private_files_move_with_the_node(locks: Locks) -> None:
    names = on(PRIVATE, "flock", "posix", "ofd")
    ready = locks.begin("hold", *names)
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
        assert [locks.inside(f"{locks.program} try {lock}") for lock in names] == [1, 1, 1]
    locks.end(ready)
    assert [locks.inside(f"{locks.program} try {lock}") for lock in names] == [0, 0, 0]


@pytest.mark.parametrize("act", ["hold", "fork", "map", "nameless"])
def test_exclusive_lock_on_a_shared_file_has_one_holder_at_each_instant(locks: Locks, act: str) -> None:
    names = on(locks.file, "flock", "ofd")
    ready = locks.begin(act, *names)
    watchers = [Watcher(locks, lock, f"watched{number}") for number, lock in enumerate(names)]
    for _ in range(3):
        locks.move()
        assert locks.runs(ready)
    results = [watcher.result() for watcher in watchers]
    assert all(tries > 500 and got == 0 for tries, got in results), results
    locks.end(ready)
    assert all(locks.is_free(lock) for lock in names)


def test_shared_lock_on_a_shared_file_is_never_released(locks: Locks) -> None:
    names = on(locks.file, "flock", "posix", "ofd")
    ready = locks.begin("hold", *on(locks.file, "flock", "posix", "ofd", mode="read"))
    watchers = [Watcher(locks, lock, f"watched{number}") for number, lock in enumerate(names)]
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
    results = [watcher.result() for watcher in watchers]
    assert all(tries > 300 and got == 0 for tries, got in results), results
    locks.end(ready)
    assert all(locks.is_free(lock) for lock in names)


def test_several_locks_on_one_file_move_with_the_node(locks: Locks) -> None:
    """Two descriptions of one name, each with its own range, a shared flock of one of them, a reader beside them."""
    own = [f"ofd:write:0:10:{locks.file}", f"ofd:write:100:10:{locks.file}", f"flock:read:0:0:{locks.file}"]
    ready = locks.begin("hold", *own, f"posix:read:200:10:{locks.file}")
    watched = [*own[:2], f"flock:write:0:0:{locks.file}", f"posix:write:200:10:{locks.file}"]
    watchers = [Watcher(locks, lock, f"watched{number}") for number, lock in enumerate(watched)]
    free = Watcher(locks, f"ofd:write:50:10:{locks.file}", "free")
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
    assert [watcher.result()[1] for watcher in watchers] == [0, 0, 0, 0]
    assert free.result()[1] > 0, "what nobody locked stays free"
    locks.end(ready)
    assert all(locks.is_free(lock) for lock in watched)


def test_node_moves_again_after_the_lock_was_released(locks: Locks) -> None:
    """The description that went along stays one of a mount that is gone, and must still be found at the next move."""
    ready = locks.begin("remap", f"flock:write:0:0:{locks.file}")
    locks.move()
    Path(f"{ready}.go").touch()
    await_true(lambda: ready.read_text() == "released\n")
    for _ in range(2):
        locks.move()
        assert locks.is_free(f"flock:write:0:0:{locks.file}")
        Path(f"{ready}.on").touch()
        await_true(lambda: ready.read_text() == "mapped\n")
    locks.move()


def test_waiters_for_a_lock_keep_waiting_after_a_move(locks: Locks) -> None:
    """One program outside holds them all; one in the node waits for each."""
    names = on(locks.file, "flock", "posix", "ofd")
    outside, go = locks.directory / "outside", locks.directory / "go"
    holder = subprocess.Popen([locks.program, "hold", str(outside), str(go), *names])
    locks.outside.append(holder)
    await_true(outside.exists)
    waiting = [locks.begin("wait", lock, name=f"waits{number}") for number, lock in enumerate(names)]
    time.sleep(0.1)
    for _ in range(2):
        locks.move()
        time.sleep(0.1)
        assert [ready.read_text() for ready in waiting] == ["waits\n"] * 3
    go.touch()
    assert holder.wait(SECONDS) == 0
    for ready in waiting:
        assert locks.runs(ready)
        locks.end(ready)


def test_waiter_for_a_lock_of_its_own_node_moves_with_it(locks: Locks) -> None:
    names = on(locks.file, "flock", "ofd")
    ready = locks.begin("hold", *names)
    waiting = [locks.begin("wait", lock, name=f"waits{number}") for number, lock in enumerate(names)]
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
    assert [one.read_text() for one in waiting] == ["waits\n"] * 2
    locks.end(ready)
    for one in waiting:
        assert locks.runs(one)
        locks.end(one)


@pytest.mark.parametrize("done", [2, 3, 4])
def test_rolled_back_move_leaves_the_lock_with_the_source(locks: Locks, done: int) -> None:
    """After the freeze, the transfer and the restore; and the next move goes well."""
    names = [f"flock:write:0:0:{locks.file}", f"ofd:write:0:0:{locks.file}2", f"posix:read:0:0:{locks.file}3"]
    ready = locks.begin("hold", *names)
    others = [*names[:2], f"posix:write:0:0:{locks.file}3"]
    watchers = [Watcher(locks, lock, f"watched{number}") for number, lock in enumerate(others)]
    mover = locks.stand.mover()
    for step in locks.stand.steps(mover)[:done]:
        step()
    locks.stand.take_back(mover)
    assert locks.runs(ready)
    locks.move()
    assert locks.runs(ready)
    assert [watcher.result()[1] for watcher in watchers] == [0, 0, 0]
    locks.end(ready)
    assert all(locks.is_free(lock) for lock in others)


@pytest.mark.parametrize("done", [3, 4])
def test_new_mover_rolls_back_or_finishes_a_move_with_locks(locks: Locks, done: int) -> None:
    lock = f"flock:write:0:0:{locks.file}"
    ready, stand = locks.begin("hold", lock), locks.stand
    watcher = Watcher(locks, lock)
    first = stand.mover()
    for step in stand.steps(first)[:done]:
        step()
    assert isinstance(first, ContainerMover)
    first._locks.close()  # as the kernel does when the daemon is killed
    anew = stand.mover()
    if done == 3:
        stand.take_back(anew)
    else:
        stand.finish(anew)
        stand.here, stand.there = stand.there, stand.here
    first.close()
    assert locks.runs(ready) and watcher.result()[1] == 0
    locks.end(ready)
    assert locks.is_free(lock)


REFUSED = [
    ("hold", "posix:write:5:7:FILE", "(locks) of c-0 has an exclusive fcntl lock on FILE"),
    ("hold", "lease:write:0:0:FILE", "a lease on FILE"),
    ("hold", f"lease:write:0:0:{PRIVATE}", f"a lease on {PRIVATE}"),
    ("hold", "flock:write:0:0:DIRECTORY", "an exclusive flock on DIRECTORY: it is on a directory"),
    ("map", "posix:read:0:0:FILE", "a shared fcntl lock on FILE: the file is mapped"),
    ("map", f"posix:write:0:0:{PRIVATE}", f"an exclusive fcntl lock on {PRIVATE}: the file is mapped"),
    ("mapped", "flock:write:0:0:FILE", "(locks) of c-0 has an exclusive flock on inode"),
    ("mapped", "ofd:read:0:0:FILE", "a shared OFD lock on inode"),
]


def test_locks_that_cannot_be_moved_are_refused_by_name(locks: Locks) -> None:
    for number, (act, lock, words) in enumerate(REFUSED):
        names = [text.replace("FILE", locks.file).replace("DIRECTORY", str(locks.directory)) for text in (lock, words)]
        ready = locks.begin(act, names[0], name=f"held{number}")
        why = locks.refused()
        assert names[1] in why
        assert locks.runs(ready)
        locks.end(ready)
    locks.move()


def test_move_waits_for_a_lock_that_is_held_briefly(locks: Locks) -> None:
    """As MPI-IO takes them. The node is frozen while the lock is free; never while a third could slip in."""
    ready = locks.begin("pulse", f"posix:write:0:0:{locks.file}")
    for _ in range(3):
        locks.move()
        assert locks.runs(ready)


def test_restored_copy_may_release_a_lock_and_take_another(locks: Locks) -> None:
    """The killed source, whose memory takes the kernel a while, is not in its way."""
    file, stand = locks.file, locks.stand
    kinds = (f"posix:read:0:0:{file}", f"flock:read:0:0:{file}2", f"flock:write:0:0:{file}3", f"ofd:write:0:0:{file}4")
    ready = locks.begin("upgrade", *kinds)
    mover = stand.mover()
    for step in stand.steps(mover):
        step()
    mover.release()
    mover.thaw()  # before the network, so that the copy comes as soon as it can
    await_true(lambda: ready.read_text() != "holds\n")
    stand.finish(mover)
    assert ready.read_text() == "upgraded\n"
