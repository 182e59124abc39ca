"""Files and records after a power cut: a file system that is shut down without its journal's last
transactions, as the machine's death leaves it, and mounted again."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import waiting
from wherry.base.atomic_write import write_atomically, write_once
from wherry.base.paths import native_program
from wherry.job.holder_files import read_exit, read_holder
from wherry.model.spec.fabric import FabricSpec
from wherry.store import Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")

_SHUTDOWN, _WITHOUT_JOURNAL = 0x8004587D, 2
"""FS_IOC_SHUTDOWN and its flag NOLOGFLUSH."""
SITE = {"name": "a"}
HOST = {"name": "a1", "site": "a", "cores": 1, "memory": "1GiB"}


class Disk:
    """A file system of its own, of which the power can be cut."""

    def __init__(self, image: Path, at: Path) -> None:
        self._image, self.at = image, at
        with image.open("wb") as file:
            file.truncate(32 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        at.mkdir()
        self._mount()
        os.sync()

    def _mount(self) -> None:
        made = subprocess.run(["mount", "-o", "loop", str(self._image), str(self.at)], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"this machine mounts no file as a disk: {made.stderr.strip()}")

    def commit_names(self) -> None:
        """Somebody else's fsync, by which names are on the disk, and not the contents of files."""
        with (self.at / "other").open("w") as other:
            os.fsync(other.fileno())

    def cut(self, between: Callable[[], object] = lambda: None) -> None:
        """Cuts the power, and starts again; `between` closes files that are still open."""
        directory = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        finally:
            os.close(directory)
        between()
        subprocess.run(["umount", str(self.at)], check=True)
        waiting.until(self._is_gone, "the end of the file system, which a mount namespace made meanwhile may have, too")
        self._mount()

    def _is_gone(self) -> bool:
        return not subprocess.run(["losetup", "-j", str(self._image)], capture_output=True, check=True).stdout

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.at)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "image", tmp_path / "disk")
    yield made
    made.remove()


@pytest.mark.parametrize("named", [False, True])
def test_what_is_believed_for_ever_is_there_and_whole(disk: Disk, named: bool) -> None:
    """The identity of an instance, by which it finds its machines at real hosts."""
    assert write_once(disk.at / "hosts" / ".identity", b"abc") == b"abc"
    write_atomically(disk.at / "key", b"secret", lasting=True)
    if named:
        disk.commit_names()
    disk.cut()
    assert write_once(disk.at / "hosts" / ".identity", b"other") == b"abc"
    assert (disk.at / "key").read_bytes() == b"secret"


def test_what_a_job_leaves_is_whole_or_not_there(disk: Disk) -> None:
    directory = disk.at / "job-1"
    directory.mkdir()
    who = ["--dir", str(directory), "--uid", "0", "--gid", "0", "--cwd", "/"]
    subprocess.run([str(native_program("wherry-launch")), *who, "--", "sh", "-c", "exit 7"], check=True)
    waiting.until((directory / "exit").exists, "the end of the job")
    disk.commit_names()
    disk.cut()
    ended = read_exit(directory)
    assert ended is not None and ended.code == 7 and read_holder(directory) is not None


@pytest.mark.parametrize("driver", ["netns", "ssh", "libvirt"])
def test_the_database_is_whole_and_has_the_rows_of_nodes_that_run_on(disk: Disk, driver: str) -> None:
    store = Store(disk.at / "state.db")
    uri = {"ssh": {"uri": "ssh://root@192.0.2.1", "address": "192.0.2.1"}, "libvirt": {"uri": "qemu+ssh://h/system"}}
    keys = {"bridge": "br0"} if driver == "libvirt" else {}
    hosts = [HOST | uri.get(driver, {})]
    spec = {"kind": "fabric", "version": 1, "name": "f", "driver": driver, "sites": [SITE], "hosts": hosts, **keys}
    store.put_fabric(FabricSpec.model_validate(spec))
    store.put_secret("hello", "key")
    disk.cut(store.close)
    store = Store(disk.at / "state.db")
    if driver != "netns":
        assert store.fabric() is not None and store.secret("hello") == "key"
        store.put_secret("hello", "of the next daemon")
        disk.cut(store.close)
        store = Store(disk.at / "state.db")
        assert store.secret("hello") == "of the next daemon"
    store.close()
