"""libwherry-remap: mremap works over mappings that stay apart though they look like one, and fails as ever elsewhere.

The kernel keeps two neighbours apart when each had pages before they met; so one is moved here beside the other.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wherry.base.paths import native_library

SIZE = 256 * 1024
PROGRAM = f"""
import ctypes, errno, mmap, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
SIZE, MAYMOVE, FIXED, DONTUNMAP, FAILED = {SIZE}, 1, 2, 4, 2**64 - 1
WRITE = mmap.PROT_READ | mmap.PROT_WRITE

def reserve(size):
    return libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

def mapped(number, at=None, flags=mmap.MAP_PRIVATE):
    start = libc.mmap(at, SIZE, WRITE, flags | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(start, number, SIZE)
    return start

def neighbours(count=3, flags=mmap.MAP_PRIVATE):
    "Pieces of which each is filled with its number, in a hole of twice their size."
    area = reserve(2 * count * SIZE)
    for number in range(count):
        place, made = area + number * SIZE, mapped(number + 1, None, flags)
        assert libc.mremap(made, SIZE, SIZE, MAYMOVE | FIXED, place) == place
    assert not libc.munmap(area + count * SIZE, count * SIZE)
    return area

def remap(*words):
    ctypes.set_errno(0)
    found = libc.mremap(*words)
    return errno.errorcode[ctypes.get_errno()] if found == FAILED else found

def right(start, count=3):
    return all(ctypes.string_at(start + i * SIZE, SIZE) == bytes([i + 1]) * SIZE for i in range(count))

"""


def run(program: str, preloaded: bool = True) -> str:
    library = native_library("libwherry-remap.so")
    loaded = {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(library.parent)} if preloaded else {}
    words = [sys.executable, "-c", PROGRAM + program]
    done = subprocess.run(words, env={**os.environ, **loaded}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_kernel_alone_refuses() -> None:
    """Else the tests below say nothing."""
    assert run("print(remap(neighbours(), 3 * SIZE, 4 * SIZE, MAYMOVE, None))", preloaded=False) == "EFAULT"


@pytest.mark.parametrize("flags", ["0", "MAYMOVE"])
def test_it_grows_where_there_is_room(flags: str) -> None:
    assert (
        run(f"""
area = neighbours()
assert remap(area, 3 * SIZE, 5 * SIZE, {flags}, None) == area
ctypes.memset(area + 3 * SIZE, 9, 2 * SIZE)
print(right(area))
""")
        == "True"
    )


def test_it_is_moved_where_there_is_none() -> None:
    """A size need not be of whole pages."""
    assert (
        run("""
area = neighbours()
mapped(7, area + 3 * SIZE)
there = remap(area, 3 * SIZE - 100, 5 * SIZE - 100, MAYMOVE, None)
assert there != area
ctypes.memset(there + 3 * SIZE, 9, 2 * SIZE)
assert libc.mprotect(area, SIZE, WRITE) != 0, "nothing is left there"
print(right(there))
""")
        == "True"
    )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_it_is_moved_to_a_place_of_the_program(size: int) -> None:
    assert (
        run(f"""
area, place = neighbours(), reserve({size} * SIZE)
assert remap(area, 3 * SIZE, {size} * SIZE, MAYMOVE | FIXED, place) == place
print(right(place, min(3, {size})))
""")
        == "True"
    )


def test_it_shrinks() -> None:
    assert (
        run("""
area = neighbours()
assert remap(area, 3 * SIZE, 2 * SIZE, 0, None) == area
print(right(area, 2), libc.mprotect(area + 2 * SIZE, SIZE, WRITE))
""")
        == "True -1"
    )


def test_no_room_and_no_leave_to_move() -> None:
    assert (
        run("""
area = neighbours()
mapped(7, area + 3 * SIZE)
print(remap(area, 3 * SIZE, 4 * SIZE, 0, None), right(area))
""")
        == "ENOMEM True"
    )


def test_a_move_that_fails_in_the_middle_leaves_all_where_it_was() -> None:
    """There is no address space for the last piece, which grows."""
    assert (
        run("""
import resource
area, place = neighbours(), reserve(4 * SIZE)
resource.setrlimit(resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
found = remap(area, 3 * SIZE, 4 * SIZE, MAYMOVE | FIXED, place)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(found, right(area))
""")
        == "ENOMEM True"
    )


@pytest.mark.parametrize(
    "make",
    [
        "neighbours(2)",
        "(area := neighbours(), libc.mprotect(area + SIZE, SIZE, mmap.PROT_READ))[0]",
        "(area := neighbours(), libc.munmap(area + SIZE, SIZE))[0]",
        "neighbours(3, mmap.MAP_SHARED)",
    ],
    ids=["a hole at the end", "another protection", "a hole", "shared memory"],
)
def test_what_could_never_be_one_mapping_is_refused_as_ever(make: str) -> None:
    program = f"print(remap({make}, 3 * SIZE, 4 * SIZE, MAYMOVE, None))"
    assert run(program) == run(program, preloaded=False) == "EFAULT"


@pytest.mark.parametrize("target", ["area + SIZE", "area - SIZE"])
def test_a_target_within_what_is_moved_is_refused(target: str) -> None:
    program = f"""
area = neighbours()
print(remap(area, 3 * SIZE, 3 * SIZE, MAYMOVE | FIXED, {target}))
"""
    assert run(program) == run(program, preloaded=False)


def test_what_works_anyway_is_the_kernels() -> None:
    program = """
area = mapped(1)
there = remap(area, SIZE, 100 * SIZE, MAYMOVE, None)
print(right(there, 1), remap(area + 1, SIZE, SIZE, MAYMOVE, None), remap(there, SIZE, SIZE, 99, None))
"""
    assert run(program) == run(program, preloaded=False) == "True EINVAL EINVAL"
