"""File locks held during the move of a container: handed over without a gap, or refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_node import SharedNode, shared_directory
from test_node import NodeUnderTest

import waiting
from wherry.base.errors import WherryError
from wherry.fabric.protocol import Fabric
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="container nodes need root"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the program that takes locks"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module"),
]
PRIVATE = "/tmp/wherry-locked"  # noqa: S108 - the node's own


class NodeWithLocks(SharedNode):
    """A node with a shared directory, and programs inside and outside of it that take locks."""

    def __init__(self, node_under_test: NodeUnderTest, directory: Path, program: Path) -> None:
        self.outside: list[subprocess.Popen[bytes]] = []
        shutil.copy(program, directory / "locks")
        super().__init__(node_under_test, directory)

    @property
    def program(self) -> str:
        return str(self.directory / "locks")

    @property
    def file(self) -> str:
        return str(self.directory / "file")

    def start_program(self, mode_of_holding: str, *locks: str, name: str = "held") -> Path:
        """Starts a locking program in the node; returns its report file."""
        report = self.directory / name
        arguments = " ".join([self.program, mode_of_holding, str(report), f"{report}.go", *locks])
        assert self.run_in_node(f"setsid {arguments} </dev/null >/dev/null 2>{report}.err &") == 0
        waiting.until(report.exists)
        return report

    def release_locks(self, report: Path) -> None:
        Path(f"{report}.go").touch()
        waiting.until(lambda: report.read_text() == "released\n")

    def is_counting(self, report: Path) -> bool:
        before = report.read_text()
        return waiting.until(lambda: report.read_text() != before, "another count")

    def can_be_locked(self, lock: str) -> bool:
        """True if a program outside the node can acquire the lock."""
        return subprocess.run([self.program, "try", lock], check=False).returncode == 0

    def move_refusal(self) -> str:
        """The error of a refused move, which must not have frozen the node."""
        mover = self.node_under_test.mover()
        with pytest.raises((WherryError, OSError)) as caught:
            mover.prepare()  # beyond the refusal it finds no network at the destination
        assert isinstance(caught.value, WherryError), f"not refused; all locks: {Path('/proc/locks').read_text()}"
        self.node_under_test.roll_back(mover)
        self.node_under_test.assert_runs_only_at(self.node_under_test.source)
        assert caught.value.next
        return str(caught.value)


class LockProber:
    """A program outside the node that tries to acquire a lock every 100 us."""

    def __init__(self, locks: NodeWithLocks, lock: str, name: str = "watched") -> None:
        self._report = locks.directory / name
        arguments = [locks.program, "watch", str(self._report), f"{self._report}.go", lock]
        self._process = subprocess.Popen(arguments)
        locks.outside.append(self._process)
        waiting.until(self._report.exists)

    def result(self) -> tuple[int, int]:
        """Numbers of attempts and of successful ones."""
        Path(f"{self._report}.go").touch()
        assert self._process.wait(waiting.bound()) == 0
        attempts, acquired = self._report.read_text().split()
        return int(attempts), int(acquired)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("locks") / "locks"
    flags = ["-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["gcc", *flags, str(Path(__file__).with_name("locks.c")), "-o", str(built)], check=True)
    return built


@pytest.fixture
def locks(nodes: tuple[NodeDriver, Fabric], program: Path) -> Iterator[NodeWithLocks]:
    with shared_directory(nodes) as (node_under_test, directory):
        node_with_locks = NodeWithLocks(node_under_test, directory, program)
        try:
            yield node_with_locks
        finally:
            for process in node_with_locks.outside:
                process.kill()
                process.wait()


def on(file: str, *kinds: str, mode: str = "write") -> list[str]:
    """Specifications of one lock of each kind, each on its own file."""
    return [f"{kind}:{mode}:10:20:{file}.{kind}" for kind in kinds]


def test_locks_on_private_files_move_with_the_node(locks: NodeWithLocks) -> None:
    lock_names = on(PRIVATE, "flock", "posix", "ofd")
    report = locks.start_program("hold", *lock_names)
    for _ in range(2):
        locks.move()
        assert locks.is_counting(report)
        assert [locks.run_in_node(f"{locks.program} try {lock}") for lock in lock_names] == [1, 1, 1]
    locks.release_locks(report)
    assert [locks.run_in_node(f"{locks.program} try {lock}") for lock in lock_names] == [0, 0, 0]


def test_locks_that_a_mapping_alone_keeps_move_with_the_node(locks: NodeWithLocks) -> None:
    """As every Java runtime has one."""
    lock_names = [*on(PRIVATE, "flock", "ofd"), f"flock:read:0:0:{PRIVATE}.read"]
    tried = [*lock_names[:2], f"flock:write:0:0:{PRIVATE}.read"]
    report = locks.start_program("mapped", *lock_names)
    for _ in range(3):
        locks.move()
        assert locks.is_counting(report)
        assert [locks.run_in_node(f"{locks.program} try {lock}") for lock in tried] == [1, 1, 1]
        assert locks.run_in_node(f"{locks.program} try {lock_names[2]}") == 0, "a shared lock became an exclusive one"
    locks.release_locks(report)
    waiting.until(lambda: [locks.run_in_node(f"{locks.program} try {lock}") for lock in tried] == [0, 0, 0])


def test_a_lock_of_one_of_two_mappings_of_a_file_is_refused(locks: NodeWithLocks) -> None:
    """The copy's mappings might have one description."""
    report = locks.start_program("mapped", f"flock:read:0:0:{PRIVATE}", f"ofd:read:5:5:{PRIVATE}")
    assert "the file is open or mapped elsewhere in the node, too" in locks.move_refusal()
    assert locks.is_counting(report)
    locks.release_locks(report)


