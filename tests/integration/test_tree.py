"""wherry-tree alone: changes between rounds, by whatever means, are at the destination after the last pass."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from trees import PAGE, Changes, Pair, assert_moves, assert_same, connected, pair, room_of

import waiting
from fuzzing import fuzz
from sanitized import sanitized
from wherry.base.paths import native_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="devices, owners and file systems are made by root")
MEBI = 1 << 20
IN_ALL_EVENTS, IN_READING = 0xFFF, 0x31
"""inotify(7): all of them; IN_ACCESS, IN_CLOSE_NOWRITE and IN_OPEN."""
BUILT = pytest.mark.parametrize("program", ["as built", "sanitized"], indirect=True)


LOST = {
    "pwrite": "long pwrite(int file, const void *bytes, long count, long at) { return count; }\n"
    "long pwrite64(int file, const void *bytes, long count, long at) { return count; }",
    "ftruncate": "int ftruncate(int file, long size) { return 0; }\nint ftruncate64(int file, long size) { return 0; }",
    "linkat": "int linkat(int a, const char *b, int c, const char *d, int e) { return 0; }",
    "fchownat": "int fchownat(int a, const char *b, unsigned c, unsigned d, int e) { return 0; }",
    "fchmodat": "int fchmodat(int a, const char *b, unsigned c, int d) { return 0; }",
    "utimensat": "int utimensat(int a, const char *b, const void *c, int d) { return 0; }",
    "lsetxattr": "int lsetxattr(const char *a, const char *b, const void *c, unsigned long d, int e) { return 0; }",
}


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Path:
    if getattr(request, "param", "as built") == "sanitized":
        return sanitized("wherry-tree") / "bin" / "wherry-tree"
    return native_program("wherry-tree")


@pytest.fixture
def place() -> Iterator[Path]:
    """A tmpfs of its own with two directories."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2G,mode=0700", "wherry", name], check=True)
        try:
            for each in ("here", "there"):
                (Path(name) / each).mkdir()
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


@pytest.mark.parametrize("seed", range(8))
@BUILT
def test_a_tree_that_changes_between_rounds_arrives_as_it_is(program: Path, place: Path, seed: int) -> None:
    changes = Changes(place / "here", seed)
    assert_moves(program, place, *[lambda: changes.make(60)] * 5)


def test_a_tree_that_never_changes_is_sent_once(program: Path, place: Path) -> None:
    changes = Changes(place / "here", 1)

    def wait() -> None:
        """Until their times of change tell of each change."""
        time.sleep(0.2)

    first, again, last = assert_moves(program, place, lambda: (changes.make(200), wait()), lambda: None, lambda: None)
    assert first > 1000 and again < 100 and last < 100


def test_an_empty_tree_arrives_without_any_round(program: Path, place: Path) -> None:
    assert_moves(program, place, lambda: os.utime(place / "here", ns=(5, 7)))
    assert (place / "there").stat().st_mtime_ns == 7


def test_what_is_written_through_a_mapping_is_found_though_no_time_changes(program: Path, place: Path) -> None:
    path = place / "here" / "shared"
    path.write_bytes(os.urandom(32 * MEBI))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0] ^= 1
        time.sleep(0.2)
        before = path.stat()

        def write() -> None:
            for page in (0, 17, 4000, 8191):
                memory[page * PAGE + 100] ^= 255

        first, again, last = assert_moves(program, place, lambda: None, write, write)
        after = path.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert first > 32 * MEBI and 4 * PAGE < again < 5 * PAGE and 4 * PAGE < last < 5 * PAGE


def test_names_cost_no_contents(program: Path, place: Path) -> None:
    """Renames, links, and a directory that goes to another place with all that is in it."""
    top = place / "here"
    (top / "one" / "two").mkdir(parents=True)
    (top / "one" / "two" / "large").write_bytes(os.urandom(8 * MEBI))

    def rename() -> None:
        os.link(top / "one" / "two" / "large", top / "link")
        (top / "one").rename(top / "three")
        (top / "three" / "two").rename(top / "two")
        (top / "three").rmdir()
        (top / "two").rename(top / "one")

    def again() -> None:
        (top / "one" / "large").unlink()
        (top / "one").rmdir()
        (top / "link").rename(top / "one")

    first, second, last = assert_moves(program, place, lambda: None, rename, again)
    assert first > 8 * MEBI and second < 1000 and last < 1000


def test_holes_stay_holes_and_what_became_one_takes_no_room(program: Path, place: Path) -> None:
    path = place / "here" / "sparse"

    def make() -> None:
        with path.open("wb") as file:
            for at in (0, 5 * PAGE, 77 * PAGE, 64 * MEBI, (1 << 40) - 3 * PAGE):
                file.seek(at)
                file.write(os.urandom(PAGE + 1))
            file.truncate((1 << 43) + 5)

    def punch() -> None:
        for at, size in ((0, 6 * PAGE), ((1 << 40) - 3 * PAGE, 10 * PAGE)):
            words = ["fallocate", "--punch-hole", "--offset", str(at), "--length", str(size), str(path)]
            subprocess.run(words, check=True)

    def shorten_and_lengthen() -> None:
        os.truncate(path, 77 * PAGE + 100)
        os.truncate(path, 78 * PAGE + 200)

    assert_moves(program, place, make, punch, shorten_and_lengthen)
    assert room_of(place / "there") == room_of(place / "here") == 2 * PAGE


