"""wherry-tree on a disk: files whose times tell that they are unchanged are not read again, and nothing is missed."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from trees import DISK_MORE, PAGE, Changes, Pair, assert_moves, assert_same, pair

import waiting
from wherry.base.paths import native_program
from wherry.node.container.disk import Disk, lacking

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="file systems are made by root"),
    pytest.mark.skipif(bool(lacking()), reason=f"this machine {lacking()}"),
]
MEBI = 1 << 20
SETTLES = 0.3
"""Seconds after which each later change has another time of change."""
CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);

    if (clock == CLOCK_REALTIME && !access(getenv("CLOCK_WAS_SET"), F_OK))
        time->tv_sec += 60;
    return result;
}
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return native_program("wherry-tree")


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Where two disks are mounted: the blocks that one end writes to its disk are not on the other one's."""
    directory = tmp_path_factory.mktemp("disk")
    made = [Disk(directory / "images" / name, directory / name / "disk", 512 * MEBI) for name in ("one", "two")]
    with ExitStack() as stack:
        for disk in made:
            disk.directory.mkdir(parents=True)
            disk.make()
            stack.callback(disk.remove)
            stack.callback(subprocess.run, ["umount", "--lazy", disk.directory], check=True)
        yield made[0].directory, made[1].directory


@pytest.fixture
def place(disks: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of its own on one disk with two in it, of which `here` is on the other one."""
    name = f"place{abs(hash(request.node.name))}"
    source, made = (disk / name for disk in disks)
    source.mkdir()
    for each in ("here", "there"):
        (made / each).mkdir(parents=True)
    subprocess.run(["mount", "--bind", source, made / "here"], check=True)
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", made / "here"], check=True)
        shutil.rmtree(made)
        shutil.rmtree(source)


def read_by(both: Pair) -> int:
    """Bytes that the sender has read so far."""
    return int(Path(f"/proc/{both.sender.pid}/io").read_text().split()[1])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("wait", [0.0, SETTLES], ids=["at once", "settled"])
def test_a_tree_that_changes_between_rounds_arrives_as_it_is(
    program: Path, place: Path, seed: int, wait: float
) -> None:
    changes = Changes(place / "here", seed)
    assert_moves(program, place, *[lambda: (changes.make(60), time.sleep(wait))] * 5, on_disk=True)


@pytest.mark.parametrize("command", ["last", "all"])
def test_what_by_its_time_is_unchanged_is_read_again_only_by_all(program: Path, place: Path, command: str) -> None:
    (place / "here" / "large").write_bytes(os.urandom(64 * MEBI))
    time.sleep(SETTLES)
    with pair(program, place, on_disk=True) as both:
        both.tell("round")
        first = read_by(both)
        (place / "here" / "small").write_bytes(b"changed")
        sent = both.tell(command).bytes
        again = read_by(both) - first
        both.end()
    assert first >= 64 * MEBI and sent < MEBI
    assert again >= 64 * MEBI if command == "all" else again < MEBI
    assert_same(place, DISK_MORE)


@pytest.mark.parametrize("settles", [0.0, SETTLES])
def test_what_is_written_through_a_mapping_is_found(program: Path, place: Path, settles: float) -> None:
    """Also to a page that is dirty already when a round begins."""
    path = place / "here" / "mapped"
    path.write_bytes(os.urandom(32 * MEBI))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:

        def write() -> None:
            for page in (0, 17, 4000, 8191):
                memory[page * PAGE + 100] ^= 255
            time.sleep(settles)

        first, again, last = assert_moves(program, place, write, write, write, on_disk=True)
    assert first > 32 * MEBI and 4 * PAGE < again < 5 * PAGE and 4 * PAGE < last < 5 * PAGE


@pytest.mark.parametrize("seed", range(4))
def test_what_a_mapping_writes_all_the_time_is_found(program: Path, place: Path, seed: int) -> None:
    """Pages are written before, while and after a round writes them to the disk and reads them."""
    path, chance, ended = place / "here" / "mapped", random.Random(seed), threading.Event()
    path.write_bytes(bytes(4 * MEBI))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:

        def write() -> None:
            while not ended.is_set():
                memory[chance.randrange(len(memory))] = chance.randrange(256)
                time.sleep(chance.choice([0, 0, 0.0001, 0.01]))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with pair(program, place, on_disk=True) as both:
                for _ in range(12):
                    both.tell("round")
                    time.sleep(chance.choice([0, 0.05, 0.2]))
                ended.set()
                writer.join()
                time.sleep(chance.choice([0, SETTLES]))
                both.tell("last")
                both.end()
        finally:
            ended.set()
            writer.join()
    assert_same(place, DISK_MORE)


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the preloaded library")
def test_times_are_not_believed_when_the_clock_was_set(
    program: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, mark = tmp_path / "clock.so", tmp_path / "set"
    words = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(words, input=CLOCK, text=True, check=True, timeout=waiting.bound())
    (place / "here" / "large").write_bytes(os.urandom(64 * MEBI))
    time.sleep(SETTLES)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_WAS_SET", str(mark))
    with pair(program, place, on_disk=True) as both:
        both.tell("round")
        read = [read_by(both)]
        for step in range(3):
            if step == 1:
                mark.touch()
            both.tell("round")
            read.append(read_by(both))
        both.tell("last")
        both.end()
    unchanged, was_set, again = (after - before for before, after in zip(read, read[1:], strict=False))
    assert unchanged < MEBI and was_set >= 64 * MEBI and again < MEBI
    assert_same(place, DISK_MORE)
