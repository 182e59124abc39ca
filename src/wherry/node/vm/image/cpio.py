"""Archives in the format of initial RAM disks: cpio "newc".

Source of the format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Invariant: the same
entries give the same bytes, so that equal images have equal digests.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """A file (content, or the path of its source), a directory or a character device, owned by root."""

    name: str
    mode: int
    content: bytes | Path = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> Entry:
    """A directory, mode 0755."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, content: bytes | Path, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(name, stat.S_IFREG | mode, content)


def write(out: IO[bytes], entries: Iterable[Entry]) -> None:
    """Writes the archive; parents must come before their contents."""
    for inode, entry in enumerate([*entries, Entry(_TRAILER, 0)], 1):
        content = entry.content.read_bytes() if isinstance(entry.content, Path) else entry.content
        name = entry.name.encode() + b"\0"
        links, owner, mtime, checksum = 1, 0, 0, 0
        fields = (inode, entry.mode, owner, owner, links, mtime, len(content), 0, 0, *entry.device, len(name), checksum)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        out.write(_padded(header + name))
        out.write(_padded(content))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