def test_many_small_files(program: Path, place: Path) -> None:
    top = place / "here"

    def make() -> None:
        for number in range(5000):
            path = top / f"d{number % 50}" / f"f{number}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"%d" % number * (number % 100))

    def change() -> None:
        for number in range(0, 5000, 100):
            (top / f"d{number % 50}" / f"f{number}").write_bytes(b"changed")
            (top / f"d{number % 50}" / f"f{number + 50}").unlink()

    first, last = assert_moves(program, place, make, change)
    assert last < first / 20


@pytest.mark.measures("the last pass takes no longer than the first round: nobody else is to take the disk meanwhile")
def test_many_directories_go_as_quickly_as_they_came(program: Path, place: Path) -> None:
    top = place / "here"
    for number in range(25_000):
        (top / f"d{number}" / "below").mkdir(parents=True)
    with pair(program, place) as both:
        began = time.monotonic()
        both.tell("round")
        came = time.monotonic() - began
        subprocess.run(["find", top, "-mindepth", "1", "-delete"], check=True)
        began = time.monotonic()
        both.tell("last")
        assert time.monotonic() - began < came
        both.end()
    assert not os.listdir(place / "there")


def test_a_large_file_is_shared_among_threads(program: Path, place: Path) -> None:
    path, block = place / "here" / "large", os.urandom(MEBI)

    def make() -> None:
        with path.open("wb") as file:
            for number in range(256):
                file.write(number.to_bytes(8, "big") + block[8:])

    def change() -> None:
        with path.open("r+b") as file:
            for number in range(0, 256, 3):
                file.seek(number * MEBI + 5 * PAGE)
                file.write(b"changed")

    _, last = assert_moves(program, place, make, change)
    assert 86 * PAGE <= last < 100 * PAGE


def test_sockets_stay_behind(program: Path, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "here" / "socket"))
        assert_moves(program, place, lambda: None, (place / "here" / "file").touch)
    assert os.listdir(place / "there") == ["file"]


def test_who_watches_sees_that_files_are_read_and_no_change(program: Path, place: Path) -> None:
    top, libc = place / "here", ctypes.CDLL(None)
    (top / "below").mkdir()
    (top / "below" / "file").write_bytes(b"contents")
    paths = top, top / "below", top / "below" / "file"
    before = [path.stat().st_atime_ns for path in paths]
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    for path in (top, top / "below"):
        assert libc.inotify_add_watch(watcher, os.fsencode(path), IN_ALL_EVENTS) >= 0
    with pair(program, place) as both:
        both.tell("round")
        both.tell("last")
        both.end()
    events, seen = os.read(watcher, 1 << 16), 0
    os.close(watcher)
    while events:
        _, mask, _, size = struct.unpack_from("=iIII", events)
        seen, events = seen | mask & IN_ALL_EVENTS, events[16 + size :]
    assert seen == IN_READING
    assert before == [path.stat().st_atime_ns for path in paths]


def harm(path: Path, other: Path, outside: Path, chance: random.Random) -> None:
    """One change that would lead a careless reader out of its tree, or have it wait."""
    acts: list[Callable[[], object]] = [
        lambda: path.symlink_to(outside),
        lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
        lambda: os.mknod(path, 0o20666, os.makedev(1, 5)),
        lambda: (path / "deep" / "er").mkdir(parents=True),
        lambda: path.rename(other),
        lambda: path.rename(other / "deep" / "moved"),
        lambda: (other / "deep").rename(path),
        lambda: path.write_bytes(chance.randbytes(400_000)),
        lambda: os.truncate(path, chance.choice([0, 1 << 50, 3 * PAGE])),
        lambda: os.link(path, other, follow_symlinks=False),
        path.unlink,
        path.rmdir,
        lambda: shutil.rmtree(path),
    ]
    with suppress(OSError):
        chance.choice(acts[:-1] if chance.random() < 0.95 else acts)()


def harm_for_ever(top: Path, outside: Path, seed: int) -> None:
    chance, names = random.Random(seed), [f"n{number}" for number in range(12)]
    while True:
        harm(top / chance.choice(names), top / chance.choice(names), outside, chance)


