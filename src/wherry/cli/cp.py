"""`wherry cp`: files and directories to a node and from it.

Both ways it is a tar archive through a program on the node (`wherry exec`), so the node's user is who reads and writes
there, and this command's user here. Invariant: whatever the node sends, nothing is written outside of the destination,
and no link there is followed.
"""

from __future__ import annotations

import os
import posixpath
import re
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.interrupts import signals_as_interrupt
from wherry.base.units import format_size
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, say
from wherry.client import Client, existing

_PIECE = 256 << 10
_ON_NODE = re.compile(r"([a-z][a-z0-9-]{0,62}):(.*)", re.DOTALL)
_KEPT = 1 << 30
"""Bytes of a program's output that are kept (native/launch/main.c)."""
_END = 2 * tarfile.BLOCKSIZE
"""Zeros at the end of an archive. An archive that is cut before a header has none, and tarfile does not report it."""


def cp(source: str, destination: str, /, *, output: Output = "text") -> int:
    """Copy a file or a directory to a node, or from it: wherry cp FILE NODE:PATH, wherry cp NODE:PATH FILE.

    As for cp -r, a destination that is a directory gets the source into it. A PATH that does not begin with / is
    relative to this directory where the node sees it, else to /. The node's user reads and writes there. Files have
    their modes, less those of the umask, links are copied as links.

    Parameters
    ----------
    source
        The file or directory to copy. Write ./NAME for a file here whose name has a colon.
    destination
        Where to.
    """
    from_, to = _ON_NODE.fullmatch(source), _ON_NODE.fullmatch(destination)
    if (from_ is None) == (to is None):
        what = "both are on nodes" if from_ else "neither is on a node"
        raise Refused(Code.USAGE, what, "", "wherry cp FILE NODE:PATH, or: wherry cp NODE:PATH FILE")
    node, path = (from_ or to or [""])[1], (from_ or to or ["", "", ""])[2]
    checked("NODE", "spec.base:ShortText", node, "wherry cp")
    with existing(f"node {node!r}") as client, signals_as_interrupt():
        there = _Node(client, node)
        files, size = _send(there, source, path) if to else _fetch(there, path, Path(destination))
    emit(output, "cp", {"files": files, "bytes": size}, lambda: None)
    return 0


class _Node:
    """Programs on one node."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name
        self._code: int | None = None
        """The exit code of the last program; None when it is not known."""

    def run(self, argv: Sequence[str], read: Callable[[], bytes] | None = None) -> Generator[bytes, None, None]:
        """The standard output of a program, to which `read` is sent before that is read. At the end Failed, with its
        first word, unless it had the exit code 0. To be closed, which ends the program."""
        self._code = None
        job = self._client.exec(self.name, argv, input=read is not None)
        said, ended = b"", False
        try:
            if read:
                try:
                    self._client.feed(job.id, read)
                except Refused as error:
                    if error.code is not Code.WRONG_STATE:  # it has ended, with the reason in its output
                        raise
            for stream, _, data in self._client.output(job.id, gather=0):
                if stream == "stdout":
                    yield data
                else:
                    said = (said + data)[:_PIECE]
            job, ended = self._client.job(job.id), True
        finally:
            with suppress(WherryError):
                if not ended:
                    self._client.cancel_job(job.id)
                self._client.forget(job.id)
        self._code = job.exit_code
        if job.exit_code != 0:
            lines = said.decode(errors="replace").strip().splitlines()
            why = lines[0] if lines else job.reason or f"exit code {job.exit_code}"
            raise Failed(Code.FAILED, f"{argv[0]} failed on {self.name}", why, f"wherry exec {self.name} -- ls -l")

    def do(self, argv: Sequence[str], read: Callable[[], bytes] | None = None) -> None:
        """Runs a program as `run` does, whatever it prints."""
        with closing(self.run(argv, read)) as pieces:
            for _ in pieces:
                pass

    def is_directory(self, path: str) -> bool:
        """True when a directory of the node has this path."""
        try:
            self.do(("test", "-d", path))
        except Failed:
            if self._code != 1:
                raise
            return False
        return True


def _send(node: _Node, source: str, path: str) -> tuple[int, int]:
    """Number of files and bytes that were sent."""
    here = os.path.realpath(source)  # a link that is named is followed, as by cp
    if not os.path.lexists(here):
        raise Refused(Code.NOT_FOUND, f"{source} is not there", "", "ls -l")
    name, where = os.path.basename(os.path.abspath(source)), path or "."
    if not where.endswith("/") and where not in (".", "..") and not node.is_directory(where):
        where, name = posixpath.split(where)
    reading, writing = os.pipe()
    packer = _Packer(here, name, os.fdopen(writing, "wb"))
    packer.start()
    failed: Failed | None = None
    try:
        node.do(("tar", "-x", "-o", "-f", "-", "-C", where or "."), lambda: os.read(reading, _PIECE))
    except Failed as error:
        failed = error
    finally:
        os.close(reading)
        packer.join()
    if packer.error:  # first: an archive that ends early fails on the node, too
        what, why = f"{packer.error.filename or source} was not copied", packer.error.strerror or str(packer.error)
        raise Failed(Code.FAILED, what, why, f"ls -l {source}")
    if failed:
        raise failed
    return packer.files, packer.size


class _Packer(threading.Thread):
    """Writes the archive of a file or directory `here`, which gets the name `name`."""

    def __init__(self, here: str, name: str, to: BinaryIO) -> None:
        super().__init__(name="pack", daemon=True)
        self._here, self._name, self._to = here, name, to
        self.files, self.size = 0, 0
        self.error: OSError | None = None

    def run(self) -> None:
        """Ends early, without an error, when nobody reads the archive any more."""
        try:
            with self._to, tarfile.open(fileobj=self._to, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                self._add(tar, self._here, self._name)
        except BrokenPipeError:
            pass  # the program on the node has ended, with the reason in its output
        except OSError as error:
            self.error = error

    def _add(self, tar: tarfile.TarFile, path: str, name: str) -> None:
        member = tar.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            say(f"{path} is no file, directory or link, and is left out")
            return
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if member.isreg():
            with open(path, "rb") as file:
                tar.addfile(member, file)
            self.files, self.size = self.files + 1, self.size + member.size
        else:
            tar.addfile(member)
        if member.isdir():
            for below in sorted(os.listdir(path)):
                self._add(tar, os.path.join(path, below), posixpath.join(name, below))


class _Stream:
    """Data that comes in pieces, as a file that tarfile reads."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self._last = pieces, b"", b""
        self.taken = 0

    def read(self, size: int) -> bytes:
        """`size` bytes; fewer only at the end."""
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        part, self._rest = self._rest[:size], self._rest[size:]
        self.taken += len(part)
        self._last = (self._last + part[-_END:])[-_END:]
        return part

    def drain(self) -> None:
        """Reads to the end, where the program's error is."""
        while self.read(_PIECE):
            pass

    def is_whole(self, members: int) -> bool:
        """True when the end of an archive was read, after so many bytes of members."""
        return self.taken >= members + _END and not any(self._last)


