"""libwherry-memory: programs get the memory of their node, as they see it at /sys/fs/cgroup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wherry.base.paths import native_library

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's")
MIB = 1 << 20
PROGRAM = """
import ctypes, json, mmap, os
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in "uptime load1 load2 load3 total free shared buffer".split()]
    _fields_ += [("swap", ctypes.c_ulong * 2), ("procs", ctypes.c_ushort * 2), ("high", ctypes.c_ulong * 2)]
    _fields_ += [("unit", ctypes.c_uint), ("_", ctypes.c_char * 64)]
libc, info = ctypes.CDLL(None, use_errno=True), Info()
libc.get_phys_pages.restype = libc.get_avphys_pages.restype = ctypes.c_long
assert libc.sysinfo(ctypes.byref(info)) == 0 and libc.sysinfo(None) == -1 and ctypes.get_errno() == 14
pages = os.sysconf("SC_PHYS_PAGES"), libc.get_phys_pages(), os.sysconf("SC_AVPHYS_PAGES"), libc.get_avphys_pages()
assert os.sysconf("SC_PAGE_SIZE") == mmap.PAGESIZE and os.sysconf("SC_OPEN_MAX") > 0
print(json.dumps([info.total * info.unit, info.free * info.unit, *(number * mmap.PAGESIZE for number in pages)]))
"""
V1 = {"memory/memory.limit_in_bytes": "{limit}", "memory/memory.usage_in_bytes": "{used}",
      "memory/memory.stat": "inactive_file 5\ntotal_inactive_file {dropped}\n"}  # fmt: skip
V2 = {"memory.max": "{limit}", "memory.current": "{used}", "memory.stat": "anon 7\ninactive_file {dropped}\n"}


def told(directory: Path, files: dict[str, str], **numbers: object) -> list[int]:
    """Total and free bytes by sysinfo, total twice and free twice by pages, of a program that sees these files."""
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text.format(**numbers) + "\n")
    library = native_library("libwherry-memory.so")
    preloaded = [f"LD_PRELOAD={library.name}", f"LD_LIBRARY_PATH={library.parent}"]
    script = 'mount --bind "$0" /sys/fs/cgroup && exec env "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, str(directory), *preloaded, sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    numbers_told: list[int] = json.loads(done.stdout)
    return numbers_told


@pytest.mark.parametrize("files", [V1, V2])
def test_memory_is_the_nodes_and_dropped_files_are_free(tmp_path: Path, files: dict[str, str]) -> None:
    found = told(tmp_path, files, limit=64 * MIB, used=24 * MIB, dropped=8 * MIB)
    assert found == [64 * MIB, 48 * MIB, 64 * MIB, 64 * MIB, 48 * MIB, 48 * MIB]


def test_more_than_the_limit_leaves_nothing_free(tmp_path: Path) -> None:
    assert told(tmp_path, V2, limit=64 * MIB, used=70 * MIB, dropped=MIB)[:2] == [64 * MIB, 0]


@pytest.mark.parametrize(
    ("files", "limit"), [(V1, 1 << 63), (V1, 0x7FFFFFFFFFFFF000), (V2, "max"), (V2, ""), ({"other": "1"}, 0)]
)
def test_without_a_limit_memory_is_the_machines(tmp_path: Path, files: dict[str, str], limit: object) -> None:
    found = told(tmp_path, files, limit=limit, used=1, dropped=1)
    assert found[0] == found[2] == found[3] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found[1] < found[0]


def test_a_lack_of_other_files_leaves_all_that_is_not_used(tmp_path: Path) -> None:
    assert told(tmp_path, {"memory.max": str(64 * MIB)})[:2] == [64 * MIB, 64 * MIB]