@pytest.mark.parametrize("mode_of_holding", ["hold", "fork", "map", "nameless"])
def test_exclusive_lock_on_a_shared_file_has_one_holder_at_each_instant(
    locks: NodeWithLocks, mode_of_holding: str
) -> None:
    lock_names = on(locks.file, "flock", "ofd")
    report = locks.start_program(mode_of_holding, *lock_names)
    probers = [LockProber(locks, lock, f"watched{number}") for number, lock in enumerate(lock_names)]
    for _ in range(3):
        locks.move()
        assert locks.is_counting(report)
    results = [watcher.result() for watcher in probers]
    assert all(attempts > 500 and acquired == 0 for attempts, acquired in results), results
    locks.release_locks(report)
    assert all(locks.can_be_locked(lock) for lock in lock_names)


def test_shared_lock_on_a_shared_file_is_never_released(locks: NodeWithLocks) -> None:
    lock_names = on(locks.file, "flock", "posix", "ofd")
    report = locks.start_program("hold", *on(locks.file, "flock", "posix", "ofd", mode="read"))
    probers = [LockProber(locks, lock, f"watched{number}") for number, lock in enumerate(lock_names)]
    for _ in range(2):
        locks.move()
        assert locks.is_counting(report)
    results = [watcher.result() for watcher in probers]
    assert all(attempts > 300 and acquired == 0 for attempts, acquired in results), results
    locks.release_locks(report)
    assert all(locks.can_be_locked(lock) for lock in lock_names)


def test_a_lock_that_two_copies_would_keep_is_no_matter_for_post_copy(locks: NodeWithLocks) -> None:
    report = locks.start_program("hold", f"flock:read:0:0:{locks.file}", f"flock:write:0:0:{PRIVATE}")
    with pytest.raises(WherryError, match=f"has a shared flock on {locks.file}") as caught:
        locks.move("post-copy")
    assert "--mode pre-copy" in caught.value.next
    locks.node_under_test.assert_runs_only_at(locks.node_under_test.source)
    assert locks.is_counting(report)
    locks.release_locks(report)
    report = locks.start_program("hold", f"flock:write:0:0:{PRIVATE}", name="private")
    locks.move("post-copy")
    assert locks.is_counting(report)