def _fetch(node: _Node, path: str, destination: Path) -> tuple[int, int]:
    """Number of files and bytes that came."""
    above, name = posixpath.split(posixpath.normpath(path or "."))
    if name in ("", ".", ".."):
        raise Refused(Code.USAGE, f"{node.name}:{path} has no name", "", f"wherry cp {node.name}:DIRECTORY/NAME .")
    target = destination / name if destination.is_dir() else destination
    if not target.parent.is_dir():
        raise Refused(Code.NOT_FOUND, f"the directory {target.parent} is not there", "", f"mkdir -p {target.parent}")
    into = _Unpacker(PurePosixPath(name), target)
    with closing(node.run(("tar", "-c", "-f", "-", "-C", above or ".", f"./{name}"))) as pieces:
        stream = _Stream(pieces)
        try:
            _unpack(stream, into)
        except tarfile.TarError as error:
            stream.drain()  # a program that failed prints the reason
            cut = stream.taken >= _KEPT - _PIECE
            why = f"of a program's output {format_size(_KEPT)} are kept: copy it in parts" if cut else str(error)
            raise Failed(Code.FAILED, f"{node.name}:{path} was not copied whole", why, "wherry cp") from None
        except OSError as error:
            what = f"{error.filename or target} was not written"
            raise Failed(Code.FAILED, what, error.strerror or str(error), f"ls -ld {target.parent}") from None
    return into.files, into.size


def _unpack(stream: _Stream, into: _Unpacker) -> None:
    """Writes all members of an archive. TarError when it is not whole."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=tarfile.RECORDSIZE) as tar:  # type: ignore[call-overload]
        for member in tar:
            into.take(tar, member)
    stream.drain()
    if not stream.is_whole(tar.offset):
        raise tarfile.ReadError("its end did not come")


class _Unpacker:
    """Writes the members of an archive, all of them `top` or below it, to `target`."""

    def __init__(self, top: PurePosixPath, target: Path) -> None:
        self._top, self._target = top, target
        self._made: set[Path] = set()
        self.files, self.size = 0, 0

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Writes one member. TarError when it leads elsewhere."""
        path = self._path(member.name)
        if path != self._target and path.parent not in self._made:
            raise tarfile.TarError(f"it sent {member.name!r} before its directory")
        if member.issparse():  # a few bytes could stand for any size
            raise tarfile.TarError(f"it sent {member.name!r} as a sparse file")
        if member.isdir():
            if path.is_symlink() or not path.is_dir():
                path.mkdir(mode=member.mode & 0o777 | 0o700)
            os.chmod(path, os.stat(path).st_mode | 0o700)  # or its members could not be written
            self._made.add(path)
        elif member.isreg() and (content := tar.extractfile(member)):
            self._free(path)
            mode = member.mode & 0o777
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
                while piece := content.read(_PIECE):
                    file.write(piece)
            self.files, self.size = self.files + 1, self.size + member.size
        elif member.issym():
            self._free(path)
            path.symlink_to(member.linkname)
        elif member.islnk():
            other = self._path(member.linkname)
            if other.parent not in self._made or other.is_symlink():
                raise tarfile.TarError(f"it sent a link to {member.linkname!r}")
            self._free(path)
            os.link(other, path)
        else:
            say(f"{member.name} is no file, directory or link, and is left out")

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if ".." in parts or parts[:1] != self._top.parts:
            raise tarfile.TarError(f"it sent {name!r}, which was not asked for")
        return self._target.joinpath(*parts[1:])

    @staticmethod
    def _free(path: Path) -> None:
        """Removes the file or link of this name, so that a link is not followed."""
        with suppress(FileNotFoundError):
            path.unlink()
