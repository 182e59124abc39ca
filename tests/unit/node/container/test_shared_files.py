"""Files and devices that a node uses on its machine, and the ones missing on another machine."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from holder_process import holder

from wherry.base.errors import Failed
from wherry.node.container import local_departure, lock_table, mounts, shared_files
from wherry.node.container.fd_identity import held_files, require_same, same_elsewhere
from wherry.node.container.host import HeldFile, PassedFds, UsedFile, Uses
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mount_kinds import mount_kinds


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A directory of another file system than the test's own files."""
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("/dev/shm is no file system of its own")
    yield Path("/dev/shm")


def used(of: Path, **more: Any) -> UsedFile:
    """The file, as this machine has it, with a number that each machine chooses."""
    file = os.stat(of)
    made = UsedFile(
        path=str(of), size=file.st_size, modified=file.st_mtime_ns, mode=file.st_mode, owner=file.st_uid, inode=0,
        device=file.st_dev, written=False, sum="",
    )  # fmt: skip
    return replace(made, **more)


def test_what_is_mapped_is_told_with_its_content(tmp_path: Path, private: Path) -> None:
    (tmp_path / "read").write_text("this")
    with holder(f"f = open({str(tmp_path / 'read')!r})") as pid:
        found = shared_files.uses([pid], [private], ())
    assert found.obstacle == "" and found.process >= 1 and found.mappings > 5
    files = {file.path: file for file in found.files}
    assert files[str(tmp_path / "read")].sum and not files[str(tmp_path / "read")].written
    program = files[os.path.realpath(sys.executable)]
    assert program.sum and program.size == os.stat(sys.executable).st_size
    assert any("libc" in path for path in files)
    assert shared_files.lacks(found) == ""


def test_a_file_that_is_written_has_to_be_on_shared_storage(tmp_path: Path, private: Path) -> None:
    with holder(f"f = open({str(tmp_path / 'out')!r}, 'w')") as pid:
        assert f"writes to {tmp_path}/out" in shared_files.uses([pid], [private], ()).obstacle
        assert shared_files.uses([pid], [private], (str(tmp_path),)).obstacle == ""
        assert shared_files.uses([pid], [tmp_path], ()).obstacle == ""  # one of the node's own


def test_a_watch_of_the_hosts_files_is_refused(tmp_path: Path, private: Path) -> None:
    watch = (
        "import ctypes; libc = ctypes.CDLL(None); i = libc.inotify_init(); "
        f"assert libc.inotify_add_watch(i, {os.fsencode(tmp_path)!r}, 2) > 0"
    )
    with holder(watch) as pid:
        assert "watches files of the host" in shared_files.uses([pid], [private], ()).obstacle
        assert shared_files.uses([pid], [tmp_path], ()).obstacle == ""


CHANGES: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda path: path.unlink(), "is not there"),
    (lambda path: path.write_text("longer than that"), "has another size there"),
    (lambda path: path.write_text("that"), "has another content there"),
    (lambda path: (path.unlink(), path.mkdir()), "is of another kind or owner there"),
    (lambda path: os.utime(path, (1, 1)), ""),
)


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_what_differs_is_told(tmp_path: Path, change: Callable[[Path], object], why: str) -> None:
    path = tmp_path / "file"
    path.write_text("this")
    os.utime(path, (5, 5))
    file = used(path, sum=shared_files._sum(str(path)))
    assert shared_files.difference(file) == ""
    change(path)
    assert shared_files.difference(file) == why
    lack = shared_files.lacks(Uses((file,)))
    assert lack == (f"{path} {why}" if why else "")


