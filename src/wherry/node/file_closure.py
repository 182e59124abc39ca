"""Sets of files to be copied elsewhere under the same paths: programs with everything that they load.

Invariant: no component of a file's path in a set is a link, and all links on the original path are in the set, too; so
the original path opens the same file at the destination.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from wherry.base.safe_open import open_regular
from wherry.node import elf

_HOPS = 40
"""Maximum number of links in a path, as in the kernel (path_resolution(7))."""
_SHELL = "/bin/sh"


class Tally:
    """Gets all that a set finds and writes, and may raise to end that. This one lets all pass."""

    def entry(self, name: str) -> None:
        """An entry of a tree, or a file that is about to be written."""

    def file(self, name: str, size: int) -> None:
        """A file that is new in the set, and its bytes."""


class FileSet:
    """Files, links and directories by absolute path. `missing`: libraries not found, with a file that needs each."""

    def __init__(self, library_path: str = "", tally: Tally | None = None) -> None:
        self.library_path = library_path
        self._tally = tally or Tally()
        self.files: dict[str, os.stat_result] = {}
        self.links: dict[str, str] = {}
        self.directories: dict[str, os.stat_result] = {}
        self.missing: dict[str, str] = {}

    def add(self, path: str | os.PathLike[str]) -> str:
        """Adds a file or an empty directory; returns its real path. OSError when the caller cannot access it."""
        name = self._follow(os.fspath(path))
        self._take(name)
        return name

    def _take(self, name: str) -> None:
        about = os.stat(name)
        if stat.S_ISDIR(about.st_mode):
            self.directories[name] = about
        elif stat.S_ISREG(about.st_mode):
            if name not in self.files:
                self._tally.file(name, about.st_size)
            self.files[name] = about

    def add_tree(self, path: str | os.PathLike[str]) -> None:
        """Adds a file or a directory tree; programs and libraries with the libraries that they load."""
        todo = [self._follow(os.fspath(path))]
        while todo:
            name = todo.pop()
            self._take(name)
            if name not in self.directories:
                self._take_needed(name)
                continue
            with os.scandir(name) as entries:
                for entry in entries:
                    self._tally.entry(entry.path)
                    if not entry.is_symlink():  # its path is real, as that of its directory is
                        todo.append(entry.path)
                    elif os.path.exists(entry.path) and not os.path.isdir(entry.path):
                        todo.append(self._follow(entry.path))  # one to a directory may close a loop

    def add_program(self, path: str | os.PathLike[str]) -> str:
        """Adds a program or library with its dynamic linker and all libraries; a script with its interpreter."""
        top = self.add(path)
        self._take_needed(top)
        return top

    def _take_needed(self, top: str) -> None:
        todo, seen = [top], {top}
        while todo:
            for needed in self._needs(todo.pop()):
                real = self.add(needed)
                if real not in seen:
                    seen.add(real)
                    todo.append(real)

    def without(self, is_there: Callable[[str], bool]) -> FileSet:
        """The set without files that nodes see anyway."""
        rest = FileSet(self.library_path)
        rest.directories = {name: about for name, about in self.directories.items() if not is_there(name)}
        rest.files = {name: about for name, about in self.files.items() if not is_there(name)}
        rest.links = {name: target for name, target in self.links.items() if not is_there(name)}
        rest.missing = dict(self.missing)
        return rest

    def write(
        self,
        tar: tarfile.TarFile,
        owner: tuple[int, int],
        known: Mapping[str, str] | None = None,
        tally: Tally | None = None,
    ) -> None:
        """Writes the set as members below /, owned by user and group `owner`, except entries that are `known` already.

        `known` maps a file's name to its `digest`, a link's name to `link_digest` of its target.
        """
        known, tally = known or {}, tally or Tally()
        for name, about in sorted(self.directories.items()):
            tar.addfile(_member(name, about, owner, tarfile.DIRTYPE))
        for name, about in sorted(self.files.items()):
            tally.entry(name)
            if name in known and known[name] == digest(name):
                continue
            member = _member(name, about, owner, tarfile.REGTYPE)
            with open_regular(name) as file:
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)
        for name, target in sorted(self.links.items()):
            if known.get(name) != link_digest(target):
                member = tarfile.TarInfo(name.lstrip("/"))
                member.type, member.linkname = tarfile.SYMTYPE, target
                member.uid, member.gid = owner
                tar.addfile(member)

    def digests(self) -> dict[str, str]:
        """The set in the form of the parameter `known` of `write`."""
        links = {name: link_digest(target) for name, target in self.links.items()}
        return {name: digest(name) for name in self.files} | links

    def _follow(self, path: str) -> str:
        """The real path; adds all links on the way."""
        todo, at, hops = path.split("/")[::-1], "", 0
        while todo:
            part = todo.pop()
            if part == "..":
                at = os.path.dirname(at).rstrip("/")
            elif part not in ("", "."):
                name = f"{at}/{part}"
                if not stat.S_ISLNK(os.lstat(name).st_mode):
                    at = name
                    continue
                hops += 1
                if hops > _HOPS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = self.links[name] = os.readlink(name)
                at = "" if target.startswith("/") else at
                todo += target.split("/")[::-1]
        return at or "/"

    def _needs(self, name: str) -> Iterator[str]:
        found = elf.read(Path(name))
        if found is None:
            reader = _reader(name)
            if reader and reader != _SHELL and os.path.exists(reader):  # every node has a shell of its own
                yield reader
            return
        if found.interpreter:
            yield found.interpreter
        for wanted in found.needed:
            library = elf.find_library(wanted, found, self.library_path)
            if library is not None:
                yield str(library)
            elif not wanted.startswith(("ld-linux", "linux-vdso")):
                self.missing.setdefault(wanted, name)


def digest(name: str) -> str:
    """SHA-256 of a file's content, in hex."""
    with open_regular(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_digest(target: str) -> str:
    """The value for a link to `target`; never equal to a file's digest."""
    return f"-> {target}"


def add_content(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Adds a file, owned by root, that does not exist on this machine."""
    member = tarfile.TarInfo(name.lstrip("/"))
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def _member(name: str, about: os.stat_result, owner: tuple[int, int], kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name.lstrip("/") or ".")
    member.type, member.mode, member.mtime = kind, stat.S_IMODE(about.st_mode) & 0o777, int(about.st_mtime)
    member.uid, member.gid = owner
    return member


def _reader(name: str) -> str:
    """The interpreter in the first line of a script."""
    with open_regular(name) as file:
        line = file.readline(256)
    words = line[2:].split() if line.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""
