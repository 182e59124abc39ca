"""Trees of files on tmpfs that a seeded generator changes, what they are, and the two ends of wherry-tree."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import random
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import waiting

PAGE = 4096
DISK_MORE = 1 << 20
"""On disks the layout of blocks differs, and so does the size of its description."""
_KINDS = ("user.one", "user.two", "trusted.three")
_ACL = bytes.fromhex("02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000600ffffffff 20000000ffffffff")
"""For user 1000 (POSIX_ACL_XATTR_VERSION 2): rw- for the owner, r-- for that user, r-- for the group, mask rw-."""
_CAPABILITY = bytes.fromhex("01000002 00200000 00000000 00000000 00000000")


class Sent:
    """The answer of a program to a command."""

    def __init__(self, line: str) -> None:
        self.word, *numbers = line.split()
        self.number, self.bytes, self.inodes = (int(number) for number in numbers[:3])


class Pair:
    """`wherry-tree send` of a directory, and `receive` into another one beside it."""

    def __init__(
        self, program: Path, source: Path, destination: Path, ends: Sequence[socket.socket] = (), on_disk: bool = False
    ) -> None:
        self.destination, self.staging = destination, destination.parent / "arriving"
        near, far = ends or connected()
        with near, far:
            receive = [program, "receive", destination, self.staging, str(far.fileno())]
            self.receiver = _started(receive, far, stdin=subprocess.DEVNULL)
            send = [program, "send", source, str(near.fileno()), *(["disk"] if on_disk else [])]
            self.sender = _started(send, near, stdin=subprocess.PIPE)
        assert self._line() == "ready"

    def tell(self, command: str) -> Sent:
        """The answer to a command. AssertionError with the messages when there is none."""
        assert self.sender.stdin
        self.sender.stdin.write(f"{command}\n")
        self.sender.stdin.flush()
        line = self._line()
        assert line, self.why()
        return Sent(line)

    def end(self) -> list[str]:
        """Ends the sender; the receiver's output when both ended well."""
        said, why = self.sender.communicate(timeout=waiting.bound())
        assert (self.sender.returncode, said, why) == (0, "", "")
        told, why = self.receiver.communicate(timeout=waiting.bound())
        assert (self.receiver.returncode, why) == (0, "")
        return told.splitlines()

    def why(self) -> str:
        """The messages of both when they failed."""
        both = [
            each.communicate(timeout=waiting.bound())[1] + f" ({each.returncode})"
            for each in (self.sender, self.receiver)
        ]
        return "; ".join(both)

    def close(self) -> None:
        for each in (self.sender, self.receiver):
            each.kill()
            each.communicate()

    def _line(self) -> str:
        assert self.sender.stdout
        return self.sender.stdout.readline().strip()


@contextmanager
def pair(program: Path, place: Path, *ends: socket.socket, on_disk: bool = False) -> Iterator[Pair]:
    made = Pair(program, place / "here", place / "there", ends, on_disk)
    try:
        yield made
    finally:
        made.close()


def assert_same(place: Path, more: int = 0) -> None:
    """Both trees are equal, and that at the destination takes at most so many bytes more."""
    here, there = all_of(place / "here"), all_of(place / "there")
    assert here.keys() == there.keys()
    assert {name: (here[name], there[name]) for name in here if here[name] != there[name]} == {}
    assert room_of(place / "there") <= room_of(place / "here") + more
    assert not (place / "arriving").exists()