def test_a_file_that_root_may_not_look_at_is_none_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root of a machine may be nobody on an NFS server."""
    (tmp_path / "file").touch()
    file = used(tmp_path / "file")

    def refused(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refused)
    assert shared_files.difference(file) == "cannot be looked at there (Permission denied)"


def test_a_large_file_is_compared_by_its_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("this")
    assert shared_files.difference(used(tmp_path / "file")) == ""
    assert "another time" in shared_files.difference(used(tmp_path / "file", modified=5))


def test_a_file_that_a_server_numbers_is_compared_by_that(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("this")
    file = used(path, inode=os.stat(path).st_ino, size=77)  # it may grow while the node runs
    assert shared_files.difference(file) == ""
    assert shared_files.difference(replace(file, inode=file.inode + 1)) == "is another file there"


def test_limits_of_the_other_kernel_are_named() -> None:
    assert "kernel.pid_max" in shared_files.lacks(Uses(process=1 << 40))
    assert "vm.max_map_count" in shared_files.lacks(Uses(mappings=1 << 40))
    assert shared_files.lacks(Uses(obstacle="it flies", process=1 << 40)) == "it flies"


def test_only_some_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    missing = tuple(used(tmp_path / "file", path=f"/no/{number}") for number in range(5))
    assert shared_files.lacks(Uses(missing)).endswith("/no/2 is not there, and 2 more")


def test_kinds_of_mounts_are_by_device() -> None:
    lines = [
        "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
        "37 35 0:52 / /home rw - nfs4 server:/home rw",
    ]
    assert mount_kinds(lines) == {os.makedev(98, 0): "ext3", os.makedev(0, 52): "nfs4"}


@pytest.mark.parametrize("kind", ["nfs4", "ceph", "9p", "xfs"])
def test_nodes_see_file_systems_that_machines_share(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The user's directories are bound into them."""
    monkeypatch.setattr(mounts, "mounted", lambda: [("/usr", kind, ""), ("/var", "tmpfs", "")])
    assert mounts.submounts() == ["/usr"]


def test_devices_are_as_stat_has_them(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    assert shared_files.device_of(os.major(device) << 20 | os.minor(device)) == device


HELD = HeldFile(7, "fd/3", 5, 6, 0o100644, 1, 1000, "/home/u/file", 10, 99, True)


@pytest.mark.parametrize(
    ("was", "there", "same"),
    [
        (HELD, replace(HELD, device=8), True),
        (HELD, replace(HELD, device=8, modified=98, size=11), True),  # a server updates these late
        (HELD, replace(HELD, inode=7), False),
        (HELD, replace(HELD, numbered=False), False),
        (HELD, replace(HELD, path="/home/u/other"), False),
        (HELD, replace(HELD, owner=0), False),
        (HELD, replace(HELD, mode=0o040755), False),
        (replace(HELD, numbered=False), replace(HELD, numbered=False, inode=7), True),
        (replace(HELD, numbered=False), replace(HELD, numbered=False, inode=7, modified=98), False),
        (replace(HELD, numbered=False), replace(HELD, numbered=False, inode=7, size=11), False),
        (replace(HELD, numbered=False, owner=0), replace(HELD, numbered=False, owner=0, inode=7, modified=98), True),
        (replace(HELD, numbered=False, owner=0), replace(HELD, numbered=False, owner=0, mode=0o100600), False),
    ],
)
def test_files_of_two_machines_are_the_same_by_what_both_know(was: HeldFile, there: HeldFile, same: bool) -> None:
    assert same_elsewhere(was, there) == same


def test_what_a_process_holds_has_its_path_between_two_kernels(tmp_path: Path, private: Path) -> None:
    with holder(f"f = open({str(tmp_path / 'file')!r}, 'w'); f.write('abc'); f.flush()") as pid:
        found = {file.path: file for file in held_files([pid], True) if file.name.startswith("fd/")}
        file = found[str(tmp_path / "file")]
        assert (file.size, file.modified) == (3, os.stat(tmp_path / "file").st_mtime_ns)
        require_same(tuple(found.values()), [pid], [private], two_kernels=True)
        assert {file.path for file in held_files([pid])} == {""}  # one kernel compares numbers, in the freeze


def test_what_is_written_to_shared_storage_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = list[str]()
    monkeypatch.setattr(os, "fdatasync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")))
    (tmp_path / "read").touch()
    body = f"f = open({str(tmp_path / 'out')!r}, 'w'); g = open({str(tmp_path / 'read')!r})"
    with holder(body) as pid:
        shared_files.flush([pid])
        assert flushed == []  # this file system is the machine's own
        monkeypatch.setattr(shared_files, "kinds_of", lambda _: {os.stat(tmp_path).st_dev: "nfs4"})
        shared_files.flush([pid])
    assert flushed == [str(tmp_path / "out")]