def test_several_locks_on_one_file_move_with_the_node(locks: NodeWithLocks) -> None:
    """Two open file descriptions of one file with different ranges, a shared flock on one of them, and a read lock."""
    own = [f"ofd:write:0:10:{locks.file}", f"ofd:write:100:10:{locks.file}", f"flock:read:0:0:{locks.file}"]
    report = locks.start_program("hold", *own, f"posix:read:200:10:{locks.file}")
    probed = [*own[:2], f"flock:write:0:0:{locks.file}", f"posix:write:200:10:{locks.file}"]
    probers = [LockProber(locks, lock, f"watched{number}") for number, lock in enumerate(probed)]
    free_prober = LockProber(locks, f"ofd:write:50:10:{locks.file}", "free")
    for _ in range(2):
        locks.move()
        assert locks.is_counting(report)
    assert [watcher.result()[1] for watcher in probers] == [0, 0, 0, 0]
    assert free_prober.result()[1] > 0, "a file without a lock stays free"
    locks.release_locks(report)
    assert all(locks.can_be_locked(lock) for lock in probed)


def test_node_moves_again_after_the_lock_was_released(locks: NodeWithLocks) -> None:
    """The moved file description belongs to an unmounted mount and must still be resolvable in the next move."""
    report = locks.start_program("remap", f"flock:write:0:0:{locks.file}")
    locks.move()
    Path(f"{report}.go").touch()
    waiting.until(lambda: report.read_text() == "released\n")
    for _ in range(2):
        locks.move()
        assert locks.can_be_locked(f"flock:write:0:0:{locks.file}")
        Path(f"{report}.on").touch()
        waiting.until(lambda: report.read_text() == "mapped\n")
    locks.move()


def test_waiters_for_a_lock_keep_waiting_after_a_move(locks: NodeWithLocks) -> None:
    """A program outside holds all locks; programs in the node wait for them."""
    lock_names = on(locks.file, "flock", "posix", "ofd")
    outside, go = locks.directory / "outside", locks.directory / "go"
    holder = subprocess.Popen([locks.program, "hold", str(outside), str(go), *lock_names])
    locks.outside.append(holder)
    waiting.until(outside.exists)
    waiters = [locks.start_program("wait", lock, name=f"waits{number}") for number, lock in enumerate(lock_names)]
    time.sleep(0.1)
    for _ in range(2):
        locks.move()
        time.sleep(0.1)
        assert [report.read_text() for report in waiters] == ["waits\n"] * 3
    go.touch()
    assert holder.wait(waiting.bound()) == 0
    for report in waiters:
        assert locks.is_counting(report)
        locks.release_locks(report)


def test_waiter_for_a_lock_of_its_own_node_moves_with_it(locks: NodeWithLocks) -> None:
    lock_names = on(locks.file, "flock", "ofd")
    report = locks.start_program("hold", *lock_names)
    waiters = [locks.start_program("wait", lock, name=f"waits{number}") for number, lock in enumerate(lock_names)]
    for _ in range(2):
        locks.move()
        assert locks.is_counting(report)
    assert [one.read_text() for one in waiters] == ["waits\n"] * 2
    locks.release_locks(report)
    for one in waiters:
        assert locks.is_counting(one)
        locks.release_locks(one)


