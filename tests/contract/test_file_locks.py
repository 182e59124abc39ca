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
from wherry.job.wire import Endpoint
from wherry.model.owner import Owner
from wherry.node.container import ContainerDriver
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

    def __init__(self, stand: Stand, directory: Path) -> None:
        self.stand, self.directory = stand, directory
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-O1", "-Wall", "-static", str(Path(__file__).with_name("locks.c")), "-o", self.program], check=True)
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
        agent = Endpoint(node.netns, node.node.address, node.key.get_secret_value())
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
        await_true(self._ready.exists)

    def result(self) -> tuple[int, int]:
        """How often it tried, and how often it got it."""
        Path(f"{self._ready}.go").touch()
        assert self._process.wait(SECONDS) == 0
        tries, got = self._ready.read_text().split()
        return int(tries), int(got)


@pytest.fixture
def locks(nodes: tuple[NodeDriver, Fabric]) -> Iterator[Locks]:
    assert isinstance(nodes[0], ContainerDriver)
    with tempfile.TemporaryDirectory(prefix="wherry-", dir="/var/tmp") as name:  # noqa: S108 - shared with the node
        stand = Stand(*nodes)
        try:
            if reason := stand.driver.unmovable(stand.here, stand.there):
                pytest.skip(reason)
            yield Locks(stand, Path(name))
        finally:
            stand.remove()


@pytest.mark.parametrize("kind", ["flock", "posix", "ofd"])
def test_a_lock_on_a_file_of_the_nodes_own(locks: Locks, kind: str) -> None:
    lock = f"{kind}:write:10:20:{PRIVATE}"
    ready = locks.begin("hold", lock)
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
        assert locks.inside(f"{locks.program} try {lock}") == 1
    locks.end(ready)
    assert locks.inside(f"{locks.program} try {lock}") == 0


@pytest.mark.parametrize("kind", ["flock", "ofd"])
@pytest.mark.parametrize("act", ["hold", "fork", "map"])
def test_an_exclusive_lock_on_a_shared_file_has_one_holder_at_each_instant(locks: Locks, kind: str, act: str) -> None:
    lock = f"{kind}:write:10:20:{locks.file}"
    ready = locks.begin(act, lock)
    watcher = Watcher(locks, lock)
    for _ in range(3):
        locks.move()
        assert locks.runs(ready)
    tries, got = watcher.result()
    assert tries > 1000 and got == 0
    locks.end(ready)
    assert locks.is_free(lock)


@pytest.mark.parametrize("kind", ["flock", "posix", "ofd"])
def test_a_shared_lock_on_a_shared_file_is_never_let_go(locks: Locks, kind: str) -> None:
    ready = locks.begin("hold", f"{kind}:read:0:0:{locks.file}")
    watcher = Watcher(locks, f"{kind}:write:0:0:{locks.file}")
    for _ in range(2):
        locks.move()
        assert locks.runs(ready)
    tries, got = watcher.result()
    assert tries > 1000 and got == 0
    locks.end(ready)
    assert locks.is_free(f"{kind}:write:0:0:{locks.file}")