def assert_moves(
    program: Path, place: Path, *changes: Callable[[], object], on_disk: bool = False, last_word: str = "last"
) -> list[int]:
    """Each change is followed by a round, the last one by the last pass; how much was sent in each."""
    with pair(program, place, on_disk=on_disk) as both:
        sent = []
        for change in changes[:-1]:
            change()
            sent.append(both.tell("round").bytes)
        changes[-1]()
        last = both.tell(last_word)
        paths = [Path(root, name) for root, *both in os.walk(place / "here") for names in both for name in names]
        names = sum(not stat.S_ISSOCK(path.lstat().st_mode) for path in paths)
        assert both.end() == [f"last {last.number} {last.inodes + names}"]
    assert_same(place, DISK_MORE if on_disk else 0)
    return [*sent, last.bytes]


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def _started(words: Sequence[object], end: socket.socket, stdin: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    inherited = (end.fileno(),)
    return subprocess.Popen(list(map(str, words)), stdin=stdin, stdout=pipe, stderr=pipe, text=True, pass_fds=inherited)


def all_of(top: Path) -> dict[str, object]:
    """By path, all that moves with it: attributes of the inode, its contents, its holes, and the paths of one file."""
    found, links = dict[str, object](), dict[int, list[str]]()
    for path in [top, *(Path(root, name) for root, *both in os.walk(top) for names in both for name in names)]:
        about = path.lstat()
        if stat.S_ISSOCK(about.st_mode):
            continue
        name = str(path.relative_to(top))
        found[name] = (
            about.st_mode,
            about.st_uid,
            about.st_gid,
            about.st_mtime_ns,
            about.st_rdev,
            *_inside(path, about),
        )
        links.setdefault(about.st_ino, []).append(name)
    return {**found, "one file": sorted(sorted(names) for names in links.values() if len(names) > 1)}


def _inside(path: Path, about: os.stat_result) -> tuple[object, ...]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    if stat.S_ISLNK(about.st_mode):
        return (os.readlink(path), attributes)
    if not stat.S_ISREG(about.st_mode):
        return (attributes,)
    with path.open("rb") as file:
        return (about.st_size, attributes, *_data(file.fileno(), about.st_size))


def _data(file: int, size: int) -> tuple[object, ...]:
    """A sum of the pages that are not zero, and their places: a page of zeros and a hole are the same."""
    digest, at = hashlib.blake2b(), 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(file, at, os.SEEK_HOLE)
        while at < end:
            page = os.pread(file, min(PAGE, end - at), at)
            if page.strip(b"\0"):
                digest.update(b"%d " % at + page)
            at += len(page)
    return (digest.hexdigest(),)


def room_of(top: Path) -> int:
    """Bytes that its files take."""
    paths = {Path(root, name).lstat().st_ino: Path(root, name) for root, _, names in os.walk(top) for name in names}
    return sum(path.lstat().st_blocks * 512 for path in paths.values())


class Changes:
    """Makes and changes a tree. Two with one seed do the same."""

    def __init__(self, top: Path, seed: int) -> None:
        self._top, self._random, self._number = top, random.Random(seed), 0
        self._acts = [
            *(self._file, self._file, self._append, self._write, self._write, self._map, self._shorten, self._lengthen),
            *(self._punch, self._rename, self._remove, self._link, self._symlink, self._special, self._mode),
            *(self._owner, self._time, self._attribute, self._no_attribute, self._directory, self._directory),
            *(self._replace, self._exchange, self._privileges),
        ]

    def make(self, count: int) -> None:
        """Some changes, one after the other; impossible ones are left out."""
        for _ in range(count):
            with contextlib.suppress(OSError):
                self._random.choice(self._acts)()

    def _paths(self, *kinds: str) -> Path:
        found = [
            Path(root, name) for root, *both in sorted(os.walk(self._top)) for names in both for name in sorted(names)
        ]
        chosen = [path for path in found if not kinds or _kind(path) in kinds]
        if not chosen:
            raise FileNotFoundError
        return self._random.choice(chosen)

    def _new(self) -> Path:
        self._number += 1
        try:
            above = self._random.choice([self._top, self._paths("directory")])
        except FileNotFoundError:
            above = self._top
        name = self._random.choice(["a", "a file with spaces", "\n", "ä" * 20, "x" * 200, "-"])
        return above / f"{name}{self._number}"

    def _bytes(self) -> bytes:
        most = self._random.choice([10, PAGE, 3 * PAGE, 300_000, 2_000_000])
        return self._random.randbytes(self._random.randrange(most))

    def _file(self) -> None:
        self._new().write_bytes(self._bytes())

    def _append(self) -> None:
        with self._paths("file").open("ab") as file:
            file.write(self._bytes())

    def _write(self) -> None:
        path = self._paths("file")
        with path.open("r+b") as file:
            file.seek(self._random.randrange(path.stat().st_size + 2 * PAGE))
            file.write(self._bytes())

    def _map(self) -> None:
        path = self._paths("file")
        if not path.stat().st_size:
            raise FileNotFoundError
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for _ in range(3):
                memory[self._random.randrange(len(memory))] = self._random.randrange(256)

    def _shorten(self) -> None:
        path = self._paths("file")
        os.truncate(path, self._random.randrange(path.stat().st_size + 1))

    def _lengthen(self) -> None:
        path = self._paths("file")
        os.truncate(path, path.stat().st_size + self._random.choice([1, PAGE, 1 << 20, 1 << 40]))

    def _punch(self) -> None:
        path = self._paths("file")
        at = self._random.randrange(path.stat().st_size + 1)
        size = self._random.choice([PAGE, 10 * PAGE, 1 << 20])
        words = ["fallocate", "--punch-hole", "--offset", str(at), "--length", str(size), str(path)]
        subprocess.run(words, check=True, timeout=waiting.bound())

    def _rename(self) -> None:
        self._paths().rename(self._new())

    def _remove(self) -> None:
        path = self._paths()
        if _kind(path) == "directory":
            shutil.rmtree(path)
        else:
            path.unlink()

    def _link(self) -> None:
        os.link(self._paths("file", "link", "special"), self._new(), follow_symlinks=False)

    def _symlink(self) -> None:
        self._new().symlink_to(self._random.choice(["nowhere", "/etc/passwd", "..", "t" * 4000]))

    def _special(self) -> None:
        kind = self._random.choice([stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK])
        os.mknod(self._new(), kind | 0o640, os.makedev(1, 3))

    def _mode(self) -> None:
        self._paths("file", "directory", "special").chmod(self._random.choice([0, 0o4755, 0o2711, 0o1777, 0o640]))

    def _owner(self) -> None:
        os.chown(self._paths(), self._random.randrange(3000), self._random.randrange(3000), follow_symlinks=False)

    def _time(self) -> None:
        nanoseconds = self._random.randrange(2 * 10**18)
        os.utime(self._paths(), ns=(nanoseconds, nanoseconds), follow_symlinks=False)

    def _attribute(self) -> None:
        value = self._random.randbytes(self._random.choice([0, 1, 200]))
        os.setxattr(self._paths("file", "directory"), self._random.choice(_KINDS), value)

    def _no_attribute(self) -> None:
        path = self._paths("file", "directory")
        for name in os.listxattr(path):
            os.removexattr(path, name)

    def _privileges(self) -> None:
        os.setxattr(self._paths("file"), "system.posix_acl_access", _ACL)
        os.setxattr(self._paths("file"), "security.capability", _CAPABILITY)
        os.setxattr(self._paths("directory"), "system.posix_acl_default", _ACL)

    def _directory(self) -> None:
        self._new().mkdir()

    def _replace(self) -> None:
        path = self._paths("file", "directory")
        was_file = path.is_file()
        if was_file:
            path.unlink()
            path.mkdir()
        else:
            shutil.rmtree(path)
            path.write_bytes(self._bytes())

    def _exchange(self) -> None:
        """Two names change places, or one comes in place of the other."""
        one, other, third = self._paths(), self._paths(), self._new()
        one.rename(third)
        other.rename(one)
        if self._random.random() < 0.5:
            third.rename(other)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return kinds.get(stat.S_IFMT(mode), "special")
