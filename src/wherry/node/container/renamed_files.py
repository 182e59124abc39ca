"""Files that a process opened or mapped by a name that was removed, and that have another name.

sem_open makes every named semaphore so, and so do programs that give a file its name when it is whole (link, unlink).
A dump takes the other name, if it is in the same directory (native/preload/criu.c); else the file cannot be moved.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

REMOVED = " (deleted)"
"""The kernel's addition to a name that was removed."""
_SECRET = "/secretmem"
"""Memory that never had a name, and seems to have one link."""


def without_name(opened: Iterable[tuple[int, str, os.stat_result]], pids: Iterable[int]) -> tuple[int, str] | None:
    """Process and removed name of a file that has no other name in its directory, but elsewhere. `opened`: process,
    name and file of each descriptor; mappings are looked for here."""
    seen: set[tuple[int, int]] = set()
    for pid, name, file in (*opened, *_mapped(pids)):
        identity = file.st_dev, file.st_ino
        had_name = name.endswith(REMOVED) and not name.startswith(_SECRET)
        if had_name and file.st_nlink and stat.S_ISREG(file.st_mode) and identity not in seen:
            seen.add(identity)
            if not _has_other_name(pid, removed := name.removesuffix(REMOVED), identity):
                return pid, removed
    return None


def removed_mappings(pid: int) -> Iterator[tuple[str, str, str]]:
    """Access, name below map_files, and name with REMOVED, of the mappings of files whose name was removed."""
    with contextlib.suppress(OSError):  # it ended
        for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").split("\n"):
            if line.endswith(REMOVED) and len(words := line.split(maxsplit=5)) == 6:
                start, end = (int(address, 16) for address in words[0].split("-"))
                yield words[1], f"{start:x}-{end:x}", words[5]


def _mapped(pids: Iterable[int]) -> Iterator[tuple[int, str, os.stat_result]]:
    for pid in pids:
        for _, mapping, name in removed_mappings(pid):
            with contextlib.suppress(OSError):  # it was unmapped, or is no file
                yield pid, name, os.stat(f"/proc/{pid}/map_files/{mapping}")


def _has_other_name(pid: int, removed: str, identity: tuple[int, int]) -> bool:
    """Whether the directory of a name has another one for the file. True when the process ended."""
    directory = f"/proc/{pid}/root{os.path.dirname(removed)}"
    try:
        with os.scandir(directory) as entries:
            found = [entry.stat(follow_symlinks=False) for entry in entries if entry.inode() == identity[1]]
    except FileNotFoundError:
        return not os.path.exists(f"/proc/{pid}/root")
    except OSError:
        return False
    return any((file.st_dev, file.st_ino) == identity for file in found)
