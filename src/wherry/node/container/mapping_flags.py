"""Copies of /proc/PID/smaps, taken before the freeze, from which CRIU learns the flags of each mapping.

The kernel walks all pages of a process to make that file, 9 ms for each GiB. `native/preload/criu.c` gives CRIU the
copy if the process has the same mappings when it is frozen. A program may still have changed a flag in between
(mlock, madvise): that is looked for while the node is restored. Invariant: a node is committed only with flags of its
own.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterable
from pathlib import Path

from wherry.base.errors import Code, Failed

_OURS = re.compile(rb" (?:um|uw|ui|sd)(?= )")
"""Flags of who tracks writes."""
_LARGE = 64 << 20
"""Bytes in memory."""


class MappingFlags:
    """The copies `PREFIX.PID` of one move."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix

    def copy(self, pids: Iterable[int]) -> None:
        """Copies those of processes that run. A process that has ended meanwhile is left out, as is a small one: it may
        have just begun and still change its mappings, and its file is made quickly."""
        for pid in filter(_is_large, pids):
            whole = Path(f"{self.prefix}.{pid}")
            with contextlib.suppress(OSError):
                begun = whole.with_name(f"{whole.name}.begun")
                begun.write_bytes(_smaps(pid))
                begun.rename(whole)

    def require_unchanged(self) -> None:
        """The processes are frozen, and CRIU has dumped them. MOVE_FAILED when a flag that it got had changed."""
        for used in self.prefix.parent.glob(f"{self.prefix.name}.*.used"):
            pid = int(used.name.split(".")[-2])
            try:
                same = _are_same(_flags(used.read_bytes()), _flags(_smaps(pid)))
            except OSError:
                same = False  # somebody killed it
            if not same:
                what = (
                    f"process {pid} changed the attributes of its memory (mlock, madvise) in the moment of the freeze"
                )
                raise Failed(Code.MOVE_FAILED, what, "", "repeat the move")


def _is_large(pid: int) -> bool:
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except OSError:
        return False
    return resident * mmap.PAGESIZE >= _LARGE


def _smaps(pid: int) -> bytes:
    return Path(f"/proc/{pid}/smaps").read_bytes()


def _flags(smaps: bytes) -> list[bytes]:
    """Those of each mapping. The mappings themselves are the same: the library has looked."""
    return [behind[: behind.index(b"\n")] for behind in smaps.split(b"\nVmFlags:")[1:]]


def _are_same(one: list[bytes], other: list[bytes]) -> bool:
    if len(one) != len(other):
        return False
    return all(a == b or _OURS.sub(b"", a) == _OURS.sub(b"", b) for a, b in zip(one, other, strict=True))