@BUILT
def test_programs_that_change_all_meanwhile_lead_a_round_nowhere(program: Path, place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"not of the node" * 100)
    children = []
    for seed in range(2):
        if not (child := os.fork()):
            with suppress(BaseException):
                harm_for_ever(place / "here", outside, seed)
            os._exit(1)
        children.append(child)
    try:
        with pair(program, place) as both:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                both.tell("round")
            for child in children:
                os.kill(child, signal.SIGSTOP)
                os.waitid(os.P_PID, child, os.WSTOPPED)
            both.tell("last")
            both.end()
        assert_same(place)
        assert subprocess.run(["grep", "-r", "not of the node", place / "there"], check=False).returncode == 1
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_directories_too_deep_end_the_move_and_no_descriptors(program: Path, place: Path) -> None:
    deep = place / "here"
    directory = os.open(deep, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    with pair(program, place) as both, pytest.raises(AssertionError, match="nested more than 1000 deep; remove"):
        both.tell("round")


def test_a_deep_tree_arrives(program: Path, place: Path) -> None:
    def make() -> None:
        path = place / "here"
        for number in range(300):
            path = path / f"d{number}"
            path.mkdir()
            (path / "file").write_text(str(number))

    def move() -> None:
        (place / "here" / "d0" / "d1").rename(place / "here" / "top")

    assert_moves(program, place, make, move)


def test_a_destination_that_is_full_is_told(program: Path, place: Path) -> None:
    (place / "here" / "large").write_bytes(bytes([1]) * 32 * MEBI)
    small = place / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M", "wherry", small], check=True)
    (small / "there").mkdir()
    both = Pair(program, place / "here", small / "there")
    try:
        with pytest.raises(AssertionError, match=r"(?s)connection .* is lost.*\(3\).*No space left on device.*\(1\)"):
            both.tell("round")
    finally:
        both.close()
        subprocess.run(["umount", small], check=True)


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the preloaded library")
@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "linkat", "fchownat", "fchmodat", "utimensat", "lsetxattr"])
def test_what_is_not_there_after_it_was_written_is_found(
    program: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The destination's kernel reports success for a call without effect."""
    (tmp_path / "lost.c").write_text(LOST[call])
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "lost.so", tmp_path / "lost.c"], check=True)
    (path := place / "here" / "file").write_bytes(os.urandom(3 * PAGE + 100))
    os.truncate(path, 5 * PAGE)
    os.setxattr(path, "user.one", b"1")
    os.chown(path, 5, 7)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "lost.so"))
    with pair(program, place) as both:
        monkeypatch.delenv("LD_PRELOAD")
        with pytest.raises(AssertionError, match=r"differ from the files at the source|cannot be written"):
            both.tell("last")


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_the_other_end_sees_a_death_at_once(program: Path, place: Path, who: str) -> None:
    (place / "here" / "file").write_bytes(bytes([1]) * MEBI)
    with pair(program, place) as both:
        both.tell("round")
        dies, stays = (both.sender, both.receiver) if who == "sender" else (both.receiver, both.sender)
        dies.kill()
        dies.wait()
        if stays is both.sender:
            with pytest.raises(AssertionError, match=r"lost"):
                both.tell("round")
        assert stays.wait(waiting.bound()) == 3


@pytest.mark.parametrize("at", [5, 20, 40, 300, 2000, 9000])
@pytest.mark.parametrize("what", ["flipped", "left out", "doubled"])
def test_a_damaged_stream_is_refused(program: Path, place: Path, what: str, at: int) -> None:
    """Between the two ends a byte changes, is lost, or comes twice."""
    Changes(place / "here", 3).make(50)
    (near, first), (second, far) = connected(), connected()

    def pass_on() -> None:
        with suppress(OSError), first, second:
            seen = 0
            while data := first.recv(1 << 16):
                if seen <= at < seen + len(data):
                    one = data[at - seen : at - seen + 1]
                    changed = {"flipped": bytes([one[0] ^ 16]), "left out": b"", "doubled": one * 2}[what]
                    data, seen = data[: at - seen] + changed + data[at - seen + 1 :], seen + 1 - len(changed)
                seen += len(data)
                second.sendall(data)
            second.shutdown(socket.SHUT_WR)

    def pass_back() -> None:
        with suppress(OSError):
            while data := second.recv(1 << 12):
                first.sendall(data)
        with suppress(OSError):
            first.shutdown(socket.SHUT_RDWR)

    for act in (pass_on, pass_back):
        threading.Thread(target=act, daemon=True).start()
    with pair(program, place, near, far) as both:
        with pytest.raises(AssertionError, match=r"checksum of a frame|no such frame|closed before all"):
            both.tell("last")


@pytest.mark.thorough  # a fuzzer
def test_no_stream_breaks_the_receiver_of_a_nodes_files() -> None:
    """The input's kinds of acts are those of native/fuzz/fuzz_tree.c; here a directory, a file and a link with names,
    and two others."""
    made = [(0, 1, 0, 0, 7), (0, 1, 0, 0, 7), (0, 0, 0, 0, 7), (0, 2, 0, 0, 7)]
    named = [(3, 0, 1, 0, 0), (3, 1, 2, 1, 0), (3, 0, 3, 2, 0), (9, 0, 0, 0, 0)]
    corpus = {
        f"{first}-{second}": bytes(sum([*made, *named, (first, 1, 2, 3, 4), (second, 2, 1, 3, 4), (9, 0, 0, 0, 0)], ()))
        for first in range(10)
        for second in range(0, 10, 3)
    }
    names = ("store", "settle", "meta", "wire", "record")
    fuzz(("fuzz/fuzz_tree.c", "lib/page_sums.c", *(f"tree/{name}.c" for name in names)), corpus, 3_000, 512)