@pytest.mark.parametrize("leaves_machine", [True, False])
def test_between_machines_files_are_flushed_before_the_freeze_and_in_it(
    monkeypatch: pytest.MonkeyPatch, leaves_machine: bool
) -> None:
    said = list[str]()
    monkeypatch.setattr(local_departure, "flush", lambda pids: said.append(f"flush {pids}"))
    monkeypatch.setattr(local_departure, "CacheWarmer", lambda *_: None)
    monkeypatch.setattr(local_departure, "require_no_amx", lambda _: None)
    departure: Any = object.__new__(LocalDeparture)
    departure._underlay = SimpleNamespace(fabric=SimpleNamespace(leaves_machine=leaves_machine))
    departure._group = SimpleNamespace(pids=lambda: [7], prefer=lambda _: None, limit=lambda *_: None)
    departure._placement = SimpleNamespace(node=SimpleNamespace(memory=1, name="n"))
    departure._locks = SimpleNamespace(pass_on=PassedFds, close=lambda: None)
    departure._loopback = SimpleNamespace(stop=lambda: None)
    departure._unread = SimpleNamespace(learn=lambda _: None)
    departure._thaw = departure._stop_cache_warmer = departure._require_own_sockets = lambda: None
    departure._obstacle = lambda _: said.append("frozen")
    departure._paged = False
    departure.prepare_freeze()
    departure.freeze()
    assert said == (["flush [7]", "frozen", "flush [7]"] if leaves_machine else ["frozen"])


def test_a_move_fails_by_name_when_shared_storage_does_not_take_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: list[int]) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(local_departure, "flush", full)
    departure: Any = object.__new__(LocalDeparture)
    departure._underlay = SimpleNamespace(fabric=SimpleNamespace(leaves_machine=True))
    departure._group = SimpleNamespace(pids=list)
    departure._placement = SimpleNamespace(node=SimpleNamespace(name="n"))
    with pytest.raises(Failed, match=r"node n wrote to shared storage is not on it: .*quota"):
        departure._flush()


@pytest.mark.parametrize(("number", "raised"), [(errno.EBADF, False), (errno.ESRCH, False), (errno.EIO, True)])
def test_only_what_could_not_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: bool
) -> None:
    """And not a file that the running node closes meanwhile."""

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fails)
    monkeypatch.setattr(shared_files, "kinds_of", lambda _: {os.stat(tmp_path).st_dev: "nfs4"})
    with (
        holder(f"f = open({str(tmp_path / 'out')!r}, 'w')") as pid,
        pytest.raises(OSError, match="Input/output") if raised else nullcontext(),
    ):
        shared_files.flush([pid])


# The kernel's list of locks.


def test_what_one_reading_leaves_out_another_has(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = "1: FLOCK  ADVISORY  WRITE 7 08:01:9 0 EOF", "2: FLOCK  ADVISORY  WRITE 8 08:01:7 0 EOF"
    many = "".join(f"{number + 3}: POSIX  ADVISORY  READ 9 08:01:{number + 10} 0 EOF\n" for number in range(60))
    readings = iter([many + line for line in (other, f"{held}\n{other}", other, other, other)])
    with monkeypatch.context() as changed:
        changed.setattr(lock_table, "_read_in_pieces", lambda path, size: next(readings))
        found = [lock.words[3] for lock in lock_table.all_locks()]
        assert sorted(found) == ["7", "8", *["9"] * 60] and next(readings, None) is None
        readings = iter([held, other])
        assert [lock.words[3] for lock in lock_table.all_locks()] == ["7"], "a short list is returned at once"


def test_a_lock_is_seen_among_many_that_come_and_go(tmp_path: Path) -> None:
    """Some hundred locks take several reads of the list; half of them is taken and released all the time."""
    names = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(200)]
    ended = threading.Event()

    def churn(mine: list[int]) -> None:
        while not ended.is_set():
            for name in mine:
                fcntl.flock(name, fcntl.LOCK_EX)
            for name in mine:
                fcntl.flock(name, fcntl.LOCK_UN)

    steady = {os.fstat(name).st_ino for name in names[100:]}
    for name in names:
        fcntl.flock(name, fcntl.LOCK_EX)
    thread = threading.Thread(target=churn, args=(names[:100],))
    thread.start()
    try:
        missed = 0
        for _ in range(400):
            seen = {lock.inode[1] for lock in lock_table.all_locks()}
            missed += len(steady - seen)
        assert missed == 0
    finally:
        ended.set()
        thread.join()
        for name in names:
            os.close(name)