@pytest.mark.parametrize("steps_done", [2, 3, 4])
def test_rolled_back_move_leaves_the_lock_with_the_source(locks: NodeWithLocks, steps_done: int) -> None:
    """It is rolled back after freeze, transfer or restore; the next move succeeds."""
    lock_names = [f"flock:write:0:0:{locks.file}", f"ofd:write:0:0:{locks.file}2", f"posix:read:0:0:{locks.file}3"]
    report = locks.start_program("hold", *lock_names)
    other_locks = [*lock_names[:2], f"posix:write:0:0:{locks.file}3"]
    probers = [LockProber(locks, lock, f"watched{number}") for number, lock in enumerate(other_locks)]
    mover = locks.node_under_test.mover()
    for step in locks.node_under_test.steps(mover)[:steps_done]:
        step()
    locks.node_under_test.roll_back(mover)
    assert locks.is_counting(report)
    locks.move()
    assert locks.is_counting(report)
    assert [watcher.result()[1] for watcher in probers] == [0, 0, 0]
    locks.release_locks(report)
    assert all(locks.can_be_locked(lock) for lock in other_locks)


@pytest.mark.parametrize("steps_done", [3, 4])
def test_new_mover_rolls_back_or_finishes_a_move_with_locks(locks: NodeWithLocks, steps_done: int) -> None:
    lock = f"flock:write:0:0:{locks.file}"
    report, node_under_test = locks.start_program("hold", lock), locks.node_under_test
    watcher = LockProber(locks, lock)
    first = node_under_test.mover()
    for step in node_under_test.steps(first)[:steps_done]:
        step()
    assert isinstance(first, ContainerMover)
    assert isinstance(first._departure, LocalDeparture)
    first._departure._locks.close()  # as the kernel does when the daemon is killed
    new_mover = node_under_test.mover()
    if steps_done == 3:
        node_under_test.roll_back(new_mover)
    else:
        node_under_test.finish(new_mover)
        node_under_test.source, node_under_test.destination = node_under_test.destination, node_under_test.source
    first.close()
    assert locks.is_counting(report) and watcher.result()[1] == 0
    locks.release_locks(report)
    assert locks.can_be_locked(lock)


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


def test_locks_that_cannot_be_moved_are_refused_by_name(locks: NodeWithLocks) -> None:
    for number, (mode_of_holding, lock, arguments) in enumerate(REFUSED):
        lock_names = [
            text.replace("FILE", locks.file).replace("DIRECTORY", str(locks.directory)) for text in (lock, arguments)
        ]
        report = locks.start_program(mode_of_holding, lock_names[0], name=f"held{number}")
        if mode_of_holding == "mapped" and locks.can_be_locked(lock_names[0].replace(":read:", ":write:")):
            locks.release_locks(report)  # overlayfs maps the file below, so this one ends with its descriptor
            continue
        try:
            why = locks.move_refusal()
        except AssertionError as error:
            raise AssertionError(f"{mode_of_holding} {lock_names[0]}") from error
        assert lock_names[1] in why
        assert locks.is_counting(report)
        locks.release_locks(report)
    locks.move()


def test_move_waits_for_a_lock_that_is_held_briefly(locks: NodeWithLocks) -> None:
    """Short locks as of MPI-IO. The node is frozen while the lock is free, so no third process can acquire a held
    one."""
    report = locks.start_program("pulse", f"posix:write:0:0:{locks.file}")
    for _ in range(3):
        locks.move()
        assert locks.is_counting(report)


def test_restored_copy_may_release_a_lock_and_take_another(locks: NodeWithLocks) -> None:
    """The killed source, whose memory the kernel frees slowly, does not block the copy."""
    file, node_under_test = locks.file, locks.node_under_test
    kinds = (f"posix:read:0:0:{file}", f"flock:read:0:0:{file}2", f"flock:write:0:0:{file}3", f"ofd:write:0:0:{file}4")
    report = locks.start_program("upgrade", *kinds)
    mover = node_under_test.mover()
    for step in node_under_test.steps(mover):
        step()
    mover.release()
    mover.thaw()  # before the network, so that the copy starts as early as possible
    waiting.until(lambda: report.read_text() != "holds\n")
    node_under_test.finish(mover)
    assert report.read_text() == "upgraded\n"
