"""Reads an ELF file's requests to the dynamic linker: the libraries it needs and its search directories.

Only 64-bit little-endian files are read (x86-64, AArch64). Anything else, also a truncated file, gives None. The reads
are bounded in size and number, as the files are users'. Source of the format: System V ABI, chapter 5, "Dynamic
Linking".
"""

from __future__ import annotations

import functools
import os
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from wherry.base.safe_open import open_regular

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_PATH_LIMIT = 4096  # bytes
_STRINGS_LIMIT = 16 << 20  # bytes of the string table that are read
_DYNAMIC_LIMIT = 64 << 10  # bytes; the largest programs have some hundred entries of 16
_SEGMENTS_LIMIT, _NEEDED_LIMIT = 256, 512
_NAME_LIMIT = 16 << 10  # bytes of a name, or of all search directories


@dataclass(frozen=True)
class Elf:
    """The requests of a file. `rpath` counts only when `runpath` is empty; `$ORIGIN` is already replaced.

    `interpreter` is the dynamic linker that a program names; empty for a library and for a static program.
    """

    path: Path
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    interpreter: str = ""


def read(path: Path) -> Elf | None:
    """The file's requests; None when it is not a supported ELF file, a script for instance."""
    try:
        with open_regular(path) as file:
            return _parse(path, file.fileno())
    except (OSError, struct.error, ValueError, OverflowError):  # the last: an offset that no file has
        return None


def _parse(path: Path, fd: int) -> Elf | None:
    header = os.pread(fd, 64, 0)
    if header[:6] != b"\x7fELF\x02\x01":
        return None
    offset, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    if count > _SEGMENTS_LIMIT:
        return None
    loads: list[tuple[int, int, int]] = []
    dynamic = interpreter = b""
    for index in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", os.pread(fd, size, offset + index * size))
        if kind == _LOAD:
            loads.append((address, at, length))
        elif kind == _DYNAMIC:
            dynamic = os.pread(fd, min(length, _DYNAMIC_LIMIT), at)
        elif kind == _INTERP:
            interpreter = os.pread(fd, min(length, _PATH_LIMIT), at).rstrip(b"\0")
    entries = [struct.unpack_from("<QQ", dynamic, at) for at in range(0, len(dynamic) - 15, 16)]
    table = _strings(fd, loads, dict(entries))

    def names(wanted: int) -> list[str]:
        starts = [value for tag, value in entries if tag == wanted]
        if len(starts) > _NEEDED_LIMIT:
            raise ValueError("too many entries")
        ends = [table.index(b"\0", at, at + _NAME_LIMIT) for at in starts]
        return [table[at:end].decode(errors="surrogateescape") for at, end in zip(starts, ends, strict=True)]

    origin = str(path.resolve().parent)

    def directories(tag: int) -> tuple[str, ...]:
        text = ":".join(names(tag)[:1])  # a linker writes one
        return tuple(re.sub(r"\$ORIGIN|\$\{ORIGIN\}", lambda _: origin, part) for part in text.split(":") if part)

    found = directories(_RPATH), directories(_RUNPATH), interpreter.decode(errors="surrogateescape")
    return Elf(path, tuple(names(_NEEDED)), *found)


def _strings(fd: int, loads: list[tuple[int, int, int]], dynamic: dict[int, int]) -> bytes:
    address = dynamic.get(_STRTAB, 0)
    for start, at, length in loads:
        if start <= address < start + length:
            return os.pread(fd, min(dynamic.get(_STRSZ, 0), _STRINGS_LIMIT), at + address - start)
    return b""


def find_library(name: str, wanted_by: Elf, library_path: str) -> Path | None:
    """The path at which the dynamic linker finds `name`: RPATH, LD_LIBRARY_PATH, RUNPATH, its cache (ld.so(8))."""
    own = () if wanted_by.runpath else wanted_by.rpath
    given = tuple(part for part in library_path.split(":") if part)
    for directory in (*own, *given, *wanted_by.runpath):
        if os.path.isfile(candidate := Path(directory) / name):
            return candidate
    cached = _cache().get(name)
    return Path(cached) if cached else None


@functools.cache
def _cache() -> dict[str, str]:
    """The linker's cache: path of the first entry of this architecture, by name. Read once per process."""
    try:
        text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:  # a machine without glibc's tools
        return {}
    found: dict[str, str] = {}
    for match in re.finditer(r"^\s+(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (\S+)$", text, re.MULTILINE):
        found.setdefault(match[1], match[2])
    return found
