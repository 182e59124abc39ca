"""Copies of smaps for CRIU: served while a process has the same mappings, and found when a flag changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_library
from wherry.node.container.mapping_flags import MappingFlags

PROGRAM = """
import ctypes, mmap, sys
libc, memory = ctypes.CDLL(None), mmap.mmap(-1, 1 << 22)
large = b"x" * (80 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
kept = []
print("ready", flush=True)
for line in sys.stdin:
    if line == "map\\n":
        kept.append(mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ))
    else:
        assert not libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(1 << 22), 10)  # MADV_DONTFORK
    print("done", flush=True)
"""
READER = """
import os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
with os.fdopen(os.open("smaps", os.O_RDONLY, dir_fd=directory), "rb") as file:
    sys.stdout.buffer.write(file.read())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for orders."""
    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as started:
        assert started.stdout and started.stdout.readline() == "ready\n"
        yield started
        started.kill()


def order(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdin and process.stdout
    process.stdin.write(f"{what}\n")
    assert process.stdout.readline() == "done\n"


def read(pid: int, prefix: Path) -> bytes:
    env = {**os.environ, "LD_PRELOAD": str(native_library("libwherry-criu.so")), "WHERRY_CRIU_SMAPS": str(prefix)}
    return subprocess.run(
        [sys.executable, "-c", READER, f"/proc/{pid}"], env=env, check=True, capture_output=True
    ).stdout


def test_the_copy_is_served_while_the_mappings_are_the_same(process: subprocess.Popen[str], tmp_path: Path) -> None:
    flags = MappingFlags(tmp_path / "smaps")
    flags.copy([process.pid, 1 << 22])
    copy = (tmp_path / f"smaps.{process.pid}").read_bytes()
    marked = copy.replace(b"\nSize:", b"\nMark:")
    (tmp_path / f"smaps.{process.pid}").write_bytes(marked)
    assert read(process.pid, flags.prefix) == marked
    assert (tmp_path / f"smaps.{process.pid}.used").read_bytes() == marked
    flags.require_unchanged()
    order(process, "advise")
    with pytest.raises(Failed) as changed:
        flags.require_unchanged()
    assert changed.value.code == Code.MOVE_FAILED and str(process.pid) in changed.value.what


@pytest.mark.parametrize("damage", ["a mapping more", "half a copy", "no copy"])
def test_the_kernel_is_asked_when_the_copy_is_not_of_these_mappings(
    damage: str, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    flags, copy = MappingFlags(tmp_path / "smaps"), tmp_path / f"smaps.{process.pid}"
    flags.copy([process.pid])
    if damage == "a mapping more":
        order(process, "map")
    elif damage == "half a copy":
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2].replace(b"\nSize:", b"\nMark:"))
    else:
        copy.unlink()
    seen = read(process.pid, flags.prefix)
    assert b"\nMark:" not in seen and seen.count(b"VmFlags:") > 10
    assert not list(tmp_path.glob("*.used"))
    flags.require_unchanged()
